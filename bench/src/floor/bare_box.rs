//! A bare box: six namespaces, four mounts, pivot_root, a small seccomp filter, and then a program or an init that
//! forks programs. No limits, no masks, no identity of its own, no dropped capability: a floor, not a sandbox.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::symlink;

use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind_recursive, unmount};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{WaitId, WaitIdOptions, waitid};
use sandcrate_jail::Channel;
use sandcrate_sys::process::{ArgList, Fork, SingleThreaded, execve, exit_now, fork};
use sandcrate_sys::seccomp::{self, Instruction};

use super::role::reply;
use super::{Payload, Request};

/// Where the launcher's namespace has room for a box's root.
const ROOT: &str = "/box";

/// What a new box is for.
pub(super) enum Life {
    Program(Payload),
    /// Serves over this channel until it ends.
    Init(Channel),
}

/// Makes a box. With a program, returns when it is reaped; with an init, when it is released: it says itself when
/// it serves.
pub(super) fn make(proof: &SingleThreaded, life: Life, static_true: &OwnedFd) -> io::Result<()> {
    const NAMESPACES: i32 = libc::CLONE_NEWUSER
        | libc::CLONE_NEWNS
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNET
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS;
    let (go, release) = pipe_with(PipeFlags::CLOEXEC)?;
    match fork(proof, NAMESPACES as u64, None)? {
        Fork::Child(_) => {
            drop(release);
            let _ = live(proof, life, &go, static_true);
            exit_now(1)
        }
        Fork::Parent { pid, pidfd } => {
            fs::write(format!("/proc/{pid}/uid_map"), "0 0 1")?;
            fs::write(format!("/proc/{pid}/gid_map"), "0 0 1")?;
            rustix::io::write(&release, &[1])?;
            match life {
                Life::Program(_) => reap(&pidfd),
                Life::Init(_) => Ok(()),
            }
        }
    }
}

/// The box's side. Returns only on failure, or when an init's channel has ended.
fn live(proof: &SingleThreaded, life: Life, go: &OwnedFd, static_true: &OwnedFd) -> io::Result<()> {
    rustix::io::read(go, &mut [0])?;
    build_root()?;
    enter_root(ROOT)?;
    rustix::thread::set_no_new_privs(true)?;
    seccomp::load(&FILTER)?;
    match life {
        Life::Program(payload) => Err(execute(payload, static_true)),
        Life::Init(control) => serve(proof, &control, static_true),
    }
}

fn build_root() -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount("tmpfs", ROOT, "tmpfs", flags, c"size=1m,mode=755")?;
    for directory in ["/box/usr", "/box/etc", "/box/proc"] {
        fs::create_dir(directory)?;
    }
    // The program interpreter is named by these.
    for (link, target) in [("/box/bin", "usr/bin"), ("/box/lib", "usr/lib"), ("/box/lib64", "usr/lib64")] {
        symlink(target, link)?;
    }
    mount_bind_recursive("/usr", "/box/usr")?;
    // For the dynamic linker's cache: without it every program looks through a dozen directories.
    mount_bind_recursive("/etc", "/box/etc")?;
    mount("proc", "/box/proc", "proc", flags, None)?;
    Ok(())
}

/// Makes the mount at `new_root` the root and drops the old one.
pub(super) fn enter_root(new_root: &str) -> io::Result<()> {
    rustix::process::chdir(new_root)?;
    rustix::process::pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    rustix::process::chdir("/")?;
    Ok(())
}

fn execute(payload: Payload, static_true: &OwnedFd) -> io::Error {
    let (program, argv) = payload.command(static_true);
    execve(&program, &ArgList::new(argv), &ArgList::new(vec![c"PATH=/usr/bin:/bin".to_owned()]))
}

/// Forks a program for each request and waits for it.
fn serve(proof: &SingleThreaded, control: &Channel, static_true: &OwnedFd) -> io::Result<()> {
    sandcrate_sys::fd::close_all_but(proof, &[control.as_fd(), static_true.as_fd()])?;
    reply(control, &Ok(()))?;
    while let Some((request, fds)) = control.recv::<Request>()? {
        let Request::Warm(payload) = request else { return Ok(()) };
        reply(control, &run(proof, payload, fds, static_true))?;
    }
    Ok(())
}

fn run(proof: &SingleThreaded, payload: Payload, fds: Vec<OwnedFd>, static_true: &OwnedFd) -> io::Result<()> {
    let [stdin, stdout, stderr]: [OwnedFd; 3] = fds.try_into().map_err(|_| io::ErrorKind::InvalidInput)?;
    match fork(proof, 0, None)? {
        Fork::Child(_) => {
            let _ = sandcrate_sys::fd::set_stdio(stdin.as_fd(), stdout.as_fd(), stderr.as_fd());
            execute(payload, static_true);
            exit_now(127)
        }
        Fork::Parent { pidfd, .. } => {
            // Before the wait: the caller reads until the last writer is gone.
            drop((stdin, stdout, stderr));
            reap(&pidfd)
        }
    }
}

fn reap(pidfd: &OwnedFd) -> io::Result<()> {
    let status = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED)?;
    match status.and_then(|status| status.exit_status()) {
        Some(0) => Ok(()),
        _ => Err(io::Error::from_raw_os_error(libc::ECHILD)),
    }
}

/// Refuses reboot(2), allows the rest: what counts here is that there is a filter.
const FILTER: [Instruction; 4] = [
    // Load the number of the system call.
    Instruction { code: 0x20, jt: 0, jf: 0, k: 0 },
    Instruction { code: 0x15, jt: 0, jf: 1, k: libc::SYS_reboot as u32 },
    Instruction { code: 0x06, jt: 0, jf: 0, k: 0x0005_0000 | libc::EPERM as u32 },
    Instruction { code: 0x06, jt: 0, jf: 0, k: 0x7fff_0000 },
];
