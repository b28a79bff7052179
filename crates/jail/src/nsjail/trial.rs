//! The trial: an nsjail outside any box that reads a command's configuration and executes the stage, which then finds
//! nothing to do. Whatever an nsjail lacks shows here, and not in the first session.

use sandcrate_sys::process::exit_now;

use super::{Nsjail, STAGE, TrialOrder};
use crate::channel::Channel;
use crate::init::command::Never;
use crate::message::{Failure, InitReply, Step};

pub(super) fn run() -> ! {
    let Ok(control) = sandcrate_sys::fd::take_stdin().map(Channel::from) else { exit_now(1) };
    let failure = match try_it(&control) {
        Err(failure) => failure,
        Ok(never) => match never {},
    };
    let _ = control.send(&InitReply::Failed { failure }, &[]);
    exit_now(1)
}

fn try_it(control: &Channel) -> Result<Never, Failure> {
    let Some((TrialOrder, fds)) = control.recv().step("reading the order")? else { exit_now(1) };
    Nsjail::take(&mut fds.into_iter())?.become_it(STAGE)
}
