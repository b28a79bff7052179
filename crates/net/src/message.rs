//! What the daemon and the helper say to each other. Each direction has its own type.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use crate::stack::{BoxId, Ends, NetworkConfig};
use sandcrate_protocol::network::Counters;
use sandcrate_protocol::network::Denial;
use sandcrate_protocol::network::{Grants, Limits, Policy};

/// Daemon to helper.
#[derive(Debug, Serialize, Deserialize)]
pub enum HelperRequest {
    /// Serve a box. One descriptor: its tun device.
    Attach { box_id: BoxId, config: Box<NetworkConfig> },
    /// From now on this policy and these bounds; what the policy does not allow ends.
    SetPolicy { box_id: BoxId, policy: Policy, grants: Grants, limits: Limits },
    /// The box is gone.
    Detach { box_id: BoxId },
    /// Carry this connection into the box. One descriptor: a connected stream.
    Forward { box_id: BoxId, port: u16 },
    /// Connections that the box had by an earlier helper: have them end.
    Sever { box_id: BoxId, connections: Vec<Ends> },
    /// What the box has used so far.
    Count { box_id: BoxId },
    /// Resolvers and addresses of the host have changed.
    Surroundings { resolvers: Vec<SocketAddr>, own: Vec<IpAddr> },
}

/// Helper to daemon. After `Ready` every request but `Forward`, `Sever` and `Surroundings` has one reply, in order; denials come
/// between, and before the reply to `Count` and `Detach` all that happened before.
#[derive(Debug, Serialize, Deserialize)]
pub enum HelperReply {
    /// The first: it serves, confined as this says.
    Ready {
        confined: String,
    },
    /// It cannot serve, or cannot any more, and ends.
    Unusable {
        reason: String,
    },
    Attached {
        box_id: BoxId,
    },
    /// The policy is in force.
    PolicySet {
        box_id: BoxId,
    },
    Detached {
        box_id: BoxId,
        counters: Counters,
    },
    Counted {
        box_id: BoxId,
        counters: Counters,
    },
    Failed {
        box_id: BoxId,
        reason: String,
    },
    /// Refusals since the last such message, and how many were lost before them.
    Denied {
        box_id: BoxId,
        denials: Vec<Denial>,
        lost: u64,
    },
}
