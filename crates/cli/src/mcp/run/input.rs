//! Our standard input, read on the thread that passes it on: a message need not wait for another thread.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use bytes::Bytes;
use rustix::event::{PollFd, PollFlags, Timespec};
use sandcrate_sys::reactor::watch;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::run::streams::{self, AtEnd};

const READ_BYTES: usize = 64 << 10;

/// Reads for as long as the set is kept. The receiver ends with the input.
pub(super) fn read(into: &mut JoinSet<()>) -> io::Result<mpsc::Receiver<Bytes>> {
    let (sender, input) = mpsc::channel(8);
    let ours = io::stdin().as_fd().try_clone_to_owned()?;
    match watch(ours, Interest::READABLE) {
        Ok(ours) => {
            into.spawn(follow(ours, sender));
        }
        // A file is always ready, and cannot be waited for.
        Err(_) => streams::feed(sender, AtEnd::Close)?,
    }
    Ok(input)
}

async fn follow(ours: AsyncFd<OwnedFd>, sender: mpsc::Sender<Bytes>) {
    let mut buffer = vec![0; READ_BYTES];
    while let Ok(mut ready) = ours.readable().await {
        // Whoever gave it to us may share it, so it stays one that blocks: it is only read when it has something.
        if !has_something(ours.get_ref()) {
            ready.clear_ready();
            continue;
        }
        match rustix::io::read(ours.get_ref(), &mut *buffer) {
            Ok(0) => return,
            Ok(length) => {
                if sender.send(Bytes::copy_from_slice(&buffer[..length])).await.is_err() {
                    return;
                }
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => ready.clear_ready(),
            Err(error) => {
                tracing::warn!(%error, "reading standard input failed");
                return;
            }
        }
    }
}

fn has_something(fd: &OwnedFd) -> bool {
    let mut ready = [PollFd::new(fd, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(rustix::event::poll(&mut ready, Some(&now)), Ok(1..))
}
