//! The hidden roles of a program that drives boxes.

use std::process::ExitCode;

/// Must be the first call of `main`, before any thread exists. In a process that was started as a launcher or as the
/// init of a container it does not return; in a network helper it serves and then has the exit code; in any other it
/// is `None`.
#[must_use]
pub fn dispatch_role() -> Option<ExitCode> {
    sandcrate_jail::dispatch_role();
    sandcrate_net::dispatch_role(|channel| Ok(sandcrate_jail::confine_network_helper(channel)?))
}
