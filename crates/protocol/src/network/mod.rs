//! The network of a box as everybody speaks of it: the policy language, bounds and counters, and the record of
//! what was refused. Who enforces it is elsewhere.

mod address;
mod cidr;
mod denial;
mod limits;
mod name;
mod policy;
mod port;
mod request;
mod rule;

pub use address::{AddressClass, classify};
pub use cidr::Cidr;
pub use denial::{Denial, DenialKind, DenialLog};
pub use limits::{Counters, Limits};
pub use name::{HostName, NamePattern, NotAName};
pub use policy::{Base, Grants, Policy, PolicyError};
pub use port::{PortError, PortRequest};
pub use request::NetworkRequest;
pub use rule::{Ports, Rule, RuleError, Target, Transport};
