//! Drives a box through its init: commands, files, disk bounds and the isolated network.
//!
//! A box's init (`sandcrate_jail`) serves one control channel, whoever made the box. A backend that has such a box
//! holds its [`BoxLink`], implements [`LiveBox`] for its session, and gets [`exec`] and [`perform`] from here; it
//! alone knows how boxes are made, where their files lie and how they end.

mod accountant;
mod channel;
mod command;
mod disk;
mod exec;
mod fd_io;
mod files;
pub mod instance;
mod link;
mod lock;
mod meter;
mod network;
mod on_disk;
mod pipes;
mod project;
mod pumps;
mod role;
mod sources;
mod streams;

pub use accountant::Bound;
pub use channel::AsyncChannel;
pub use exec::exec;
pub use files::perform;
pub use link::{BoxLink, Fittings, LiveBox, step_failed};
pub use lock::lock;
pub use network::{BoxNetwork, Networks, check_tun_device, interface, make_device_in, not_isolated};
pub use on_disk::on_disk;
pub use pipes::{PipeMaker, SparePipes};
pub use project::{ProjectBound, inodes_of, project_of};
pub use role::dispatch_role;
pub use sources::{Source, open_source};

/// For a backend whose commands go through no init of ours: what [`exec`] and [`perform`] are made of.
pub mod pieces {
    pub use crate::accountant::{Watch, asked_over, check};
    pub use crate::command::{start_command, start_error, too_many};
    pub use crate::fd_io::FdIo;
    pub use crate::link::MAX_DRAINS;
    pub use crate::meter::{Meter, exit_status};
    pub use crate::pipes::Pipes;
    pub use crate::pumps::{PATIENCE, Sink};
    pub use crate::streams::{Streams, Terminal, take_input};

    pub mod files {
        pub use crate::files::{LIMIT, Prepared, describe, file_error, prepare, reply, transfer};
    }
}

/// Where programs are found in a box that is not told another PATH.
pub const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
