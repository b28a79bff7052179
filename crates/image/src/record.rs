//! What is known of an imported image.

use std::fmt;

use sandcrate_jail::identity::IdMapping;
use sandcrate_protocol::Timestamp;
use serde::{Deserialize, Serialize};

use crate::config::ImageConfig;
use crate::name::ImageName;

/// One image, as it is listed and as it is kept beside its files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageRecord {
    pub name: ImageName,
    /// Of the archive as given; of the configuration for `docker save`, of the manifest for OCI; for a directory,
    /// of what was read from it.
    pub digest: String,
    pub source: ImageSource,
    pub imported_at: Timestamp,
    /// Files, directories and links, as they were read.
    pub entries: u64,
    /// Bytes of files, as they were read.
    pub bytes: u64,
    /// Entries that boxes have no use for: devices below /dev, FIFOs, sockets.
    pub left_out: u64,
    pub layers: u64,
    pub owners: Ownership,
    pub config: ImageConfig,
    /// The directory of its files among the store's.
    pub(crate) root: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ImageSource {
    Tar,
    Docker,
    Oci,
    Directory,
}

impl fmt::Display for ImageSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tar => "tar",
            Self::Docker => "docker",
            Self::Oci => "oci",
            Self::Directory => "directory",
        })
    }
}

/// Whose the files on disk are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ownership {
    /// Imported by root: each file belongs to the host id that stands behind its owner's id in a box.
    Shifted,
    /// Imported by an ordinary user, who has one id to give: everything is that user's.
    User(u32),
}

impl Ownership {
    pub fn of_this_user() -> Self {
        match IdMapping::for_this_user() {
            IdMapping::Range => Self::Shifted,
            IdMapping::Single { uid, .. } => Self::User(uid),
        }
    }
}

impl fmt::Display for Ownership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shifted => f.write_str("root"),
            Self::User(uid) => write!(f, "uid {uid}"),
        }
    }
}
