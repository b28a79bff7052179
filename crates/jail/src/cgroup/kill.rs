//! Ends every process of a cgroup and of those below it.
//!
//! `cgroup.kill` (Linux 5.14) does it at once, whatever forks. Without it, on v1 or an older v2,
//! the listed processes are killed until none is listed; a fork bomb is then held by its pids
//! limit only.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::dir::{open_dir, read_file, retry_while_busy, subdirs, write_file};

/// Bounds the pidfds held in one round; the rest follows in the next.
const BATCH: usize = 512;

pub(super) fn kill_all(dir: BorrowedFd<'_>) -> io::Result<()> {
    match write_file(dir, "cgroup.kill", "1") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => kill_listed(dir),
        result => result,
    }
}

fn kill_listed(dir: BorrowedFd<'_>) -> io::Result<()> {
    retry_while_busy(|| {
        let listed = pids_below(dir)?;
        if listed.is_empty() {
            return Ok(());
        }
        let open = |pid: Pid| Some((pid, pidfd_open(pid, PidfdFlags::empty()).ok()?));
        let held: Vec<_> = listed.into_iter().take(BATCH).filter_map(open).collect();
        // A pid may have gone to a stranger before its pidfd was opened: one that is still listed
        // now is either the process we hold, or ours is dead and the signal goes nowhere.
        let still = pids_below(dir)?;
        for (pid, pidfd) in &held {
            if still.contains(pid) {
                match pidfd_send_signal(pidfd, Signal::KILL) {
                    Ok(()) | Err(Errno::SRCH) => {}
                    Err(errno) => return Err(errno.into()),
                }
            }
        }
        Err(Errno::BUSY.into())
    })
}

/// The processes of `dir` and of every cgroup below it.
pub(super) fn pids_below(dir: BorrowedFd<'_>) -> io::Result<HashSet<Pid>> {
    let text = read_file(dir, "cgroup.procs")?;
    let mut pids: HashSet<Pid> = text.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)).collect();
    for child in subdirs(dir)? {
        pids.extend(pids_below(open_dir(dir, child)?.as_fd())?);
    }
    Ok(pids)
}
