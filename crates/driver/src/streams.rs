//! A command's streams: pipes or a terminal, and the futures that move their bytes.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bytes::Bytes;
use rustix::termios::{Winsize, tcsetwinsize};
use sandcrate_backend::{ExecEvent, ExecutionEnds, PtySize, Stream};
use tokio::sync::{Semaphore, mpsc, watch};

use crate::fd_io::FdIo;
use crate::pumps::{feed, pump};

/// Our ends of the streams; none at all is a command that never had any.
#[derive(Debug, Default)]
pub struct Streams {
    stdin: Option<Arc<FdIo>>,
    stdout: Option<Output>,
    stderr: Option<Output>,
    terminal: Terminal,
}

/// Where a stream's output is read.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) io: Arc<FdIo>,
    /// Of a pipe, the program's end too, for as long as the program runs: or its end would be told once for each pipe,
    /// while it is still under way, before it is told at all. It costs a descriptor.
    pub(crate) held: Option<OwnedFd>,
}

/// The terminal of a command that has one.
#[derive(Debug, Default, Clone)]
pub struct Terminal(Option<Arc<FdIo>>);

impl Streams {
    /// By our ends of three pipes.
    pub(crate) fn by_pipes(stdin: Option<FdIo>, stdout: Output, stderr: Output) -> Self {
        let (stdout, stderr) = (Some(stdout), Some(stderr));
        Self { stdin: stdin.map(Arc::new), stdout, stderr, terminal: Terminal(None) }
    }

    /// By the master end of a terminal.
    pub fn terminal(master: OwnedFd) -> io::Result<Self> {
        let master = Some(Arc::new(FdIo::new(master)?));
        let stdout = master.clone().map(|io| Output { io, held: None });
        Ok(Self { stdin: master.clone(), stdout, stderr: None, terminal: Terminal(master) })
    }

    pub(crate) fn on_terminal(&self) -> bool {
        self.terminal.0.is_some()
    }

    pub fn its_terminal(&self) -> Terminal {
        self.terminal.clone()
    }

    /// Moves bytes until `steer`, which ends with the command, has ended and the rest of the output is taken. What
    /// `steer` found, and how many bytes were dropped. The pipes stay, for whoever has the time to close them.
    pub async fn carry<T>(
        &mut self,
        input: mpsc::Receiver<Bytes>,
        events: &mpsc::Sender<ExecEvent>,
        drains: &Arc<Semaphore>,
        steer: impl Future<Output = T>,
    ) -> (T, u64) {
        let (finish, finished) = watch::channel(false);
        let on_terminal = self.on_terminal();
        let pump = |stream, output| {
            pump(stream, output, events.clone(), finished.clone(), Arc::clone(drains), on_terminal)
        };
        let out = pump(Stream::Stdout, &mut self.stdout);
        let err = pump(Stream::Stderr, &mut self.stderr);
        let feed = feed(self.stdin.take(), input, finished.clone());
        let steer = async {
            let found = steer.await;
            finish.send_replace(true);
            drop(finish);
            found
        };
        let moving = async { tokio::join!(out, err, feed) };
        // In this order, for the others to see the end at once.
        let (found, (dropped_out, dropped_err, ())) = tokio::join!(biased; steer, moving);
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
