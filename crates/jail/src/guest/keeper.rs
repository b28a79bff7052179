//! One process per command that all its orphans fall to.
//!
//! Without cgroups of its own, a box cannot say whose a process is once its parent is gone. A keeper is a subreaper
//! (prctl(2)): whatever a command leaves behind, however often it forked, becomes the keeper's child, so the tree
//! below the keeper is the command's. It ends when that tree is empty.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use sandcrate_sys::process::{Ended, Fork, SingleThreaded, WaitStatus, exit_now, fork, reap};

use crate::channel::Channel;
use crate::init::command::{Never, Program, Stdio, connect};
use crate::init::path_walk::enter_directory;
use crate::message::{EndStatus, Failure, InitReply, ProcessEnd, StartCommand, Step};
use crate::tree;

/// Commands are the first to go when the box is out of memory.
const OOM_SCORE: &str = "500";

/// What a keeper tells the guest, in one write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Report {
    Started { keeper: i32, program: i32 },
    Ended { keeper: i32, ended: ProcessEnd },
}

impl Report {
    /// Far below PIPE_BUF, so that writes of several keepers do not mix.
    pub(super) const BYTES: usize = 40;

    fn encode(self) -> [u8; Self::BYTES] {
        let (keeper, kind, value, times) = match self {
            Self::Started { keeper, program } => (keeper, 0, program, [0; 3]),
            Self::Ended { keeper, ended } => {
                let (kind, value) = match ended.status {
                    EndStatus::Code(code) => (1, code),
                    EndStatus::Signal(signal) => (2, signal),
                };
                (keeper, kind, value, [ended.user_micros, ended.system_micros, ended.peak_rss_bytes])
            }
        };
        let mut bytes = [0; Self::BYTES];
        for (place, word) in [keeper, kind, value].into_iter().enumerate() {
            bytes[place * 4..][..4].copy_from_slice(&word.to_ne_bytes());
        }
        for (place, word) in times.into_iter().enumerate() {
            bytes[16 + place * 8..][..8].copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    pub(super) fn decode(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let word = |place: usize| bytes[place * 4..][..4].try_into().map(i32::from_ne_bytes).ok();
        let long = |place: usize| bytes[16 + place * 8..][..8].try_into().map(u64::from_ne_bytes).ok();
        let (keeper, value) = (word(0)?, word(2)?);
        let status = match word(1)? {
            0 => return Some(Self::Started { keeper, program: value }),
            1 => EndStatus::Code(value),
            _ => EndStatus::Signal(value),
        };
        let ended =
            ProcessEnd { status, user_micros: long(0)?, system_micros: long(1)?, peak_rss_bytes: long(2)? };
        Some(Self::Ended { keeper, ended })
    }
}

/// The life of a keeper, in a fork of the guest.
pub(super) fn keep(
    proof: &SingleThreaded,
    id: u32,
    command: &StartCommand,
    stdio: Stdio,
    master: Option<OwnedFd>,
    control: &Channel,
    reports: &OwnedFd,
) -> ! {
    // Or the terminal would never hang up.
    drop(master);
    let keeper = rustix::process::getpid().as_raw_pid();
    let refuse = |failure: Failure| -> ! {
        let _ = control.send(&InitReply::StartFailed { id, failure }, &[]);
        let ended = process_end(EndStatus::Code(126));
        tell(reports, Report::Ended { keeper, ended });
        exit_now(0)
    };
    if let Err(failure) =
        rustix::process::set_child_subreaper(Some(rustix::process::getpid())).step("keeping orphans")
    {
        refuse(failure);
    }
    let program = match fork(proof, 0, None) {
        Ok(Fork::Child(_)) => become_program(id, command, &stdio, control),
        Ok(Fork::Parent { pid, .. }) => pid,
        Err(error) => refuse(Failure::new("starting a process", &error)),
    };
    tell(reports, Report::Started { keeper, program });
    // The program must be the only holder of its streams.
    drop(stdio);
    let Ok(signals) = sandcrate_sys::fd::child_signals() else { exit_now(1) };
    loop {
        while let Ok(Some(ended)) = reap() {
            if ended.pid == program {
                tell(reports, Report::Ended { keeper, ended: end_of(&ended) });
            }
        }
        if !tree::has_children() {
            exit_now(0);
        }
        let _ = poll(&mut [PollFd::new(&signals, PollFlags::IN)], None);
        let _ = rustix::io::read(&signals, &mut [0_u8; 1024]);
    }
}

fn tell(reports: &OwnedFd, report: Report) {
    let _ = rustix::io::write(reports, &report.encode());
}

fn process_end(status: EndStatus) -> ProcessEnd {
    ProcessEnd { status, user_micros: 0, system_micros: 0, peak_rss_bytes: 0 }
}

fn end_of(ended: &Ended) -> ProcessEnd {
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    ProcessEnd {
        status: match ended.status {
            WaitStatus::Code(code) => EndStatus::Code(code),
            WaitStatus::Signal(signal) => EndStatus::Signal(signal),
        },
        user_micros: micros(ended.user),
        system_micros: micros(ended.system),
        peak_rss_bytes: ended.peak_rss_bytes,
    }
}

/// The end of a command whose keeper did not live to tell.
pub(super) fn lost() -> ProcessEnd {
    process_end(EndStatus::Signal(libc::SIGKILL))
}

fn become_program(id: u32, command: &StartCommand, stdio: &Stdio, control: &Channel) -> ! {
    let failure = match try_become(id, command, stdio) {
        Err(failure) => failure,
        Ok(never) => match never {},
    };
    let _ = control.send(&InitReply::StartFailed { id, failure }, &[]);
    exit_now(127)
}

fn try_become(id: u32, command: &StartCommand, stdio: &Stdio) -> Result<Never, Failure> {
    rustix::process::setsid().step("starting a session")?;
    connect(stdio).step("connecting the streams")?;
    // Nothing of the guest's passes the exec.
    sandcrate_sys::fd::close_on_exec_from_3().step("closing descriptors")?;
    // Before the exec makes it dumpable again, /proc/self is root's: where we are not, the score stays.
    let _ = File::options()
        .write(true)
        .open("/proc/self/oom_score_adj")
        .and_then(|mut file| file.write_all(OOM_SCORE.as_bytes()));
    enter_directory(&command.cwd)
        .step_with(|| format!("entering {}", String::from_utf8_lossy(&command.cwd)))?;
    let program = Program::new(id, command)?;
    program.place_script(command)?;
    sandcrate_sys::signal::unblock_all().step("unblocking signals")?;
    program.exec()
}

/// Reads every report that is there.
pub(super) fn read_reports(reports: BorrowedFd<'_>) -> Vec<Report> {
    let mut found = Vec::new();
    let mut bytes = [0; Report::BYTES];
    while let Ok(Report::BYTES) = rustix::io::read(reports.as_fd(), &mut bytes) {
        found.extend(Report::decode(&bytes));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_arrive_as_they_were_sent() {
        let ended = ProcessEnd {
            status: EndStatus::Signal(9),
            user_micros: 1,
            system_micros: u64::MAX,
            peak_rss_bytes: 7 << 40,
        };
        for report in [
            Report::Started { keeper: 12, program: 4_194_304 },
            Report::Ended { keeper: 12, ended },
            Report::Ended { keeper: 1, ended: ProcessEnd { status: EndStatus::Code(137), ..ended } },
        ] {
            assert_eq!(Report::decode(&report.encode()), Some(report));
        }
    }
}
