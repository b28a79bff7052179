//! A command's streams: pipes or a terminal, and the futures that move their bytes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use bytes::Bytes;
use rustix::fs::{Gid, Uid, fchown};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::termios::{Winsize, tcsetwinsize};
use sandcrate_backend::{ExecEvent, ExecutionEnds, PtySize, StdinMode, Stream};
use tokio::sync::{Semaphore, mpsc, watch};

use crate::fd_io::FdIo;
use crate::pumps::{feed, pump};

/// Our ends of the streams; none at all is a command that never had any.
#[derive(Debug, Default)]
pub struct Streams {
    stdin: Option<Arc<FdIo>>,
    stdout: Option<Arc<FdIo>>,
    stderr: Option<Arc<FdIo>>,
    terminal: Terminal,
}

/// The terminal of a command that has one.
#[derive(Debug, Default, Clone)]
pub struct Terminal(Option<Arc<FdIo>>);

/// The program's ends.
#[derive(Debug)]
pub struct Pipes {
    stdin: OwnedFd,
    stdout: OwnedFd,
    stderr: OwnedFd,
}

impl Pipes {
    pub fn fds(&self) -> [BorrowedFd<'_>; 3] {
        [self.stdin.as_fd(), self.stdout.as_fd(), self.stderr.as_fd()]
    }
}

impl Streams {
    /// Three pipes, which belong to the box's user.
    pub fn pipes(owner: Option<(u32, u32)>, stdin_mode: StdinMode) -> io::Result<(Pipes, Self)> {
        let pipe = || -> io::Result<_> {
            let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
            if let Some((uid, gid)) = owner {
                // Or the program could not open /dev/stdout again.
                fchown(&read, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
            }
            Ok((read, write))
        };
        let ours = |fd| FdIo::new(fd).map(Arc::new);
        let (stdin, stdin_write) = pipe()?;
        let (stdout_read, stdout) = pipe()?;
        let (stderr_read, stderr) = pipe()?;
        // Dropped here, it is the end of file.
        let stdin_write = (stdin_mode == StdinMode::Piped).then_some(stdin_write);
        let streams = Self {
            stdin: stdin_write.map(ours).transpose()?,
            stdout: Some(ours(stdout_read)?),
            stderr: Some(ours(stderr_read)?),
            terminal: Terminal(None),
        };
        Ok((Pipes { stdin, stdout, stderr }, streams))
    }

    /// By the master end of a terminal.
    pub fn terminal(master: OwnedFd) -> io::Result<Self> {
        let master = Some(Arc::new(FdIo::new(master)?));
        Ok(Self { stdin: master.clone(), stdout: master.clone(), stderr: None, terminal: Terminal(master) })
    }

    pub fn its_terminal(&self) -> Terminal {
        self.terminal.clone()
    }

    /// Moves bytes until `steer`, which ends with the command, has ended and the rest of the output is taken. What
    /// `steer` found, and how many bytes were dropped.
    pub async fn carry<T>(
        self,
        input: mpsc::Receiver<Bytes>,
        events: &mpsc::Sender<ExecEvent>,
        drains: &Arc<Semaphore>,
        steer: impl Future<Output = T>,
    ) -> (T, u64) {
        let (finish, finished) = watch::channel(false);
        let on_terminal = self.terminal.0.is_some();
        let pump = |stream: Stream, io: Option<Arc<FdIo>>| {
            pump(stream, io, events.clone(), finished.clone(), Arc::clone(drains), on_terminal)
        };
        let out = pump(Stream::Stdout, self.stdout);
        let err = pump(Stream::Stderr, self.stderr);
        let feed = feed(self.stdin, input, finished.clone());
        let steer = async {
            let found = steer.await;
            finish.send_replace(true);
            drop(finish);
            found
        };
        let (found, dropped_out, dropped_err, ()) = tokio::join!(steer, out, err, feed);
        (found, dropped_out + dropped_err)
    }
}

impl Terminal {
    pub fn resize(&self, size: PtySize) {
        if let Some(terminal) = &self.0 {
            let size = Winsize { ws_row: size.rows, ws_col: size.cols, ws_xpixel: 0, ws_ypixel: 0 };
            // A terminal that is gone has no size.
            let _ = tcsetwinsize(terminal.get_ref(), size);
        }
    }
}

/// The input of a command, for [`Streams::carry`]; the ends have none afterwards.
pub fn take_input(ends: &mut ExecutionEnds) -> mpsc::Receiver<Bytes> {
    let (_, none) = mpsc::channel(1);
    std::mem::replace(&mut ends.stdin, none)
}
