//! File operations: a worker in the box does the work, a pipe carries the bytes.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rustix::fs::FileType;
use rustix::pipe::{PipeFlags, pipe_with};
use sandcrate_backend::{BackendError, FileEntry, FileKind, FileReply, FileRequest};
use sandcrate_jail::message::{
    Failure, FileFacts, FileOperation, FileOutcome, InitReply, InitRequest, Placement,
};

use crate::fd_io::FdIo;
use crate::link::{Fittings, LiveBox, request_of};

/// One operation on at most 64 MiB or 100,000 entries.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Does one operation on files of the box.
pub async fn perform<B: LiveBox>(session: &Arc<B>, request: FileRequest) -> Result<FileReply, BackendError> {
    let link = session.link();
    request.validate()?;
    let (name, path) = describe(&request);
    let (task, mut replies) = link.new_task();
    let work = async {
        let (operation, theirs, ours) = prepare(&link.fittings, &request)?;
        let fds: Vec<_> = theirs.iter().map(AsFd::as_fd).collect();
        request_of(&**session, &InitRequest::File { id: task, operation }, &fds).await?;
        // The worker must be the only holder, or the end of the data is never seen.
        drop(theirs);
        let data = transfer(ours, request).await?;
        match replies.recv().await {
            Some((InitReply::FileDone { outcome: Ok(outcome), .. }, _)) => Ok(reply(outcome, data)),
            Some((InitReply::FileDone { outcome: Err(failure), .. }, _)) => {
                Err(file_error(name, &path, &failure))
            }
            _ => Err(session.ended_error()),
        }
    };
    let result = tokio::time::timeout(LIMIT, work).await;
    link.forget_task(task);
    if result.is_err() {
        let _ = link.send(&InitRequest::Kill { id: task }, &[]).await;
    }
    result.unwrap_or_else(|_| Err(BackendError::Timeout { what: format!("{name} {path}"), limit: LIMIT }))
}

/// The operation and the path it is about.
pub fn describe(request: &FileRequest) -> (&'static str, String) {
    match request {
        FileRequest::Stat { path } => ("stat", path.clone()),
        FileRequest::List { path } => ("list", path.clone()),
        FileRequest::Read { path, .. } => ("read", path.clone()),
        FileRequest::Write { path, .. } => ("write", path.clone()),
        FileRequest::Append { path, .. } => ("append", path.clone()),
        FileRequest::MakeDir { path } => ("mkdir", path.clone()),
        FileRequest::Remove { path } => ("remove", path.clone()),
        FileRequest::Rename { from, .. } => ("rename", from.clone()),
        _ => ("file operation", String::new()),
    }
}

/// An operation that is ready to be sent.
pub type Prepared = (FileOperation, Option<OwnedFd>, Option<FdIo>);

/// What the worker is told, its end of a pipe where bytes move, and ours.
pub fn prepare(fittings: &Fittings, request: &FileRequest) -> Result<Prepared, BackendError> {
    let at = |path: &str| match path.starts_with('/') {
        true => path.as_bytes().to_vec(),
        false => format!("{}/{path}", fittings.workdir).into_bytes(),
    };
    let pipe =
        || pipe_with(PipeFlags::CLOEXEC).map_err(|error| BackendError::failed("making a pipe", error.into()));
    let ours = |fd| FdIo::new(fd).map_err(|error| BackendError::failed("making a pipe", error));
    Ok(match request {
        FileRequest::Stat { path } => (FileOperation::Stat { path: at(path) }, None, None),
        FileRequest::List { path } => {
            (FileOperation::List { path: at(path), max_entries: FileRequest::MAX_ENTRIES as u64 }, None, None)
        }
        FileRequest::Read { path, offset, limit } => {
            let (read, write) = pipe()?;
            let operation = FileOperation::Read {
                path: at(path),
                offset: *offset,
                limit: (*limit).min(FileRequest::MAX_BYTES),
            };
            (operation, Some(write), Some(ours(read)?))
        }
        FileRequest::Write { path, .. } | FileRequest::Append { path, .. } => {
            let (read, write) = pipe()?;
            let placement = match request {
                FileRequest::Append { .. } => Placement::End,
                _ => Placement::Replace,
            };
            (FileOperation::Write { path: at(path), placement }, Some(read), Some(ours(write)?))
        }
        FileRequest::MakeDir { path } => (FileOperation::MakeDir { path: at(path) }, None, None),
        FileRequest::Remove { path } => (FileOperation::Remove { path: at(path) }, None, None),
        FileRequest::Rename { from, to } => {
            (FileOperation::Rename { from: at(from), to: at(to) }, None, None)
        }
        _ => {
            return Err(BackendError::Unsupported {
                backend: fittings.backend,
                what: "this file operation".to_owned(),
                hint: "use a newer version".to_owned(),
            });
        }
    })
}

/// Moves what the request brings or wants; what was read.
pub async fn transfer(ours: Option<FdIo>, request: FileRequest) -> Result<Bytes, BackendError> {
    match (ours, request) {
        (Some(pipe), FileRequest::Write { data, .. } | FileRequest::Append { data, .. }) => {
            // A worker that gave up closes its end; its outcome says why.
            let _ = pipe.write_all(&data).await;
            Ok(Bytes::new())
        }
        (Some(pipe), _) => {
            read_all(&pipe).await.map_err(|error| BackendError::failed("reading from the box", error))
        }
        (None, _) => Ok(Bytes::new()),
    }
}

/// Bounded twice: the worker sends no more than it was told, and we take no more.
async fn read_all(pipe: &FdIo) -> io::Result<Bytes> {
    let mut all = BytesMut::new();
    loop {
        let data = pipe.read().await?;
        if data.is_empty() || all.len() as u64 > FileRequest::MAX_BYTES {
            return Ok(all.freeze());
        }
        all.extend_from_slice(&data);
    }
}

pub fn reply(outcome: FileOutcome, data: Bytes) -> FileReply {
    match outcome {
        FileOutcome::Entry(facts) => FileReply::Entry(entry(&facts)),
        FileOutcome::Entries(facts) => FileReply::Entries(facts.iter().map(entry).collect()),
        FileOutcome::Moved { file_bytes, .. } => FileReply::Data { data, file_bytes },
        FileOutcome::Done => FileReply::Done,
    }
}

fn entry(facts: &FileFacts) -> FileEntry {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    FileEntry {
        name: text(&facts.name),
        kind: match FileType::from_raw_mode(facts.mode) {
            FileType::RegularFile => FileKind::File,
            FileType::Directory => FileKind::Directory,
            FileType::Symlink => FileKind::Symlink,
            _ => FileKind::Other,
        },
        bytes: facts.bytes,
        mode: facts.mode & 0o7777,
        modified: facts.modified,
        link_target: facts.link_target.as_deref().map(text),
    }
}

pub fn file_error(operation: &'static str, path: &str, failure: &Failure) -> BackendError {
    match failure.errno {
        libc::ENOENT => BackendError::FileNotFound { path: path.to_owned() },
        libc::E2BIG if operation == "list" => BackendError::FileFailed {
            operation,
            path: path.to_owned(),
            why: "it has more than 100,000 entries, or more than 32 MiB of names; list its parts".to_owned(),
        },
        errno => {
            let why = io::Error::from_raw_os_error(errno).to_string();
            BackendError::FileFailed { operation, path: path.to_owned(), why }
        }
    }
}
