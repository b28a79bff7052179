//! Sessions on Sandcrate's own sandbox.
//!
//! [`NativeBackend`] holds one launcher (a process of its own, see `sandcrate_jail`), a pool of prepared boxes and
//! the live sessions. The program that embeds it must call [`dispatch_role`] first thing in `main`.

mod backend;
mod boxes;
mod config;
mod images;
mod instance;
mod launcher;
mod session;
mod storage;

pub use backend::NativeBackend;
pub use config::NativeConfig;
pub use sandcrate_image as image;
pub use sandcrate_jail::NewLauncher;

pub use sandcrate_driver::{DEFAULT_PATH, dispatch_role};

/// The backend's name in configuration and reports.
pub const NAME: &str = "native";
