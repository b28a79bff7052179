//! Attacks on the network boundary.

pub(crate) mod internet;
pub(crate) mod link;
pub(crate) mod unix;
