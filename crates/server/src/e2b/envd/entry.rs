//! A file of a box as `envd` tells of it.

use std::collections::BTreeMap;

use jiff::Timestamp;
use sandcrate_backend::{FileEntry, FileKind};
use sandcrate_e2b_wire::filesystem::{EntryInfo, FileType};

use super::super::{HOME, USER};

/// Whose a file is cannot be asked; what lies in the home is the user's.
pub(super) fn entry_info(entry: &FileEntry, path: &str) -> EntryInfo {
    let owner = if path.starts_with(HOME) { USER } else { "" };
    EntryInfo {
        name: super::paths::name(path).to_owned(),
        kind: file_type(entry.kind),
        path: path.to_owned(),
        size: i64::try_from(entry.bytes).unwrap_or(i64::MAX),
        mode: entry.mode,
        permissions: permissions(entry.kind, entry.mode),
        owner: owner.to_owned(),
        group: owner.to_owned(),
        modified_time: Timestamp::from_second(entry.modified).ok(),
        symlink_target: entry.link_target.clone(),
        metadata: BTreeMap::new(),
        is_symlink: entry.kind == FileKind::Symlink,
        link: entry.link_target.clone(),
    }
}

pub(super) fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::File => FileType::File,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Other => FileType::Unspecified,
    }
}

fn permissions(kind: FileKind, mode: u32) -> String {
    let first = match kind {
        FileKind::Directory => 'd',
        FileKind::Symlink => 'L',
        FileKind::File => '-',
        FileKind::Other => '?',
    };
    let bits = (0..9).map(|bit| if mode & (0o400 >> bit) == 0 { '-' } else { ['r', 'w', 'x'][bit % 3] });
    std::iter::once(first).chain(bits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_are_as_people_read_them() {
        assert_eq!(permissions(FileKind::File, 0o644), "-rw-r--r--");
        assert_eq!(permissions(FileKind::Directory, 0o751), "drwxr-x--x");
        assert_eq!(permissions(FileKind::Symlink, 0o777), "Lrwxrwxrwx");
    }
}
