//! The system calls a box may make: policies as data, compiled to seccomp BPF.
//!
//! The policies live in `policies/*.toml`, a reason beside each rule. `policy`
//! reads and checks them, `table` knows the call numbers, `compile` turns the
//! result into one filter, `kafel` into text for nsjail. This module only makes filters: the caller compiles
//! once, long before it forks, and loads the instructions through `sys`.
//!
//! A command runs under both filters, because it inherits that of its init, so
//! what `init` refuses no command can have: `init.toml` extends `command.toml`
//! and may only open more.

mod compile;
mod document;
mod kafel;
mod policy;
mod table;

pub use compile::{MAX_INSTRUCTIONS, compile, compile_above};
pub use kafel::kafel;
pub use policy::{Action, Errno, Features, Network, Policy, PolicyError};
pub use sandcrate_sys::seccomp::Instruction;

macro_rules! policy_file {
    ($name:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../policies/", $name))
    };
}

const COMMAND: &str = policy_file!("command.toml");
const INIT: &str = policy_file!("init.toml");

const NETWORK_HELPER: &str = policy_file!("network-helper.toml");

/// The policy of the network helper.
pub fn network_helper_policy() -> Result<Policy, PolicyError> {
    Policy::parse("network-helper", NETWORK_HELPER, &[])
}

/// The filter the network helper loads before it reads a packet.
pub fn network_helper_filter() -> Result<Vec<Instruction>, PolicyError> {
    compile(&network_helper_policy()?, Features { network: Network::On })
}

/// The policy that commands run under.
pub fn command_policy() -> Result<Policy, PolicyError> {
    Policy::parse("command", COMMAND, &[])
}

/// The policy of PID 1 of a box, and of the workers it forks.
pub fn init_policy() -> Result<Policy, PolicyError> {
    Policy::parse("init", INIT, &[command_policy()?])
}

/// The filter of a command that inherits none.
pub fn command_filter(network: Network) -> Result<Vec<Instruction>, PolicyError> {
    compile(&command_policy()?, Features { network })
}

/// The filters of a box.
#[derive(Debug)]
pub struct BoxFilters {
    /// PID 1 loads it before it serves.
    pub init: Vec<Instruction>,
    /// A command loads it between clone and exec, above the one it has from init: it refuses what that leaves open.
    pub command: Vec<Instruction>,
}

/// Reading and compiling the policies takes about a millisecond: do it once.
pub fn box_filters(network: Network) -> Result<BoxFilters, PolicyError> {
    let command = [command_policy()?];
    let init = Policy::parse("init", INIT, &command)?;
    let features = Features { network };
    Ok(BoxFilters { init: compile(&init, features)?, command: compile_above(&command[0], &init, features)? })
}

#[cfg(test)]
#[path = "policy_tests.rs"]
mod policy_tests;

#[cfg(test)]
#[path = "compile_tests.rs"]
mod compile_tests;
