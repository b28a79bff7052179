//! Reading and writing pipes and terminals without blocking a thread.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use bytes::Bytes;
use rustix::buffer::spare_capacity;
use sandcrate_sys::reactor::watch;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::channel::set_nonblocking;

/// What a pipe holds by default.
pub(crate) const CHUNK: usize = 64 << 10;

/// One end of a pipe, or the master of a terminal.
#[derive(Debug)]
pub struct FdIo {
    inner: AsyncFd<OwnedFd>,
}

impl FdIo {
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        set_nonblocking(fd.as_fd())?;
        Ok(Self { inner: watch(fd, Interest::READABLE | Interest::WRITABLE)? })
    }

    /// The next bytes; empty at the end. A terminal whose programs are gone is at its end.
    pub async fn read(&self) -> io::Result<Bytes> {
        self.inner
            .async_io(Interest::READABLE, |fd| match read_chunk(fd) {
                Err(rustix::io::Errno::IO) => Ok(Bytes::new()),
                other => other.map_err(io::Error::from),
            })
            .await
    }

    /// What is there now, without waiting: None when nothing is.
    pub fn read_now(&self, most: usize) -> io::Result<Option<Bytes>> {
        let fd = self.inner.get_ref();
        match if most < CHUNK { read_at_most(fd, most) } else { read_chunk(fd) } {
            Err(rustix::io::Errno::AGAIN) => Ok(None),
            Err(rustix::io::Errno::IO) => Ok(Some(Bytes::new())),
            other => other.map(Some).map_err(io::Error::from),
        }
    }

    /// Bytes that wait to be read.
    pub(crate) fn waiting(&self) -> usize {
        rustix::io::ioctl_fionread(self.inner.get_ref())
            .map_or(0, |count| usize::try_from(count).unwrap_or(0))
    }

    /// Whether nobody can write any more. A piece of what somebody still writes is lost.
    pub(crate) fn is_at_end(&self) -> bool {
        matches!(self.read_now(1), Ok(Some(data)) if data.is_empty())
    }

    pub async fn write_all(&self, mut data: &[u8]) -> io::Result<()> {
        while !data.is_empty() {
            let written = self
                .inner
                .async_io(Interest::WRITABLE, |fd| rustix::io::write(fd, data).map_err(io::Error::from))
                .await?;
            data = &data[written..];
        }
        Ok(())
    }

    pub(crate) fn get_ref(&self) -> &OwnedFd {
        self.inner.get_ref()
    }
}

thread_local! {
    /// Where the next read of this thread goes. Most reads are short or an end: a chunk made and given back for each
    /// would cost the allocator more than the read costs the kernel.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

fn read_chunk(fd: &OwnedFd) -> rustix::io::Result<Bytes> {
    SCRATCH.with_borrow_mut(|scratch| {
        scratch.clear();
        // Not filled: only the pages that are read into should be touched.
        scratch.reserve_exact(CHUNK);
        rustix::io::read(fd, spare_capacity(scratch))?;
        Ok(if scratch.len() < CHUNK / 4 {
            Bytes::copy_from_slice(scratch)
        } else {
            Bytes::from(std::mem::take(scratch))
        })
    })
}

fn read_at_most(fd: &OwnedFd, most: usize) -> rustix::io::Result<Bytes> {
    let mut buffer = Vec::with_capacity(most);
    rustix::io::read(fd, spare_capacity(&mut buffer))?;
    Ok(compact(buffer))
}

/// A short read must not hold on to a whole chunk while it waits for its reader.
fn compact(buffer: Vec<u8>) -> Bytes {
    if buffer.len() < CHUNK / 4 { Bytes::copy_from_slice(&buffer) } else { Bytes::from(buffer) }
}
