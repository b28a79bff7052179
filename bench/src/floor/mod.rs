//! The floor: what the kernel itself costs, with nothing of Sandcrate's on the way.
//!
//! Floor C is a bare box made, used for one program and reaped; floor W is a program forked by an init that already
//! lives in such a box, with its streams passed to it. Both come from a small single-threaded process, this program
//! in another hidden role, so that the clone is as cheap as it can be.

mod bare_box;
mod role;
mod static_true;

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::pipe::{PipeFlags, pipe_with};
use sandcrate_jail::Channel;
use serde::{Deserialize, Serialize};

pub(crate) use role::dispatch_role;

/// Not a word a person types; the whole argument list of the floor's launcher.
const ROLE: &str = "sandcrate-bench-floor";

/// What to execute in a bare box.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Payload {
    /// The system's own, dynamically linked.
    True,
    /// A program of one system call.
    StaticTrue,
    /// `sh -c true`.
    Shell,
}

/// To the floor's launcher, or to an init it made.
#[derive(Debug, Serialize, Deserialize)]
enum Request {
    /// Make a box, run the payload, reap it.
    Cold(Payload),
    /// Make a box whose init serves `Warm` over the one descriptor.
    MakeInit,
    /// Run the payload on the three descriptors, reap it.
    Warm(Payload),
}

/// The errno of what failed, if anything.
#[derive(Debug, Serialize, Deserialize)]
struct Reply(Result<(), i32>);

/// The floor's launcher, as the bench holds it. It ends with its channel.
#[derive(Debug)]
pub(crate) struct Floor {
    channel: Mutex<Channel>,
    _child: Child,
}

/// A box with a serving init; it ends when dropped.
#[derive(Debug)]
pub(crate) struct WarmInit {
    channel: Channel,
}

impl Floor {
    pub(crate) fn start() -> io::Result<Self> {
        let (ours, theirs) = Channel::pair()?;
        let child = Command::new("/proc/self/exe")
            .arg0(ROLE)
            .env_clear()
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .current_dir("/")
            .spawn()?;
        answer(&ours)?;
        Ok(Self { channel: Mutex::new(ours), _child: child })
    }

    /// One cold box, from the request to the reaped program.
    pub(crate) fn cold(&self, payload: Payload) -> io::Result<Duration> {
        let started = Instant::now();
        self.ask(&Request::Cold(payload), &[])?;
        Ok(started.elapsed())
    }

    pub(crate) fn warm_init(&self) -> io::Result<WarmInit> {
        let (ours, theirs) = Channel::pair()?;
        self.ask(&Request::MakeInit, &[theirs.as_fd()])?;
        // Or the end of an init that failed would never be seen.
        drop(theirs);
        answer(&ours)?;
        Ok(WarmInit { channel: ours })
    }

    fn ask(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let channel = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        channel.send(request, fds)?;
        answer(&channel)
    }
}

impl WarmInit {
    /// One program: pipes made and passed, the program reaped, its output read to the end.
    pub(crate) fn run(&self, payload: Payload) -> io::Result<Duration> {
        let started = Instant::now();
        let (stdin, _) = pipe_with(PipeFlags::CLOEXEC)?;
        let (stdout_read, stdout) = pipe_with(PipeFlags::CLOEXEC)?;
        let (stderr_read, stderr) = pipe_with(PipeFlags::CLOEXEC)?;
        self.channel.send(&Request::Warm(payload), &[stdin.as_fd(), stdout.as_fd(), stderr.as_fd()])?;
        drop((stdin, stdout, stderr));
        answer(&self.channel)?;
        for stream in [stdout_read, stderr_read] {
            while File::from(stream.try_clone()?).read(&mut [0; 4096])? > 0 {}
        }
        Ok(started.elapsed())
    }
}

/// Waits for the reply to a request.
fn answer(channel: &Channel) -> io::Result<()> {
    match channel.recv::<Reply>()? {
        Some((Reply(Ok(())), _)) => Ok(()),
        Some((Reply(Err(errno)), _)) => Err(io::Error::from_raw_os_error(errno)),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

impl Payload {
    /// The program and its arguments; `static_true` is the descriptor that holds it.
    fn command(self, static_true: &OwnedFd) -> (CString, Vec<CString>) {
        use std::os::fd::AsRawFd;
        match self {
            Self::True => (c"/usr/bin/true".to_owned(), vec![c"true".to_owned()]),
            Self::Shell => {
                (c"/usr/bin/sh".to_owned(), vec![c"sh".to_owned(), c"-c".to_owned(), c"true".to_owned()])
            }
            Self::StaticTrue => {
                let path = format!("/proc/self/fd/{}", static_true.as_raw_fd());
                (CString::new(path).unwrap_or_default(), vec![c"true".to_owned()])
            }
        }
    }
}
