//! Attacks on the file system boundary.

pub(crate) mod descriptor;
pub(crate) mod device;
pub(crate) mod handle;
pub(crate) mod kernel_files;
pub(crate) mod mount;
pub(crate) mod mount_table;
pub(crate) mod path;
pub(crate) mod readonly;
pub(crate) mod setuid;
pub(crate) mod setuid_ring;
