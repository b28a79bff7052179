//! The network of a box: a policy, and a user-mode TCP/IP stack that holds every packet to it.
//!
//! The box has one tun device and nothing else. Its packets are read by a helper process ([`dispatch_role`], [`spawn_helper`]) that
//! answers names itself, decides each connection by a [`Policy`], opens an ordinary socket on the host for
//! what is allowed, and refuses the rest at once with a [`Denial`] that says why. No firewall, no forwarding
//! and no privilege is needed on the host. docs/design/network.md has the whole picture.

mod address;
pub mod channel;
mod cidr;
mod denial;
pub mod dns;
mod helper;
pub mod message;
mod name;
mod policy;
mod role;
mod rule;
pub mod sniff;
mod stack;

pub use address::{AddressClass, classify};
pub use cidr::Cidr;
pub use denial::{Denial, DenialKind, DenialLog};
pub use helper::run_helper;
pub use name::{HostName, NamePattern};
pub use policy::{Allowed, Attempt, Base, Enforcer, Grants, Inspection, Policy, PolicyError, Refusal};
pub use role::{dispatch_role, spawn_helper};
pub use rule::{Ports, Rule, RuleError, Target, Transport};
pub use stack::{Addressing, BoxId, Counters, Limits, NetworkConfig, Stack};
