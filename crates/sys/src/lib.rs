//! The system calls that rustix lacks, as safe functions on owned file descriptors.
//!
//! The only product crate with unsafe code. It knows nothing of boxes: what a call is good for is decided in
//! `jail`. Calls that rustix has are made through rustix, there.

#![expect(unsafe_code, reason = "this crate exists to hold the unsafe code of the project")]

pub mod addresses;
pub mod attempt;
pub mod fd;
pub mod loopback;
pub mod loopdev;
pub mod memory;
pub mod mount;
pub mod packet;
pub mod process;
pub mod quota;
#[cfg(feature = "reactor")]
pub mod reactor;
pub mod seccomp;
pub mod shared_spawn;
pub mod signal;
pub mod tun;

use std::io;

/// The result of a raw system call as Rust has it.
fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
