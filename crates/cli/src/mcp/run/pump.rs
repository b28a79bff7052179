//! Moves bytes between our standard streams and the server, as they are.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use rustix::event::{PollFd, PollFlags, Timespec};
use sandcrate_backend::Stream;
use sandcrate_mcp::Started;
use sandcrate_runtime::{LogEvent, Subscription};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc;

use crate::output;
use crate::run::notices;
use crate::run::streams;

/// A pipe that is ready takes this much without blocking (PIPE_BUF).
const AT_ONCE: usize = 4096;
const READ_BYTES: usize = 64 << 10;

fn has_room(fd: impl std::os::fd::AsFd) -> bool {
    let mut ready = [PollFd::new(&fd, PollFlags::OUT)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(rustix::event::poll(&mut ready, Some(&now)), Ok(1..))
}

/// Writes to stdout what is short, if somebody reads there.
pub(super) fn write_if_room(data: &[u8]) {
    if data.len() <= AT_ONCE && has_room(io::stdout()) {
        let _ = streams::write(Stream::Stdout, data);
    }
}

/// Writes to stdout, on this thread when it cannot block: an answer need not wait for another.
pub(super) async fn write(data: &[u8]) -> io::Result<()> {
    if data.len() <= AT_ONCE && has_room(io::stdout()) {
        return streams::write(Stream::Stdout, data);
    }
    let data = Bytes::copy_from_slice(data);
    let written = tokio::task::spawn_blocking(move || streams::write(Stream::Stdout, &data)).await;
    written.map_err(io::Error::other)?
}

/// How the conversation ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The server's output ended with it.
    Server,
    /// Our standard input did.
    Input,
    /// Nobody reads our standard output.
    Output,
}

/// Passes everything on until one side has ended. `first` came while the server was being started.
pub(super) async fn run(
    server: &mut Started,
    first: Vec<Bytes>,
    input: &mut mpsc::Receiver<Bytes>,
) -> io::Result<Ended> {
    let Started { reader, writer } = server;
    let send = async {
        for piece in first {
            if writer.write_all(&piece).await.is_err() {
                return std::future::pending().await;
            }
        }
        writer.flush().await.ok();
        while let Some(piece) = input.recv().await {
            let sent = async {
                writer.write_all(&piece).await?;
                writer.flush().await
            };
            if sent.await.is_err() {
                // It reads no more; its last words are still on their way.
                return std::future::pending().await;
            }
        }
    };
    let receive = async {
        let mut buffer = vec![0; READ_BYTES];
        loop {
            match reader.read(&mut buffer).await? {
                0 => return Ok(Ended::Server),
                length => match write(&buffer[..length]).await {
                    Ok(()) => {}
                    Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(Ended::Output),
                    Err(error) => return Err(error),
                },
            }
        }
    };
    tokio::select! {
        () = send => Ok(Ended::Input),
        ended = receive => ended,
    }
}

/// Passes on what a server that is to end still says. True when it has ended.
pub(super) async fn rest(server: &mut Started, time: Duration) -> bool {
    let last = async {
        let mut buffer = vec![0; READ_BYTES];
        while let Ok(length @ 1..) = server.reader.read(&mut buffer).await {
            // Nobody may be there to read it.
            let _ = write(&buffer[..length]).await;
        }
    };
    tokio::time::timeout(time, last).await.is_ok()
}

/// The server's stderr goes to ours, and what its box was refused beside it.
pub(super) async fn errors(mut log: Subscription, quiet: bool) {
    while let Some(event) = log.next().await {
        match event {
            LogEvent::Output { stream: Stream::Stderr, data, .. } => {
                let _ = tokio::task::spawn_blocking(move || streams::write(Stream::Stderr, &data)).await;
            }
            LogEvent::Denied { denial } if !quiet => {
                notices::denials(&[denial]).iter().for_each(|line| output::notice(line));
            }
            LogEvent::Output { .. } | LogEvent::Denied { .. } | LogEvent::Gap { .. } => {}
            LogEvent::Exit { .. } => return,
            // It never ran, or its box is gone: the reason is ours to tell.
            LogEvent::Failed { error, .. } => {
                output::notice(&format!("error: {error}"));
                return;
            }
        }
    }
}
