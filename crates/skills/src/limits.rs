//! Bounds of what one package, archive or upload can cost.

use serde::{Deserialize, Serialize};

/// Directories below the root in which packages are looked for.
pub(crate) const LIST_DEPTH: usize = 6;
/// The same for a directory or an archive that somebody names.
pub(crate) const SCAN_DEPTH: usize = 2;
/// Directories looked at in a tree that somebody names; one beyond that is no place for skills.
pub(crate) const MAX_DIRECTORIES: usize = 20_000;
/// Directories looked at below one directory of the root, and entries read in them. A box may have it mounted
/// and fill it: it is left out then, and its neighbours are not.
pub(crate) const PLACE_DIRECTORIES: usize = 2000;
pub(crate) const PLACE_ENTRIES: usize = 20_000;
/// Packages below one directory of the root.
pub(crate) const PLACE_PACKAGES: usize = 500;
/// Texts of the packages below one directory of the root.
pub(crate) const PLACE_TEXT_BYTES: usize = 4 << 20;
/// Packages of one store or archive: a hundred times what an agent can choose from.
pub(crate) const MAX_PACKAGES: usize = 2000;
/// Texts of all packages of one store together; they are kept in memory, and a list sends them all.
pub(crate) const TEXT_BYTES: usize = 32 << 20;
/// The longest entry file. It becomes part of a prompt: a hundredth of this is usual.
pub(crate) const ENTRY_BYTES: usize = 1 << 20;
/// The longest front matter. A few lines are usual.
pub(crate) const FRONT_MATTER_BYTES: usize = 64 << 10;
/// How deep a package may be nested.
pub(crate) const PACKAGE_DEPTH: usize = 32;
/// How much an archive may grow. Text shrinks to a twentieth; a bomb grows a thousandfold.
pub(crate) const ARCHIVE_RATIO: u64 = 100;
/// Below this nobody asks for the ratio: a page of blanks is no bomb.
pub(crate) const ARCHIVE_FREE_BYTES: u64 = 1 << 20;
/// Uploads that wait to be installed.
pub(crate) const UPLOADS: usize = 32;

/// What an operator can set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// One uploaded archive; all that wait may have twice as much.
    pub upload_bytes: usize,
    /// Files and directories of one package or archive.
    pub package_entries: usize,
    /// What one package or archive may have once it is unpacked.
    pub package_bytes: u64,
    /// A file that is read or written by a call.
    pub file_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            upload_bytes: 64 << 20,
            package_entries: 10_000,
            package_bytes: 256 << 20,
            file_bytes: 4 << 20,
        }
    }
}
