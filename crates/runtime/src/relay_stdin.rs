//! The standard input of an attached process as a stream of bytes.
//!
//! Shutting it down is end of file for the process; dropping it is not, so that the next one may attach.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::io::AsyncWrite;
use tokio::sync::mpsc;
use tokio_util::sync::PollSender;

use crate::process::Process;

/// What is handed over at once: the usual size of a pipe.
const PIECE: usize = 64 << 10;

#[derive(Debug)]
pub struct RelayStdin {
    /// `None`: the process takes nothing any more.
    pieces: Option<PollSender<Bytes>>,
    process: Arc<Process>,
}

impl RelayStdin {
    pub(crate) fn new(stdin: Option<mpsc::Sender<Bytes>>, process: Arc<Process>) -> Self {
        Self { pieces: stdin.map(PollSender::new), process }
    }
}

impl AsyncWrite for RelayStdin {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let gone = || Err(io::Error::new(io::ErrorKind::BrokenPipe, "the process takes no more input"));
        let Some(pieces) = &mut self.pieces else { return Poll::Ready(gone()) };
        if ready!(pieces.poll_reserve(cx)).is_err() {
            return Poll::Ready(gone());
        }
        let length = data.len().min(PIECE);
        if pieces.send_item(Bytes::copy_from_slice(&data[..length])).is_err() {
            return Poll::Ready(gone());
        }
        self.process.touch();
        Poll::Ready(Ok(length))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.pieces = None;
        self.process.close_stdin();
        Poll::Ready(Ok(()))
    }
}
