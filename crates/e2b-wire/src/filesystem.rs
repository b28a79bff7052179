//! `filesystem.Filesystem`: what is where in a sandbox, and what changes; and the answer of `POST /files`.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::json::{int64, null_is_default};
use crate::process::Empty;

/// Before the name of a method.
pub const SERVICE: &str = "/filesystem.Filesystem/";

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileType {
    #[default]
    #[serde(rename = "FILE_TYPE_UNSPECIFIED")]
    Unspecified,
    #[serde(rename = "FILE_TYPE_FILE")]
    File,
    #[serde(rename = "FILE_TYPE_DIRECTORY")]
    Directory,
    #[serde(rename = "FILE_TYPE_SYMLINK")]
    Symlink,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EntryInfo {
    pub name: String,
    /// Of a symbolic link, that of what it points to.
    #[serde(rename = "type")]
    pub kind: FileType,
    pub path: String,
    #[serde(with = "int64")]
    pub size: i64,
    /// Permission bits.
    pub mode: u32,
    /// As `ls` writes them.
    pub permissions: String,
    pub owner: String,
    pub group: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modified_time: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    /// Absolute, through all links.
    pub symlink_target: Option<String>,
    #[serde(deserialize_with = "null_is_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    pub is_symlink: bool,
    /// Ours: what a symbolic link itself says, where `symlink_target` is what it comes to.
    #[serde(rename = "sandcrateLink", skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
}

/// Of `Stat`, `MakeDir` and `Remove`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PathRequest {
    pub path: String,
}

/// Of `Stat`, `MakeDir` and `Move`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryResponse {
    #[serde(default)]
    pub entry: EntryInfo,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MoveRequest {
    pub source: String,
    pub destination: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ListDirRequest {
    pub path: String,
    /// 0 is 1: the entries of the directory itself.
    pub depth: u32,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListDirResponse {
    #[serde(default)]
    pub entries: Vec<EntryInfo>,
}

/// Of `WatchDir` and `CreateWatcher`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct WatchRequest {
    pub path: String,
    pub recursive: bool,
    pub include_entry: bool,
    pub allow_network_mounts: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum EventType {
    #[default]
    #[serde(rename = "EVENT_TYPE_UNSPECIFIED")]
    Unspecified,
    #[serde(rename = "EVENT_TYPE_CREATE")]
    Create,
    #[serde(rename = "EVENT_TYPE_WRITE")]
    Write,
    #[serde(rename = "EVENT_TYPE_REMOVE")]
    Remove,
    #[serde(rename = "EVENT_TYPE_RENAME")]
    Rename,
    #[serde(rename = "EVENT_TYPE_CHMOD")]
    Chmod,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FilesystemEvent {
    /// Relative to what is watched.
    pub name: String,
    #[serde(rename = "type")]
    pub kind: EventType,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entry: Option<EntryInfo>,
}

/// A message of the stream of `WatchDir`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum WatchDirResponse {
    /// The first: from now on nothing is missed.
    Start(Empty),
    Filesystem(Box<FilesystemEvent>),
    Keepalive(Empty),
}

/// The answer of `CreateWatcher`; of `GetWatcherEvents` and `RemoveWatcher`, the request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Watcher {
    pub watcher_id: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatcherEventsResponse {
    #[serde(default)]
    pub events: Vec<FilesystemEvent>,
}

/// One of the files that a `POST /files` wrote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenFile {
    pub name: String,
    /// `file`.
    #[serde(rename = "type")]
    pub kind: String,
    pub path: String,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_entry_is_protobufs_json() {
        let entry = EntryInfo {
            name: "a".into(),
            kind: FileType::File,
            path: "/home/user/a".into(),
            size: 5_000_000_000,
            mode: 0o644,
            permissions: "-rw-r--r--".into(),
            owner: "user".into(),
            group: "user".into(),
            modified_time: Some(Timestamp::from_second(1_700_000_000).unwrap()),
            ..EntryInfo::default()
        };
        let json = json!({
            "name": "a", "type": "FILE_TYPE_FILE", "path": "/home/user/a", "size": "5000000000", "mode": 420,
            "permissions": "-rw-r--r--", "owner": "user", "group": "user", "isSymlink": false,
            "modifiedTime": "2023-11-14T22:13:20Z",
        });
        assert_eq!(serde_json::to_value(&entry).unwrap(), json);
        assert_eq!(serde_json::from_value::<EntryInfo>(json).unwrap(), entry);
        assert_eq!(serde_json::from_value::<EntryInfo>(json!({})).unwrap(), EntryInfo::default());
    }

    #[test]
    fn a_watch_is_read_and_told_as_the_sdks_do() {
        let sent = json!({"path": "/d", "recursive": true, "includeEntry": true});
        let read: WatchRequest = serde_json::from_value(sent).unwrap();
        assert!(read.recursive && read.include_entry && !read.allow_network_mounts);
        let event = FilesystemEvent { name: "x".into(), kind: EventType::Create, entry: None };
        assert_eq!(
            serde_json::to_value(WatchDirResponse::Filesystem(Box::new(event))).unwrap(),
            json!({"filesystem": {"name": "x", "type": "EVENT_TYPE_CREATE"}})
        );
        let watcher = Watcher { watcher_id: "w".into() };
        assert_eq!(serde_json::to_value(watcher).unwrap(), json!({"watcherId": "w"}));
    }
}
