//! The network of a session: what it is asked to be, and what it did.

use sandcrate_protocol::network::{Counters, Denial, Grants, Limits, Policy};
use serde::Serialize;

/// Which network a box has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Network {
    /// An empty network namespace with loopback only.
    Off,
    /// A network of its own, on which every connection is held to a policy.
    Isolated(Box<Isolation>),
    /// The host's own network namespace, by the operator's explicit word.
    Host,
}

/// What an isolated network lets through.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Isolation {
    pub policy: Policy,
    /// The operator's, for every box: they open what is not public, and close what no request may have.
    pub grants: Grants,
    pub limits: Limits,
}

/// What a session's network has used and refused since the box was made.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct NetworkReport {
    pub counters: Counters,
    /// The latest, oldest first.
    pub denials: Vec<Denial>,
    /// Denials that are no longer kept.
    pub lost: u64,
}
