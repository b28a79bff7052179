//! From a request to a running program: what happens between clone and exec.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::process::DumpableBehavior;
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use rustix::thread::CapabilitySet;
use sandcrate_sys::process::{ArgList, execve, exit_now};
use sandcrate_sys::seccomp::Instruction;

use super::oom_score;
use super::path_walk::enter_directory;
use crate::channel::Channel;
use crate::identity::{IdMapping, become_ids};
use crate::message::{Failure, InitReply, StartCommand, Step};
use crate::privileges;

/// Whose identity a child of init takes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Identity {
    pub(super) mapping: IdMapping,
    pub(super) user: u32,
}

/// Standard streams of a program.
#[derive(Debug)]
pub(crate) enum Stdio {
    Pipes { stdin: OwnedFd, stdout: OwnedFd, stderr: OwnedFd },
    Terminal { slave: OwnedFd },
}

/// A new terminal of the box: its master end for the daemon, its slave for the program.
pub(crate) fn open_terminal(rows: u16, cols: u16) -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let master = openat(CWD, "/dev/pts/ptmx", flags, Mode::empty())?;
    unlockpt(&master)?;
    let slave = ioctl_tiocgptpeer(&master, OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    tcsetwinsize(&master, Winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 })?;
    Ok((master, slave))
}

/// The child's side: becomes the program, or reports why not, and ends.
pub(super) fn become_program(
    id: u32,
    command: &StartCommand,
    stdio: &Stdio,
    memory_tasks: Option<BorrowedFd<'_>>,
    identity: Identity,
    filter: &[Instruction],
    control: &Channel,
) -> ! {
    let failure = match try_become(id, command, stdio, memory_tasks, identity, filter) {
        Err(failure) => failure,
        Ok(never) => match never {},
    };
    let _ = control.send(&InitReply::StartFailed { id, failure }, &[]);
    exit_now(127)
}

pub(crate) enum Never {}

fn try_become(
    id: u32,
    command: &StartCommand,
    stdio: &Stdio,
    memory_tasks: Option<BorrowedFd<'_>>,
    identity: Identity,
    filter: &[Instruction],
) -> Result<Never, Failure> {
    if let Some(tasks) = memory_tasks {
        // By whoever opened the file: we could not.
        rustix::io::write(tasks, b"0").step("bounding the memory")?;
    }
    rustix::process::setsid().step("starting a session")?;
    connect(stdio).step("connecting the streams")?;
    // Before the directory is entered: nothing of init's is to be found through /proc/self/fd, and nothing
    // passes the exec.
    sandcrate_sys::fd::close_on_exec_from_3().step("closing descriptors")?;
    take_identity(identity)?;
    enter_directory(&command.cwd)
        .step_with(|| format!("entering {}", String::from_utf8_lossy(&command.cwd)))?;
    let (argv, env) = arguments(id, command)?;
    sandcrate_sys::signal::unblock_all().step("unblocking signals")?;
    // Last before the exec: the filter refuses much of the above.
    sandcrate_sys::seccomp::load(filter).step("loading the seccomp filter")?;
    exec(&argv, &env)
}

pub(crate) fn connect(stdio: &Stdio) -> io::Result<()> {
    match stdio {
        Stdio::Pipes { stdin, stdout, stderr } => {
            sandcrate_sys::fd::set_stdio(stdin.as_fd(), stdout.as_fd(), stderr.as_fd())
        }
        Stdio::Terminal { slave } => {
            rustix::process::ioctl_tiocsctty(slave)?;
            let slave: BorrowedFd<'_> = slave.as_fd();
            sandcrate_sys::fd::set_stdio(slave, slave, slave)
        }
    }
}

/// Becomes the box's user without any capability.
pub(super) fn take_identity(identity: Identity) -> Result<(), Failure> {
    if !identity.mapping.is_rootless() {
        // /proc/self belongs to us only while we are dumpable. Nobody can use that: we still have init's id,
        // which no command has.
        rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable).step("opening /proc/self")?;
        let adjusted = File::options()
            .write(true)
            .open("/proc/self/oom_score_adj")
            .and_then(|mut file| file.write_all(oom_score::RAISED.to_string().as_bytes()));
        rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).step("closing /proc/self")?;
        adjusted.step("setting the OOM score")?;
        become_ids(identity.user, identity.user).step("becoming the box's user")?;
    }
    privileges::set_only(CapabilitySet::empty()).step("dropping capabilities")
}

pub(crate) fn arguments(id: u32, command: &StartCommand) -> Result<(ArgList, ArgList), Failure> {
    let mut argv = command.argv.clone();
    if let Some(script) = &command.script {
        let path = script_path(id);
        write_script(&path, script).step("writing the command to a file")?;
        argv.push(path.into_bytes());
    }
    let list = |strings: Vec<Vec<u8>>| -> Result<ArgList, Failure> {
        let strings = strings.into_iter().map(CString::new).collect::<Result<_, _>>();
        Ok(ArgList::new(strings.map_err(io::Error::other).step("an argument with a NUL byte")?))
    };
    Ok((list(argv)?, list(command.env.clone())?))
}

/// Where a command too long for an argument lies while it runs.
pub(crate) fn script_path(id: u32) -> String {
    format!("/tmp/.command-{id}")
}

fn write_script(path: &str, script: &[u8]) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    File::from(openat(CWD, path, flags, Mode::from_raw_mode(0o600))?).write_all(script)
}

/// As execvp(3) does: a name without a slash is looked for along the program's own PATH.
pub(crate) fn exec(argv: &ArgList, env: &ArgList) -> Result<Never, Failure> {
    let program = argv.strings()[0].as_bytes();
    if program.contains(&b'/') {
        let error = execve(&argv.strings()[0], argv, env);
        return Err(error).step_with(|| execution_step(program));
    }
    let path = env.strings().iter().find_map(|variable| variable.as_bytes().strip_prefix(b"PATH="));
    let mut last = io::Error::from_raw_os_error(libc::ENOENT);
    for directory in path.unwrap_or(b"/usr/local/bin:/usr/bin:/bin").split(|byte| *byte == b':') {
        let directory: &[u8] = if directory.is_empty() { b"." } else { directory };
        let candidate = [directory, b"/", program].concat();
        let Ok(candidate) = CString::new(candidate) else { continue };
        // A failed execve costs twenty times as much as a look.
        if rustix::fs::access(&candidate, rustix::fs::Access::EXISTS).is_err() {
            continue;
        }
        let error = execve(&candidate, argv, env);
        match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENOTDIR) => {}
            // Remembered, but a later directory may have one that can be executed.
            Some(libc::EACCES) => last = error,
            _ => return Err(error).step_with(|| execution_step(candidate.as_bytes())),
        }
    }
    Err(last).step_with(|| execution_step(program))
}

fn execution_step(program: &[u8]) -> String {
    format!("{EXECUTING}{}", OsStr::from_bytes(program).to_string_lossy())
}

/// How a failure to execute the program itself begins; the daemon tells it from failures of ours.
pub const EXECUTING: &str = "executing ";
