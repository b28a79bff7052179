//! PID 1 of a box that somebody else made: a container engine.
//!
//! The engine has set up everything that holds the box; what is left is to start, signal, end and reap commands, in
//! the words of [`InitRequest`](crate::message::InitRequest). The program and a directory with one socket are
//! mounted into the container; the guest connects, says what it found around it, and serves until the connection
//! ends. Then it ends too, and as it is PID 1, everything in the container with it.
//!
//! It has no more rights than the commands: the same user, no capabilities. As PID 1 it cannot be signalled from
//! inside, and it is closed to tracers.

mod findings;
mod keeper;
mod serve;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::DumpableBehavior;
use sandcrate_sys::process::{SingleThreaded, exit_now};

use crate::channel::Channel;
use crate::message::{Failure, InitReply, Step};

/// Where the program appears in the container; started by this name, it is the guest.
pub const PROGRAM: &str = "/.sandcrate/init";
/// Where the directory with the socket appears.
pub const LINK: &str = "/.sandcrate/link";
/// The socket's name in it.
pub const SOCKET: &str = "socket";

pub(crate) fn run() -> ! {
    if let Err(failure) = live() {
        // The engine's log is all that is left to tell.
        eprintln!("sandcrate: the box's init failed: {failure}");
        exit_now(1);
    }
    exit_now(0)
}

fn live() -> Result<(), Failure> {
    let proof = SingleThreaded::prove().step("counting threads")?;
    sandcrate_sys::signal::block_all().step("blocking signals")?;
    // Inherited by every command.
    sandcrate_sys::signal::reset_dispositions().step("resetting signals")?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).step("closing to tracers")?;
    // Commands make files as they would in a shell.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let control = dial().step("connecting to the owner")?;
    control
        .send(&InitReply::Configured { enforcement: findings::look_around() }, &[])
        .step("reporting to the owner")?;
    serve::serve(proof, control)
}

fn dial() -> std::io::Result<Channel> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    connect(&socket, &SocketAddrUnix::new(format!("{LINK}/{SOCKET}"))?)?;
    Ok(Channel::from(socket))
}
