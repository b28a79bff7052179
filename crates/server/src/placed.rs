//! A connection as it is counted and timed: its place among `max_connections`, and the clock for a peer that does
//! not read. Below TLS and below upgrades, so both hold for whatever is spoken above.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Sleep;

pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

pub(crate) struct Placed {
    stream: Box<dyn Stream>,
    /// Kept through an upgrade.
    _place: OwnedSemaphorePermit,
    write_timeout: Duration,
    /// Runs while there is something to write and the peer takes nothing; not while there is nothing to write.
    stuck: Option<Pin<Box<Sleep>>>,
}

impl Placed {
    pub(crate) fn new(stream: Box<dyn Stream>, place: OwnedSemaphorePermit, write_timeout: Duration) -> Self {
        Self { stream, _place: place, write_timeout, stuck: None }
    }

    /// Any byte taken stops the clock; a write that waited for too long fails.
    fn timed(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.stuck = None;
            return written;
        }
        let clock = self.stuck.get_or_insert_with(|| Box::pin(tokio::time::sleep(self.write_timeout)));
        ready!(clock.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer does not read")))
    }
}

impl AsyncRead for Placed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Placed {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, data);
        self.timed(context, written)
    }

    /// Sockets have nothing to flush, so it is no sign that the peer reads, and needs no clock.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, pieces);
        self.timed(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::sync::Semaphore;
    use tokio::time::{Instant, sleep};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);
    /// What a peer that does not read takes.
    const ROOM: usize = 100;

    async fn pair() -> (Placed, DuplexStream) {
        let (ours, theirs) = duplex(ROOM);
        let place = Arc::new(Semaphore::new(1)).acquire_owned().await.unwrap();
        (Placed::new(Box::new(ours), place, LIMIT), theirs)
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_that_nobody_takes_fails_in_time() {
        let (mut ours, _theirs) = pair().await;
        let begin = Instant::now();
        let error = ours.write_all(&[0; 2 * ROOM]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let waited = begin.elapsed();
        assert!(waited >= LIMIT && waited < LIMIT + Duration::from_secs(1), "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_reader_is_kept_and_a_quiet_connection_is_not_timed() {
        let (mut ours, mut theirs) = pair().await;
        let reading = tokio::spawn(async move {
            for _ in 0..4 {
                sleep(LIMIT / 2).await;
                theirs.read_exact(&mut [0; ROOM]).await.unwrap();
            }
            theirs
        });
        ours.write_all(&[0; 4 * ROOM]).await.unwrap();
        let _theirs = reading.await.unwrap();
        sleep(LIMIT * 3).await;
        ours.write_all(&[0; ROOM]).await.unwrap();
    }
}
