//! Attacks on the process boundary: credentials, namespaces, other processes, kernel calls.

pub(crate) mod credentials;
pub(crate) mod init;
pub(crate) mod kernel_calls;
pub(crate) mod limits;
pub(crate) mod namespace;
pub(crate) mod surface;
pub(crate) mod terminal;
pub(crate) mod trace;
