//! Descriptors in tokio's event loop.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Registers a descriptor, which must not block, with the current runtime. Every event of the interest wakes a thread,
/// whether somebody waits for it or not.
pub fn watch(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` is open for as long as it lives, names the same descriptor on every call, and the
    // `AsyncFd` owns it from here on.
    unsafe { AsyncFd::register_with_interest(fd, interest) }
        .map_err(|error| io::Error::other(error.to_string()))
}
