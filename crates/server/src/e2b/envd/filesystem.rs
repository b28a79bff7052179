//! `filesystem.Filesystem`: looking, listing, making, moving, removing.

use std::collections::VecDeque;

use axum::Json;
use axum::extract::Extension;
use axum::http::HeaderMap;
use sandcrate_backend::{FileEntry, FileKind, FileReply, FileRequest};
use sandcrate_e2b_wire::connect::Code;
use sandcrate_e2b_wire::filesystem::{
    EntryInfo, EntryResponse, FileType, ListDirRequest, ListDirResponse, MoveRequest, PathRequest,
};
use sandcrate_e2b_wire::process::Empty;
use sandcrate_protocol::ErrorKind;

use super::super::error::Failed;
use super::Here;
use super::call::Unary;
use super::entry::{entry_info, file_type};
use super::paths::{resolve, tidy, user_of};
use crate::rest::files;

/// Of one listing, whatever its depth: each is held in memory, and each directory is a call to the box.
const MAX_LISTED: usize = 20_000;
/// Links of one listing that are told as what they lead to: each is a call or more. The others are told as links.
const MAX_FOLLOWED: usize = 256;

type Answer<T> = Result<Json<T>, Failed>;

pub(super) async fn stat(
    Extension(here): Extension<Here>,
    headers: HeaderMap,
    Unary(request): Unary<PathRequest>,
) -> Answer<EntryResponse> {
    here.check_user(user_of(&headers).as_deref())?;
    let entry = here.entry(&resolve(&request.path)).await?;
    Ok(Json(EntryResponse { entry }))
}

pub(super) async fn list_dir(
    Extension(here): Extension<Here>,
    headers: HeaderMap,
    Unary(request): Unary<ListDirRequest>,
) -> Answer<ListDirResponse> {
    here.check_user(user_of(&headers).as_deref())?;
    let entries = here.tree(&resolve(&request.path), request.depth.max(1)).await?;
    let mut told = Vec::with_capacity(entries.len());
    let mut links = 0;
    for (path, entry) in &entries {
        links += usize::from(entry.kind == FileKind::Symlink);
        told.push(match links {
            ..=MAX_FOLLOWED => here.told(entry, path).await,
            _ => entry_info(entry, path),
        });
    }
    Ok(Json(ListDirResponse { entries: told }))
}

pub(super) async fn make_dir(
    Extension(here): Extension<Here>,
    headers: HeaderMap,
    Unary(request): Unary<PathRequest>,
) -> Answer<EntryResponse> {
    here.check_user(user_of(&headers).as_deref())?;
    let path = resolve(&request.path);
    match here.entry(&path).await {
        Ok(_) => return Err(Failed::new(Code::AlreadyExists, format!("{path} exists already"))),
        Err(Failed(error)) if error.code == Code::NotFound => {}
        Err(other) => return Err(other),
    }
    here.ask(FileRequest::MakeDir { path: path.clone() }).await?;
    Ok(Json(EntryResponse { entry: here.entry(&path).await? }))
}

pub(super) async fn rename(
    Extension(here): Extension<Here>,
    headers: HeaderMap,
    Unary(request): Unary<MoveRequest>,
) -> Answer<EntryResponse> {
    here.check_user(user_of(&headers).as_deref())?;
    let (from, to) = (resolve(&request.source), resolve(&request.destination));
    // Before its new parent is made: a source that is not there must leave nothing behind.
    here.entry(&from).await?;
    if let Some((parent, _)) = to.trim_end_matches('/').rsplit_once('/')
        && !parent.is_empty()
    {
        here.ask(FileRequest::MakeDir { path: parent.to_owned() }).await?;
    }
    here.ask(FileRequest::Rename { from, to: to.clone() }).await?;
    Ok(Json(EntryResponse { entry: here.entry(&to).await? }))
}

/// One that is not there is gone already.
pub(super) async fn remove(
    Extension(here): Extension<Here>,
    headers: HeaderMap,
    Unary(request): Unary<PathRequest>,
) -> Answer<Empty> {
    here.check_user(user_of(&headers).as_deref())?;
    let removed =
        here.app.runtime.files(here.id(), FileRequest::Remove { path: resolve(&request.path) }).await;
    match removed {
        Err(error) if error.kind() == ErrorKind::FileNotFound => Ok(Json(Empty {})),
        other => Ok(other.map(|_| Json(Empty {}))?),
    }
}

impl Here {
    async fn entry(&self, path: &str) -> Result<EntryInfo, Failed> {
        let entry = files::stat(&self.app.runtime, self.id(), path).await?;
        Ok(self.told(&entry, path).await)
    }

    /// A link is told as what it leads to, and where that is; one that leads nowhere, as leading to itself.
    async fn told(&self, entry: &FileEntry, path: &str) -> EntryInfo {
        let mut told = entry_info(entry, path);
        if entry.kind == FileKind::Symlink {
            (told.kind, told.mode, told.symlink_target) =
                match files::follow(&self.app.runtime, self.id(), path).await {
                    Ok((target, end)) => (file_type(end.kind), end.mode, Some(tidy(&target))),
                    Err(_) => (FileType::Unspecified, 0, Some(path.to_owned())),
                };
        }
        told
    }

    async fn ask(&self, request: FileRequest) -> Result<(), Failed> {
        self.app.runtime.files(self.id(), request).await?;
        Ok(())
    }

    /// What is in a directory, so many levels down, by path. Links are not followed.
    pub(super) async fn tree(&self, path: &str, depth: u32) -> Result<Vec<(String, FileEntry)>, Failed> {
        let mut found = Vec::new();
        let mut places = VecDeque::from([(path.trim_end_matches('/').to_owned(), depth)]);
        while let Some((place, depth)) = places.pop_front() {
            let asked = if place.is_empty() { "/" } else { &place };
            let entries = match self.list(asked).await {
                Ok(entries) => entries,
                // Removed, or closed to the user, while its parent was read; the place asked for must be there.
                Err(_) if !found.is_empty() => continue,
                Err(failed) => return Err(failed),
            };
            for entry in entries {
                let path = format!("{place}/{}", entry.name);
                if entry.kind == FileKind::Directory && depth > 1 {
                    places.push_back((path.clone(), depth - 1));
                }
                found.push((path, entry));
            }
            if found.len() > MAX_LISTED {
                let message = format!("{path} holds more than {MAX_LISTED} entries: list a part of it");
                return Err(Failed::new(Code::ResourceExhausted, message));
            }
        }
        found.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok(found)
    }

    async fn list(&self, path: &str) -> Result<Vec<FileEntry>, Failed> {
        match self.app.runtime.files(self.id(), FileRequest::List { path: path.to_owned() }).await? {
            FileReply::Entries(entries) => Ok(entries),
            _ => Err(Failed::new(Code::Internal, format!("listing {path} gave no entries"))),
        }
    }
}
