//! The holder: PID 1 of the box. It starts nothing; it is there so that the box has a life of its own.

use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{DumpableBehavior, PidfdFlags, getpid, pidfd_open};
use sandcrate_sys::process::{SingleThreaded, exit_now, reap};

use super::findings;
use crate::channel::Channel;
use crate::identity::INIT_USER;
use crate::message::{Failure, InitReply, InitRequest, Step};

pub(super) fn run() -> ! {
    let Ok(control) = sandcrate_sys::fd::take_stdin().map(Channel::from) else { exit_now(1) };
    if let Err(failure) = hold(&control) {
        let _ = control.send(&InitReply::Failed { failure }, &[]);
        exit_now(1);
    }
    exit_now(0)
}

fn hold(control: &Channel) -> Result<(), Failure> {
    let _proof = SingleThreaded::prove().step("counting threads")?;
    sandcrate_sys::signal::block_all().step("blocking signals")?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).step("closing to tracers")?;
    findings::verify(INIT_USER)?;
    let signals = sandcrate_sys::fd::child_signals().step("watching children")?;
    // A pidfd means the same in every namespace: by it commands find the box.
    let own = pidfd_open(getpid(), PidfdFlags::empty()).step("opening the box's own pidfd")?;
    control
        .send(&InitReply::Configured { enforcement: findings::look_around() }, &[own.as_fd()])
        .step("reporting to the owner")?;
    drop(own);
    loop {
        while let Ok(Some(_)) = reap() {}
        let mut ready = [PollFd::new(control, PollFlags::IN), PollFd::new(&signals, PollFlags::IN)];
        match poll(&mut ready, None) {
            Err(rustix::io::Errno::INTR) => continue,
            other => other.step("waiting")?,
        };
        if !ready[0].revents().is_empty() && !matches!(control.recv::<InitRequest>(), Ok(Some(_))) {
            return Ok(());
        }
        let _ = rustix::io::read(&signals, &mut [0_u8; 1024]);
    }
}
