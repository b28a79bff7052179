//! What an agent application embeds: the Box service, the connection to its runtime, and the tools of the agent.
//!
//! [`Service`] is the handle that an application holds. It reaches a runtime by a [`Client`]: over RPC with a
//! [`Connector`], or in the same process with `EmbeddedClient` (feature `embedded`).

pub mod client;
mod config;
mod connector;
#[cfg(feature = "embedded")]
mod embedded;
mod error;
pub mod policy;
pub mod query;
mod service;
mod session_id;
pub mod skills;
pub mod tools;
pub mod workspace;

pub use client::{Client, FileKind, FileMeta, ProcessStreams};
pub use config::{BoxConfig, apply_environment};
pub use connector::{ChildCommand, Connection, Connector, Deployment, Endpoint, Link, RpcClient, Timing};
#[cfg(feature = "embedded")]
pub use embedded::EmbeddedClient;
pub use error::HostError;
pub use query::Query;
pub use service::{
    Availability, HostMounts, RecordedError, Service, ServiceBuilder, SkillPackage, SkillZip, presented,
    truncate,
};
pub use session_id::{DEFAULT_TEMPLATE, SessionTemplate};

/// What everything here fails with.
pub type Result<T> = std::result::Result<T, HostError>;
