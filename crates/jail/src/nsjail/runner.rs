//! The runner: one nsjail in the box, for one command.
//!
//! It stays in the host's namespaces and outside the box's cgroups, so that nothing the box does can reach it. Its
//! child goes in. The child ends with it, by the death signal that nsjail sets.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use rustix::thread::{ThreadNameSpaceType, move_into_thread_name_spaces};
use sandcrate_sys::process::{Ended, Fork, SingleThreaded, WaitStatus, exit_now, fork, reap};

use super::{Nsjail, RunOrder, STAGE, join, next};
use crate::channel::Channel;
use crate::identity::become_ids;
use crate::init::command::Never;
use crate::message::{EndStatus, Failure, InitReply, InitRequest, ProcessEnd, Step};

/// Commands are the first to go when the box is out of memory.
const OOM_SCORE: &[u8] = b"500";

pub(super) fn run() -> ! {
    let Ok(control) = sandcrate_sys::fd::take_stdin().map(Channel::from) else { exit_now(1) };
    if let Err(failure) = serve(&control) {
        let _ = control.send(&InitReply::StartFailed { id: 0, failure }, &[]);
        exit_now(1);
    }
    exit_now(0)
}

fn serve(control: &Channel) -> Result<(), Failure> {
    let proof = SingleThreaded::prove().step("counting threads")?;
    sandcrate_sys::signal::block_all().step("blocking signals")?;
    sandcrate_sys::signal::block_child_ends().step("watching for the end")?;
    let Some((order, fds)) = control.recv::<RunOrder>().step("reading the order")? else { return Ok(()) };
    let (pid, _pidfd) = start(&proof, &order, fds, control)?;
    let signals = sandcrate_sys::fd::child_signals().step("watching for the end")?;
    loop {
        while let Ok(Some(ended)) = reap() {
            if ended.pid == pid.as_raw_pid() {
                let _ = control.send(&InitReply::Exited { id: 0, ended: end_of(&ended) }, &[]);
                return Ok(());
            }
        }
        let mut ready = [PollFd::new(control, PollFlags::IN), PollFd::new(&signals, PollFlags::IN)];
        match poll(&mut ready, None) {
            Err(rustix::io::Errno::INTR) => continue,
            other => other.step("waiting")?,
        };
        if !ready[0].revents().is_empty() {
            match control.recv::<InitRequest>() {
                Ok(Some((InitRequest::Signal { signal, .. }, _))) => {
                    Signal::from_named_raw(signal).into_iter().for_each(|signal| send(pid, signal));
                }
                Ok(Some((InitRequest::Terminate { .. }, _))) => send(pid, Signal::TERM),
                Ok(Some((InitRequest::Kill { .. }, _))) => send(pid, Signal::KILL),
                Ok(Some(_)) => {}
                // The owner is gone, and with him the reason for the command.
                _ => {
                    send(pid, Signal::KILL);
                    return Ok(());
                }
            }
        }
        let _ = rustix::io::read(&signals, &mut [0_u8; 1024]);
    }
}

/// To the program's process group; before it has one, to the process. It is not reaped yet, so it is nobody else.
fn send(pid: Pid, signal: Signal) {
    if kill_process_group(pid, signal).is_err() {
        let _ = kill_process(pid, signal);
    }
}

fn start(
    proof: &SingleThreaded,
    order: &RunOrder,
    fds: Vec<OwnedFd>,
    control: &Channel,
) -> Result<(Pid, OwnedFd), Failure> {
    let mut fds = fds.into_iter();
    let (nsjail, program, configuration, log) =
        (next(&mut fds)?, next(&mut fds)?, next(&mut fds)?, next(&mut fds)?);
    let (holder, channel) = (next(&mut fds)?, next(&mut fds)?);
    let nsjail = Nsjail { nsjail, program, configuration, log, channel };
    let tasks: Vec<OwnedFd> = fds.by_ref().take(order.tasks).collect();
    let cgroup = if order.unified { Some(next(&mut fds)?) } else { None };
    // Of the children only: this process stays where it is.
    move_into_thread_name_spaces(holder.as_fd(), ThreadNameSpaceType::PROCESS_ID)
        .step("entering the box's processes")?;
    match fork(proof, 0, cgroup.as_ref().map(AsFd::as_fd)).step("starting a process")? {
        Fork::Parent { pid, pidfd } => {
            let pid = Pid::from_raw(pid);
            let pid =
                pid.ok_or_else(|| Failure { step: "a process without a pid".into(), errno: libc::EINVAL });
            Ok((pid?, pidfd))
        }
        Fork::Child(_) => {
            let failure = match enter(nsjail, &holder, tasks) {
                Err(failure) => failure,
                Ok(never) => match never {},
            };
            let _ = control.send(&InitReply::StartFailed { id: 0, failure }, &[]);
            exit_now(126)
        }
    }
}

/// The child's side: into the box, then nsjail takes over.
fn enter(nsjail: Nsjail, holder: &OwnedFd, tasks: Vec<OwnedFd>) -> Result<Never, Failure> {
    let count = tasks.len();
    join(&mut tasks.into_iter(), count)?;
    // While /proc is the host's and we are its root.
    File::options()
        .write(true)
        .open("/proc/self/oom_score_adj")
        .and_then(|mut file| file.write_all(OOM_SCORE))
        .step("setting the OOM score")?;
    let others = ThreadNameSpaceType::USER
        | ThreadNameSpaceType::MOUNT
        | ThreadNameSpaceType::NETWORK
        | ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION
        | ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME
        | ThreadNameSpaceType::CONTROL_GROUP;
    move_into_thread_name_spaces(holder.as_fd(), others).step("entering the box")?;
    become_ids(0, 0).step("becoming the box's root")?;
    nsjail.become_it(STAGE)
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
