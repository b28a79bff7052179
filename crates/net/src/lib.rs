//! The network of a box: a policy, and a user-mode TCP/IP stack that holds every packet to it.
//!
//! The box has one tun device and nothing else. Its packets are read by a helper process ([`dispatch_role`], [`spawn_helper`]) that
//! answers names itself, decides each connection by a policy, opens an ordinary socket on the host for
//! what is allowed, and refuses the rest at once with a record that says why. No firewall, no forwarding
//! and no privilege is needed on the host. docs/design/network.md has the whole picture.

pub mod channel;
pub mod dns;
mod enforcer;
mod helper;
pub mod message;
mod role;
pub mod sniff;
mod stack;

pub use enforcer::{Allowed, Attempt, Enforcer, Inspection, Refusal};
pub use helper::run_helper;
pub use role::{dispatch_role, spawn_helper};
pub use stack::{Addressing, BoxId, Ends, NetworkConfig, Stack};
