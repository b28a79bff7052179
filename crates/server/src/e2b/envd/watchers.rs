//! What changes in a directory, told by comparing what is in it now with what was there at the last look.
//!
//! There is no task: a look is taken when somebody asks. What came and went between two looks is not told, and
//! something renamed is told as gone and come.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use sandcrate_backend::{FileEntry, FileKind};
use sandcrate_e2b_wire::connect::Code;
use sandcrate_e2b_wire::filesystem::{EventType, FilesystemEvent, WatchRequest};

use super::super::error::Failed;
use super::super::sandbox::locked;
use super::Here;
use super::entry::entry_info;
use super::paths::resolve;

/// Of one sandbox; each holds a listing.
const MAX_WATCHERS: usize = 32;
/// Deeper than anybody's tree; `tree` bounds the entries.
const RECURSIVE: u32 = 64;

type Listing = BTreeMap<String, FileEntry>;

/// One directory that is watched.
#[derive(Debug)]
pub(super) struct Watch {
    path: String,
    depth: u32,
    include_entry: bool,
    seen: Listing,
}

impl Watch {
    /// Nothing that happens after this is missed but what is undone before the next look.
    pub(super) async fn begin(here: &Here, request: &WatchRequest) -> Result<Self, Failed> {
        let path = resolve(&request.path).trim_end_matches('/').to_owned();
        let depth = if request.recursive { RECURSIVE } else { 1 };
        let seen = listing(here, &path, depth).await?;
        Ok(Self { path, depth, include_entry: request.include_entry, seen })
    }

    /// What changed since the last look.
    pub(super) async fn look(&mut self, here: &Here) -> Result<Vec<FilesystemEvent>, Failed> {
        let now = listing(here, &self.path, self.depth).await?;
        let changes = changes(&self.seen, &now);
        self.seen = now;
        let event = |(path, kind): (String, EventType)| {
            let entry = self.seen.get(&path).filter(|_| self.include_entry);
            FilesystemEvent {
                name: path.strip_prefix(&format!("{}/", self.path)).unwrap_or(&path).to_owned(),
                kind,
                entry: entry.map(|entry| entry_info(entry, &path)),
            }
        };
        Ok(changes.into_iter().map(event).collect())
    }
}

async fn listing(here: &Here, path: &str, depth: u32) -> Result<Listing, Failed> {
    Ok(here.tree(path, depth).await?.into_iter().collect())
}

fn changes(before: &Listing, after: &Listing) -> Vec<(String, EventType)> {
    let mut found = Vec::new();
    for (path, entry) in after {
        let mut tell = |kind| found.push((path.clone(), kind));
        match before.get(path) {
            None => {
                tell(EventType::Create);
                if entry.kind == FileKind::File && entry.bytes > 0 {
                    tell(EventType::Write);
                }
            }
            Some(had) if had.kind != entry.kind => {
                tell(EventType::Remove);
                tell(EventType::Create);
            }
            Some(had) => {
                // A directory's time changes with its entries, which are told of by themselves.
                let written = (had.bytes, had.modified) != (entry.bytes, entry.modified);
                if written && entry.kind != FileKind::Directory {
                    tell(EventType::Write);
                }
                if had.mode != entry.mode {
                    tell(EventType::Chmod);
                }
            }
        }
    }
    let gone = before.keys().filter(|path| !after.contains_key(*path));
    found.extend(gone.map(|path| (path.clone(), EventType::Remove)));
    found
}

/// The watchers of one sandbox that are asked for their events, by their ids.
#[derive(Debug, Default)]
pub(crate) struct Watchers(Mutex<HashMap<String, Shared>>);

/// Looks are taken one after the other.
type Shared = Arc<tokio::sync::Mutex<Watch>>;

impl Watchers {
    pub(super) fn add(&self, watch: Watch) -> Result<String, Failed> {
        let id = format!("w{}", uuid::Uuid::now_v7().simple());
        let mut watchers = locked(&self.0);
        if watchers.len() >= MAX_WATCHERS {
            let message = format!("a sandbox has at most {MAX_WATCHERS} watchers: stop some first");
            return Err(Failed::new(Code::ResourceExhausted, message));
        }
        watchers.insert(id.clone(), Arc::new(tokio::sync::Mutex::new(watch)));
        Ok(id)
    }

    pub(super) fn get(&self, id: &str) -> Result<Shared, Failed> {
        locked(&self.0).get(id).cloned().ok_or_else(not_found)
    }

    pub(super) fn remove(&self, id: &str) -> Result<(), Failed> {
        locked(&self.0).remove(id).map(drop).ok_or_else(not_found)
    }

    pub(crate) fn clear(&self) {
        locked(&self.0).clear();
    }
}

fn not_found() -> Failed {
    Failed::new(Code::NotFound, "there is no such watcher in this sandbox")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(kind: FileKind, bytes: u64, modified: i64, mode: u32) -> FileEntry {
        FileEntry { name: String::new(), kind, bytes, mode, modified, link_target: None }
    }

    fn listing(entries: &[(&str, FileEntry)]) -> Listing {
        entries.iter().map(|(path, entry)| ((*path).to_owned(), entry.clone())).collect()
    }

    #[test]
    fn every_kind_of_change_is_told() {
        use EventType::{Chmod, Create, Remove, Write};

        let before = listing(&[
            ("/d/same", entry(FileKind::File, 1, 1, 0o644)),
            ("/d/written", entry(FileKind::File, 1, 1, 0o644)),
            ("/d/mode", entry(FileKind::File, 1, 1, 0o644)),
            ("/d/gone", entry(FileKind::File, 1, 1, 0o644)),
            ("/d/dir", entry(FileKind::Directory, 1, 1, 0o755)),
            ("/d/turned", entry(FileKind::File, 1, 1, 0o644)),
        ]);
        let after = listing(&[
            ("/d/same", entry(FileKind::File, 1, 1, 0o644)),
            ("/d/written", entry(FileKind::File, 1, 2, 0o644)),
            ("/d/mode", entry(FileKind::File, 1, 1, 0o600)),
            ("/d/dir", entry(FileKind::Directory, 1, 9, 0o755)),
            ("/d/turned", entry(FileKind::Directory, 1, 1, 0o755)),
            ("/d/empty", entry(FileKind::File, 0, 1, 0o644)),
            ("/d/full", entry(FileKind::File, 3, 1, 0o644)),
        ]);
        let found = changes(&before, &after);
        let of = |path: &str| -> Vec<_> {
            found.iter().filter(|(found, _)| found == path).map(|(_, kind)| *kind).collect()
        };
        assert_eq!(of("/d/same"), []);
        assert_eq!(of("/d/written"), [Write]);
        assert_eq!(of("/d/mode"), [Chmod]);
        assert_eq!(of("/d/gone"), [Remove]);
        assert_eq!(of("/d/dir"), []);
        assert_eq!(of("/d/turned"), [Remove, Create]);
        assert_eq!(of("/d/empty"), [Create]);
        assert_eq!(of("/d/full"), [Create, Write]);
    }
}
