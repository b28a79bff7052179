//! From a request to a running program: what happens between clone and exec.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use rustix::thread::CapabilitySet;
use sandcrate_sys::process::{ArgList, execve};
use sandcrate_sys::seccomp::Instruction;

use super::path_walk::enter_directory;
use crate::identity::{IdMapping, become_ids};
use crate::message::{Failure, StartCommand, Step};
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

pub(crate) enum Never {}

/// The child's side: becomes the program, or says why not. It may be in init's own memory: what it holds when it
/// executes the program must belong to its caller.
pub(super) fn become_program(
    command: &StartCommand,
    program: &Program,
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
    program.place_script(command)?;
    sandcrate_sys::signal::unblock_all().step("unblocking signals")?;
    // Last before the exec: the filter refuses some of the above.
    sandcrate_sys::seccomp::load(filter).step("loading the seccomp filter")?;
    program.exec()
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
        let became = become_ids(identity.user, identity.user).step("becoming the box's user");
        // The memory may be init's, and a change of ids, were it half of one, sets this as the host has it.
        set_dumpable_behavior(DumpableBehavior::NotDumpable).step("closing to tracers")?;
        became?;
    }
    privileges::set_only(CapabilitySet::empty()).step("dropping capabilities")
}

/// A program with its arguments and variables, and where it may lie.
#[derive(Debug)]
pub(crate) struct Program {
    argv: ArgList,
    env: ArgList,
    /// In the directories of its PATH; none for a name with a slash, which is where it lies.
    candidates: Vec<CString>,
    script: Option<String>,
}

impl Program {
    pub(crate) fn new(id: u32, command: &StartCommand) -> Result<Self, Failure> {
        let script = command.script.is_some().then(|| script_path(id));
        let argv = command.argv.iter().cloned().chain(script.clone().map(String::into_bytes));
        let list = |strings: &mut dyn Iterator<Item = Vec<u8>>| -> Result<ArgList, Failure> {
            let strings = strings.map(CString::new).collect::<Result<_, _>>();
            Ok(ArgList::new(strings.map_err(io::Error::other).step("an argument with a NUL byte")?))
        };
        let (argv, env) = (list(&mut argv.into_iter())?, list(&mut command.env.iter().cloned())?);
        let candidates = candidates(argv.strings()[0].as_bytes(), &env);
        Ok(Self { argv, env, candidates, script })
    }

    /// With the identity of whoever is to read it.
    pub(crate) fn place_script(&self, command: &StartCommand) -> Result<(), Failure> {
        match (&self.script, &command.script) {
            (Some(path), Some(text)) => write_script(path, text).step("writing the command to a file"),
            _ => Ok(()),
        }
    }

    /// As execvp(3) does: a name without a slash is looked for along the program's own PATH.
    pub(crate) fn exec(&self) -> Result<Never, Failure> {
        let Self { argv, env, candidates, .. } = self;
        let name = &argv.strings()[0];
        if name.as_bytes().contains(&b'/') {
            return Err(execve(name, argv, env)).step_with(|| execution_step(name.as_bytes()));
        }
        let mut last = io::Error::from_raw_os_error(libc::ENOENT);
        for candidate in candidates {
            // A failed execve costs twenty times as much as a look.
            if rustix::fs::access(candidate, rustix::fs::Access::EXISTS).is_err() {
                continue;
            }
            let error = execve(candidate, argv, env);
            match error.raw_os_error() {
                Some(libc::ENOENT | libc::ENOTDIR) => {}
                // Remembered, but a later directory may have one that can be executed.
                Some(libc::EACCES) => last = error,
                _ => return Err(error).step_with(|| execution_step(candidate.as_bytes())),
            }
        }
        Err(last).step_with(|| execution_step(name.as_bytes()))
    }
}

fn candidates(name: &[u8], env: &ArgList) -> Vec<CString> {
    if name.contains(&b'/') {
        return Vec::new();
    }
    let path = env.strings().iter().find_map(|variable| variable.as_bytes().strip_prefix(b"PATH="));
    let directories = path.unwrap_or(b"/usr/local/bin:/usr/bin:/bin").split(|byte| *byte == b':');
    directories
        .map(|directory| if directory.is_empty() { b"." } else { directory })
        .filter_map(|directory| CString::new([directory, b"/", name].concat()).ok())
        .collect()
}

/// Where a command too long for an argument lies while it runs.
pub(crate) fn script_path(id: u32) -> String {
    format!("/tmp/.command-{id}")
}

fn write_script(path: &str, script: &[u8]) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    File::from(openat(CWD, path, flags, Mode::from_raw_mode(0o600))?).write_all(script)
}

fn execution_step(program: &[u8]) -> String {
    format!("{EXECUTING}{}", OsStr::from_bytes(program).to_string_lossy())
}

/// How a failure to execute the program itself begins; the daemon tells it from failures of ours.
pub const EXECUTING: &str = "executing ";

#[cfg(test)]
mod tests {
    use super::*;

    fn program(argv: &[&str], path: &str) -> Program {
        let command = StartCommand {
            argv: argv.iter().map(|word| word.as_bytes().to_vec()).collect(),
            env: vec![format!("PATH={path}").into_bytes()],
            cwd: b"/".to_vec(),
            terminal: None,
            script: None,
        };
        Program::new(1, &command).unwrap()
    }

    #[test]
    fn a_name_without_a_slash_has_a_candidate_in_every_directory() {
        let found = program(&["x"], "/a::/b").candidates;
        assert_eq!(found, [c"/a/x".to_owned(), c"./x".to_owned(), c"/b/x".to_owned()]);
    }
}
