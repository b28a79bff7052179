//! Loop devices: a file as a block device that vanishes with its last user.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, open};

use crate::check;

const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4C82;
const LOOP_CONFIGURE: libc::c_ulong = 0x4C0A;
const LO_FLAGS_AUTOCLEAR: u32 = 4;

/// `struct loop_info64` of linux/loop.h.
#[repr(C)]
struct LoopInfo {
    ids: [u64; 5],
    number: u32,
    encrypt: [u32; 2],
    flags: u32,
    names: [u8; 160],
    init: [u64; 2],
}

/// `struct loop_config` of linux/loop.h.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

/// A configured loop device. The kernel clears it when the last descriptor and mount are gone.
#[derive(Debug)]
pub struct LoopDevice {
    pub path: String,
    /// Keeps the device configured until it is mounted.
    pub device: OwnedFd,
}

/// Attaches `image` to a free loop device. Looks up /dev in the current mount namespace.
pub fn attach(image: BorrowedFd<'_>) -> io::Result<LoopDevice> {
    let control = open("/dev/loop-control", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    // Another process may take the free device between the two calls: try again, a bounded number of times.
    let mut last = io::Error::from(io::ErrorKind::ResourceBusy);
    for _ in 0..64 {
        // SAFETY: LOOP_CTL_GET_FREE takes no argument.
        let number = check(unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) }.into())?;
        let path = format!("/dev/loop{number}");
        let device = open(path.as_str(), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let config = LoopConfig {
            fd: image.as_raw_fd() as u32,
            block_size: 0,
            info: LoopInfo {
                ids: [0; 5],
                number: 0,
                encrypt: [0; 2],
                flags: LO_FLAGS_AUTOCLEAR,
                names: [0; 160],
                init: [0; 2],
            },
            reserved: [0; 8],
        };
        // SAFETY: LOOP_CONFIGURE reads a loop_config, whose layout `LoopConfig` has; it lives across the call.
        match check(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config) }.into()) {
            Ok(_) => return Ok(LoopDevice { path, device }),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last)
}
