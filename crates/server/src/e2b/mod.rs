//! E2B's API over our sessions, so that programs written for E2B's SDKs run on this server unchanged.
//!
//! A sandbox is a persistent session whose private files are E2B's home. The control plane (`control`) stands
//! beside our own routes and is admitted like REST. What is for one sandbox is recognised by its marks (`target`)
//! before any route of ours is looked at: `envd` answers for port 49983, `interpreter` for 49999, others are forwarded to the box. Who may
//! use a sandbox's data plane is its own secret's to say, not the server's token's.

mod config;
mod control;
mod data;
mod envd;
mod error;
mod interpreter;
mod journal;
mod life;
mod sandbox;
mod store;
mod target;
mod usage;

pub use config::{E2bConfig, Template};
pub(crate) use control::routes;
pub(crate) use data::dispatch;
pub(crate) use life::{Face, keep_time};

/// E2B's home, which its users' programs take for granted. Relative paths start there.
pub(crate) const HOME: &str = "/home/user";
/// The name of E2B's user, under which requests may name the one that a box has.
pub(crate) const USER: &str = "user";
/// Of every session that is a sandbox.
pub(crate) const TEMPLATE_LABEL: &str = "e2b.template";
