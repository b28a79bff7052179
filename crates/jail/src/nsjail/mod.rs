//! Our part in a box that nsjail makes.
//!
//! nsjail runs once for a session, as the parent of the box's PID 1, and once for every command: inside the
//! session's namespaces, where it gives up what the command must not have, and becomes it. What it does not do is
//! done by four roles of this program:
//!
//! - the maker joins the session's cgroups, lays out root, files and sources in a mount namespace that nobody else
//!   sees, and becomes the session's nsjail;
//! - the holder is PID 1 of the box: it reaps orphans, and ends with its owner's connection, and all with it;
//! - the runner starts the nsjail of one command in the box, waits for it and passes on signals;
//! - the stage is what that nsjail executes: it looks whether it was really confined, then becomes the command or
//!   does a file operation.
//!
//! Two more stand beside them: the trial becomes an nsjail that has nothing to do, to see whether it can be used; the
//! janitor removes the cgroups of a daemon that was killed.
//!
//! The first two words of a conversation are the daemon's: an order, with descriptors beside it.

mod findings;
mod holder;
mod janitor;
mod maker;
mod runner;
mod stage;
mod trial;

use std::ffi::{CString, OsStr};
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::io::{FdFlags, fcntl_setfd};
use sandcrate_sys::process::{ArgList, execve};
use serde::{Deserialize, Serialize};

use crate::init::command::Never;
use crate::message::{Failure, FileOperation, StartCommand, Step};
use crate::plan::{Access, NodeKind};
pub use crate::template::{generate_etc, hidden_in_proc};

/// The whole argument list of the roles that the daemon starts.
pub const MAKER: &str = "sandcrate-nsjail-box";
pub const RUNNER: &str = "sandcrate-nsjail-run";
pub const TRIAL: &str = "sandcrate-nsjail-trial";
pub const JANITOR: &str = "sandcrate-nsjail-janitor";
/// The one argument of those that nsjail starts.
const HOLDER: &str = "sandcrate-nsjail-init";
const STAGE: &str = "sandcrate-nsjail-command";
/// nsjail executes us by a descriptor, since the box has no path to us.
const BY_DESCRIPTOR: &[u8] = b"/proc/self/fd/";

/// Where the maker has what it made, in its own mount namespace: paths for nsjail's configuration.
pub const ROOT: &str = "/tmp/root";
pub const FILES: &str = "/tmp/files";
pub const SOURCES: &str = "/tmp/sources";
pub const EMPTY: &str = "/tmp/empty";
pub const BLANK: &str = "/tmp/blank";

/// What the maker makes. Descriptors: nsjail, this program, the configuration, the log, the holder's end of its
/// channel, the `tasks` files, the v2 cgroup, the /etc of boxes, the storage, the sources.
#[derive(Debug, Serialize, Deserialize)]
pub struct BoxOrder {
    pub tasks: usize,
    pub unified: bool,
    /// Box id of commands.
    pub user: u32,
    pub sources: Vec<SourceOrder>,
    /// Where something will be mounted in the root itself.
    pub places: Vec<(String, NodeKind)>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct SourceOrder {
    /// For messages.
    pub name: String,
    /// Owner and group on disk.
    pub owner: (u32, u32),
    pub access: Access,
    pub kind: NodeKind,
}

/// What the runner runs. Descriptors: nsjail, this program, the configuration, the log, the holder's pidfd, the
/// stage's end of its channel, the `tasks` files, the command's v2 cgroup.
#[derive(Debug, Serialize, Deserialize)]
pub struct RunOrder {
    pub tasks: usize,
    pub unified: bool,
}

/// Become nsjail, which will execute the stage. Descriptors: nsjail, this program, the configuration, the log, the
/// stage's end of its channel.
#[derive(Debug, Serialize, Deserialize)]
pub struct TrialOrder;

/// Whose cgroups are removed when the owner of the channel is gone.
#[derive(Debug, Serialize, Deserialize)]
pub struct JanitorOrder {
    pub instance: String,
}

/// What the stage does. Descriptors: the streams of a command without a terminal, or the pipe of a file operation.
#[derive(Debug, Serialize, Deserialize)]
pub struct StageOrder {
    /// Names files of this command in the box.
    pub id: u32,
    /// Who it must be by now.
    pub user: u32,
    /// Bounds the data of each process, where no cgroup bounds the box.
    pub data_bytes: Option<u64>,
    pub task: StageTask,
}

#[derive(Debug, Serialize, Deserialize)]
pub enum StageTask {
    Command(StartCommand),
    File(FileOperation),
}

/// The file in the box that holds a script too long for an argument, while its command runs.
pub fn script_path(id: u32) -> String {
    crate::init::command::script_path(id)
}

/// In a process that was started in one of the roles, does not return.
pub(crate) fn dispatch() {
    let mut arguments = std::env::args_os();
    let (Some(name), first, None) = (arguments.next(), arguments.next(), arguments.next()) else { return };
    match first {
        None if name == MAKER => maker::run(),
        None if name == RUNNER => runner::run(),
        None if name == TRIAL => trial::run(),
        None if name == JANITOR => janitor::run(),
        Some(role) if name.as_bytes().starts_with(BY_DESCRIPTOR) => {
            if role == OsStr::new(HOLDER) {
                holder::run();
            }
            if role == OsStr::new(STAGE) {
                stage::run();
            }
        }
        _ => {}
    }
}

/// What nsjail is started with.
struct Nsjail {
    nsjail: OwnedFd,
    program: OwnedFd,
    configuration: OwnedFd,
    log: OwnedFd,
    /// Standard input of what it executes.
    channel: OwnedFd,
}

impl Nsjail {
    /// The first five descriptors of an order, when they come in the order of the fields.
    fn take(fds: &mut impl Iterator<Item = OwnedFd>) -> Result<Self, Failure> {
        Ok(Self {
            nsjail: next(fds)?,
            program: next(fds)?,
            configuration: next(fds)?,
            log: next(fds)?,
            channel: next(fds)?,
        })
    }

    /// Becomes nsjail, which will execute this program as `role`. It finds everything by descriptors.
    fn become_it(self, role: &str) -> Result<Never, Failure> {
        sandcrate_sys::fd::set_stdio(self.channel.as_fd(), self.log.as_fd(), self.log.as_fd())
            .step("connecting nsjail")?;
        for fd in [&self.nsjail, &self.program, &self.configuration] {
            fcntl_setfd(fd, FdFlags::empty()).step("passing descriptors to nsjail")?;
        }
        let path = |fd: &OwnedFd| format!("/proc/self/fd/{}", fd.as_raw_fd());
        let program = path(&self.program);
        let list = |words: &[&str]| -> Result<ArgList, Failure> {
            let words = words.iter().map(|word| CString::new(*word)).collect::<Result<_, _>>();
            Ok(ArgList::new(words.map_err(std::io::Error::other).step("naming nsjail's arguments")?))
        };
        let configuration = path(&self.configuration);
        let argv = list(&["nsjail", "--config", &configuration, "--execute_fd", "--", &program, role])?;
        let executable = CString::new(path(&self.nsjail)).map_err(std::io::Error::other);
        Err(execve(&executable.step("naming nsjail")?, &argv, &list(&[])?)).step("executing nsjail")
    }
}

/// The next of the descriptors that came with an order.
fn next(fds: &mut impl Iterator<Item = OwnedFd>) -> Result<OwnedFd, Failure> {
    fds.next().ok_or_else(|| Failure { step: "a descriptor was not handed in".into(), errno: libc::EBADF })
}

/// Joins v1 cgroups: only a thread that moves itself is spared the kernel's global lock.
fn join(fds: &mut impl Iterator<Item = OwnedFd>, tasks: usize) -> Result<(), Failure> {
    for _ in 0..tasks {
        std::fs::File::from(next(fds)?).write_all(b"0").step("joining a cgroup")?;
    }
    Ok(())
}
