//! Sessions on Sandcrate's own sandbox.
//!
//! [`NativeBackend`] holds one launcher (a process of its own, see `sandcrate_jail`), a pool of prepared boxes and
//! the live sessions. The program that embeds it must call [`dispatch_role`] first thing in `main`.

mod accountant;
mod backend;
mod boxes;
mod channel;
mod config;
mod exec;
mod fd_io;
mod files;
mod instance;
mod launcher;
mod network;
mod pumps;
mod session;
mod sources;
mod storage;

pub use backend::NativeBackend;
pub use config::NativeConfig;

/// Must be the first call of `main`, before any thread exists. In a process that was started as a launcher it does
/// not return; in a network helper it serves and then has the exit code; in any other it is `None`.
#[must_use]
pub fn dispatch_role() -> Option<std::process::ExitCode> {
    sandcrate_jail::dispatch_role();
    sandcrate_net::dispatch_role(|channel| Ok(sandcrate_jail::confine_network_helper(channel)?))
}

/// Where programs are found in a box that is not told another PATH.
pub const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The backend's name in configuration and reports.
pub const NAME: &str = "native";
