//! File operations by the sandbox's own service, with the rights of its user.

use sandcrate_backend::{BackendError, FileEntry, FileKind, FileReply, FileRequest};
use sandcrate_e2b_wire::connect::Code;
use sandcrate_e2b_wire::filesystem::{
    self, EntryInfo, EntryResponse, FileType, ListDirRequest, ListDirResponse, MoveRequest, PathRequest,
};
use sandcrate_e2b_wire::process::Empty;

use crate::envd::User;
use crate::helper;
use crate::http::EndpointError;
use crate::session::Session;

/// Adds to a file what comes in; its parents are made.
const APPEND: &str = r#"case $1 in */*) mkdir -p -- "${1%/*}/" || exit 1;; esac; cat >>"$1""#;

pub(crate) async fn perform(session: &Session, request: FileRequest) -> Result<FileReply, BackendError> {
    request.validate()?;
    if !session.is_open() {
        return Err(session.ended_error());
    }
    let files = Files { session };
    // What is shared is looked at as it is on the host, and changed there too.
    let shared = !session.shares.targets().is_empty();
    if shared {
        session.shares.push(&session.envd).await?;
    }
    let reply = files.perform(request).await;
    if shared {
        let (report, _) = session.shares.pull(&session.envd).await?;
        if let Some(text) = report.text() {
            tracing::info!(
                session.id = session.id().as_str(),
                text,
                "not everything that is shared is on the host"
            );
        }
    }
    reply
}

struct Files<'a> {
    session: &'a Session,
}

impl Files<'_> {
    async fn perform(&self, request: FileRequest) -> Result<FileReply, BackendError> {
        let (files, session) = (self, self.session);
        match request {
            FileRequest::Stat { path } => files.stat(&path).await.map(FileReply::Entry),
            FileRequest::List { path } => files.list(&path).await,
            FileRequest::Read { path, offset, limit } => files.read(&path, offset, limit).await,
            FileRequest::Write { path, data } => {
                let written = session.envd.write(&files.remote(&path), data).await;
                files.done("write", &path, written).await
            }
            FileRequest::Append { path, data } => files.append(&path, data).await,
            FileRequest::MakeDir { path } => files.make_dir(&path).await,
            FileRequest::Remove { path } => {
                // A service may call it a success to remove nothing.
                files.stat_for("remove", &path).await?;
                let message = PathRequest { path: files.remote(&path) };
                let removed = files.call::<_, Empty>("Remove", &message).await.map(drop);
                files.done("remove", &path, removed).await
            }
            FileRequest::Rename { from, to } => {
                let message = MoveRequest { source: files.remote(&from), destination: files.remote(&to) };
                let moved = files.call::<_, EntryResponse>("Move", &message).await.map(drop);
                files.done("rename", &from, moved).await
            }
            other => Err(BackendError::Unsupported {
                backend: crate::NAME,
                what: format!("{other:?}"),
                hint: "its sandboxes have no such operation".to_owned(),
            }),
        }
    }

    /// A relative path starts at the session's workdir.
    fn remote(&self, path: &str) -> String {
        match path.starts_with('/') {
            true => self.session.places.remote(path),
            false => self.session.places.remote(&format!("{}/{path}", self.session.spec.workdir)),
        }
    }

    async fn call<Q: serde::Serialize, A: serde::de::DeserializeOwned>(
        &self,
        method: &str,
        message: &Q,
    ) -> Result<A, EndpointError> {
        self.session
            .envd
            .call("working on a file", &format!("{}{method}", filesystem::SERVICE), message)
            .await
    }

    async fn done(
        &self,
        operation: &'static str,
        path: &str,
        outcome: Result<(), EndpointError>,
    ) -> Result<FileReply, BackendError> {
        match outcome {
            Ok(()) => Ok(FileReply::Done),
            Err(error) => Err(self.error(operation, path, error).await),
        }
    }

    /// In the caller's words; or that the sandbox is gone.
    async fn error(&self, operation: &'static str, path: &str, error: EndpointError) -> BackendError {
        match error {
            EndpointError::Refused { code: Code::Unavailable | Code::Unauthenticated, .. } => {
                self.session.judge(error).await
            }
            EndpointError::Refused { code: Code::NotFound, .. } if !self.session.is_alive().await => {
                self.session.ended_error()
            }
            EndpointError::Refused { code: Code::NotFound, .. } => {
                BackendError::FileNotFound { path: path.to_owned() }
            }
            EndpointError::Refused { message, .. } => {
                BackendError::FileFailed { operation, path: path.to_owned(), why: message }
            }
            // A file without an end, or one that is never ready, is no failure of the sandbox.
            EndpointError::TimedOut { limit, .. } if self.session.is_alive().await => {
                BackendError::FileFailed {
                    operation,
                    path: path.to_owned(),
                    why: format!("it took longer than {} s", limit.as_secs()),
                }
            }
            error => self.session.judge(error).await,
        }
    }

    async fn stat(&self, path: &str) -> Result<FileEntry, BackendError> {
        self.stat_for("stat", path).await
    }

    async fn stat_for(&self, operation: &'static str, path: &str) -> Result<FileEntry, BackendError> {
        let message = PathRequest { path: self.remote(path) };
        match self.call::<_, EntryResponse>("Stat", &message).await {
            Ok(found) => Ok(entry(found.entry)),
            Err(error) => Err(self.error(operation, path, error).await),
        }
    }

    async fn list(&self, path: &str) -> Result<FileReply, BackendError> {
        let message = ListDirRequest { path: self.remote(path), depth: 1 };
        match self.call::<_, ListDirResponse>("ListDir", &message).await {
            Ok(found) if found.entries.len() > FileRequest::MAX_ENTRIES => Err(BackendError::LimitExceeded {
                what: format!("a directory of {} entries", found.entries.len()),
                limit: FileRequest::MAX_ENTRIES.to_string(),
            }),
            Ok(found) => Ok(FileReply::Entries(found.entries.into_iter().map(entry).collect())),
            Err(error) => Err(self.error("list", path, error).await),
        }
    }

    async fn read(&self, path: &str, offset: u64, limit: u64) -> Result<FileReply, BackendError> {
        let limit = limit.min(FileRequest::MAX_BYTES);
        match self.session.envd.read(&self.remote(path), offset, limit).await {
            Ok(part) => {
                let data = if limit == 0 { bytes::Bytes::new() } else { part.data };
                Ok(FileReply::Data { data, file_bytes: part.file_bytes })
            }
            Err(error) => Err(self.error("read", path, error).await),
        }
    }

    /// The service has no call for it: a script does it.
    async fn append(&self, path: &str, data: bytes::Bytes) -> Result<FileReply, BackendError> {
        let remote = self.remote(path);
        let done = helper::run(&self.session.envd, User::Default, APPEND, &[&remote], data).await;
        match done {
            Ok(done) if done.ended.exit_code == 0 => Ok(FileReply::Done),
            Ok(done) => Err(BackendError::FileFailed {
                operation: "append",
                path: path.to_owned(),
                why: done.stderr.trim().to_owned(),
            }),
            Err(error) => Err(self.error("append", path, error).await),
        }
    }

    async fn make_dir(&self, path: &str) -> Result<FileReply, BackendError> {
        let message = PathRequest { path: self.remote(path) };
        match self.call::<_, EntryResponse>("MakeDir", &message).await {
            Err(error) if error.code() == Some(Code::AlreadyExists) => {
                match self.stat_for("mkdir", path).await?.kind {
                    FileKind::Directory | FileKind::Symlink => Ok(FileReply::Done),
                    _ => Err(BackendError::FileFailed {
                        operation: "mkdir",
                        path: path.to_owned(),
                        why: "it exists, and is no directory".to_owned(),
                    }),
                }
            }
            made => self.done("mkdir", path, made.map(drop)).await,
        }
    }
}

fn entry(info: EntryInfo) -> FileEntry {
    let kind = match info.kind {
        _ if info.is_symlink || info.symlink_target.is_some() => FileKind::Symlink,
        FileType::Symlink => FileKind::Symlink,
        FileType::File => FileKind::File,
        FileType::Directory => FileKind::Directory,
        FileType::Unspecified => FileKind::Other,
    };
    FileEntry {
        name: info.name,
        kind,
        bytes: u64::try_from(info.size).unwrap_or(0),
        // Told of what a link leads to; links have no mode of their own.
        mode: if kind == FileKind::Symlink { 0o777 } else { info.mode & 0o7777 },
        modified: info.modified_time.map_or(0, |time| time.as_second()),
        link_target: info.link.or(info.symlink_target).filter(|_| kind == FileKind::Symlink),
    }
}
