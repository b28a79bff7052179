//! The janitor: outlives a daemon that was killed, for as long as it takes to remove its cgroups.
//!
//! The boxes end by themselves, since their PID 1 does with its connection. What cannot be removed, or a janitor that
//! was killed as well, is left to the next daemon's sweep.

use std::os::fd::AsFd;
use std::path::Path;

use sandcrate_sys::process::{SingleThreaded, exit_now};

use super::JanitorOrder;
use crate::cgroup::{Discovery, sweep};
use crate::channel::Channel;

pub(super) fn run() -> ! {
    // Whatever ends the daemon's terminal or process group is not meant for us.
    let _ = rustix::process::setsid();
    let _ = sandcrate_sys::signal::block_all();
    let Ok(proof) = SingleThreaded::prove() else { exit_now(1) };
    let Ok(control) = sandcrate_sys::fd::take_stdin().map(Channel::from) else { exit_now(1) };
    // Whatever else the daemon had open when it started us must not outlive it.
    if sandcrate_sys::fd::close_all_but(&proof, &[control.as_fd()]).is_err() {
        exit_now(1);
    }
    let Ok(Some((JanitorOrder { instance }, _))) = control.recv() else { exit_now(0) };
    // Nothing more is said: what comes next is the end.
    let _ = control.recv::<JanitorOrder>();
    let swept = Discovery::probe(Path::new("/")).and_then(|found| sweep(&found, &instance));
    exit_now(i32::from(swept.is_err()))
}
