//! Sessions in containers of Docker or Podman.
//!
//! [`EngineBackend`] asks an engine for one hardened container per session, by the Engine API on its unix socket.
//! The container's PID 1 is this very program in the role of a guest (`sandcrate_jail::guest`), which runs the
//! commands and works on files; it connects back over a socket in a directory that is mounted into the container.
//! So the engine is asked for little: to make a box, and to remove it. The program that embeds this must call
//! `sandcrate_driver::dispatch_role` first thing in `main`.

mod backend;
mod config;
mod container;
mod engine;
mod examine;
mod instance;
mod link;
mod making;
mod pulls;
mod record;
mod session;
mod slots;
mod sources;
mod storage;
mod usage;
mod volumes;

pub use backend::EngineBackend;
pub use config::{EngineConfig, EngineKind};
pub use examine::{EngineFacts, examine};
