//! The command's streams: live to our own, or kept for the document; and our standard input to the command.
//!
//! Writes to our stdout and stderr happen on a thread beside the runtime: a reader that is slow or stopped must
//! not keep us from answering signals. One chunk is in flight at a time, so a slow reader slows the command.

use std::io::{self, IsTerminal, Read, Write};

use bytes::Bytes;
use sandcrate_backend::{BackendError, ExecEvent, ExecExit, Execution, Stream};
use tokio::sync::mpsc;

/// What of each stream is kept for the document; more is counted.
pub(crate) const KEEP_BYTES: usize = 1 << 20;

/// One stream of the command.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    pub(crate) data: Vec<u8>,
    /// All bytes of the stream, kept or not.
    pub(crate) seen: u64,
}

impl Kept {
    pub(crate) fn push(&mut self, data: &[u8]) {
        self.seen += data.len() as u64;
        let room = KEEP_BYTES - self.data.len();
        self.data.extend_from_slice(&data[..data.len().min(room)]);
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.seen > self.data.len() as u64
    }
}

/// Where output goes.
#[derive(Debug)]
pub(crate) enum Sink {
    Live,
    Keep { stdout: Kept, stderr: Kept },
}

/// How the stream of events ended.
#[derive(Debug)]
pub(crate) enum Drained {
    Exit(ExecExit),
    /// Nobody reads our output any more.
    BrokenPipe,
}

/// Moves output until the command ends.
pub(super) async fn drain(execution: &mut Execution, sink: &mut Sink) -> anyhow::Result<Drained> {
    while let Some(event) = execution.next().await {
        match event {
            ExecEvent::Output(stream, data) => match sink {
                Sink::Live => {
                    let written = tokio::task::spawn_blocking(move || write(stream, &data)).await?;
                    match written {
                        Ok(()) => {}
                        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                            return Ok(Drained::BrokenPipe);
                        }
                        Err(error) => {
                            return Err(BackendError::failed("writing the command's output", error).into());
                        }
                    }
                }
                Sink::Keep { stdout, stderr } => match stream {
                    Stream::Stdout => stdout.push(&data),
                    Stream::Stderr => stderr.push(&data),
                },
            },
            ExecEvent::Exit(exit) => return Ok(Drained::Exit(exit)),
            ExecEvent::Failed(error) => return Err(error.into()),
            _ => {}
        }
    }
    Err(BackendError::failed("waiting for the command", io::ErrorKind::UnexpectedEof.into()).into())
}

pub(crate) fn write(stream: Stream, data: &[u8]) -> io::Result<()> {
    match stream {
        Stream::Stdout => write_all(io::stdout().lock(), data),
        Stream::Stderr => write_all(io::stderr().lock(), data),
    }
}

/// As `write_all`, but patient with a descriptor that another program made non-blocking (a shared terminal).
fn write_all(mut out: impl Write + std::os::fd::AsFd, mut data: &[u8]) -> io::Result<()> {
    while !data.is_empty() {
        match rustix::io::write(&out, data) {
            Ok(written) => data = &data[written..],
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => {
                let mut ready = [rustix::event::PollFd::new(&out, rustix::event::PollFlags::OUT)];
                rustix::event::poll(&mut ready, None)?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    out.flush()
}

/// What follows our standard input when it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AtEnd {
    /// The command's standard input is closed.
    Close,
    /// The command sees the terminal's end-of-file key: a terminal has no other end.
    TypeEof,
}

/// Copies our standard input to the command, on a thread that ends with the process.
pub(crate) fn feed(stdin: mpsc::Sender<Bytes>, at_end: AtEnd) -> io::Result<()> {
    let reader = move || {
        let mut ours = io::stdin().lock();
        let mut buffer = vec![0; 64 << 10];
        let mut open_line = false;
        loop {
            match ours.read(&mut buffer) {
                Ok(0) => break,
                Ok(length) => {
                    open_line = buffer[length - 1] != b'\n';
                    if stdin.blocking_send(Bytes::copy_from_slice(&buffer[..length])).is_err() {
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "reading standard input failed");
                    break;
                }
            }
        }
        if at_end == AtEnd::TypeEof && !io::stdin().is_terminal() {
            const EOT: &[u8] = b"\x04\x04";
            // In the middle of a line the first one only ends the line.
            let keys = if open_line { EOT } else { &EOT[..1] };
            let _ = stdin.blocking_send(Bytes::from_static(keys));
            // A closed sender would hang the terminal up before the program has answered.
            loop {
                std::thread::park();
            }
        }
    };
    std::thread::Builder::new().name("stdin".to_owned()).spawn(reader).map(drop)
}
