//! `sandcrate doctor --attack`: attempts to break out of a box, made inside a box on this machine.
//!
//! The attempts are functions of this program, which is shown to the box read-only and started there in a
//! hidden role, `sandcrate __attack NAME BAIT`. `catalogue` lists them, `host` lays the bait, runs them and
//! judges; the other modules hold what runs inside. Every attempt is harmless where it succeeds.

mod catalogue;
mod files;
mod host;
mod kernel;
mod network;
mod outcome;
mod processes;
mod resources;

use std::process::ExitCode;

use serde::{Deserialize, Serialize};

pub(super) use host::run;
pub(super) use outcome::Verdict;

use crate::output;

/// The hidden role's argument.
const ROLE: &str = "__attack";

/// What the host prepared for attempts to find, and the limits they run under.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Bait {
    /// A file of the host, outside everything that the box may see.
    canary: String,
    /// Its content.
    token: String,
    /// Listeners on the host's loopback; `None` where the host has no such address.
    port4: Option<u16>,
    port6: Option<u16>,
    /// An abstract unix socket of the host.
    abstract_socket: String,
    /// Who made the box.
    uid: u32,
    memory_bytes: u64,
    pids: u32,
    cpu_millis: u32,
    tmp_bytes: u64,
    disk_bytes: u64,
    open_files: u64,
}

/// One attempt with its result.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Tried {
    pub(super) id: String,
    pub(super) name: String,
    /// What is tried, in a sentence.
    pub(super) what: String,
    pub(super) verdict: Verdict,
    pub(super) detail: String,
}

/// Runs one attempt and prints its outcome, when this process was started for that.
pub(crate) fn dispatch_role() -> Option<ExitCode> {
    let mut args = std::env::args().skip(1);
    if args.next()? != ROLE {
        return None;
    }
    let (name, bait) = (args.next().unwrap_or_default(), args.next().unwrap_or_default());
    let attack = catalogue::ALL.iter().find(|attack| attack.name == name);
    let (Some(attack), Ok(bait)) = (attack, serde_json::from_str::<Bait>(&bait)) else {
        return Some(ExitCode::FAILURE);
    };
    let outcome = (attack.inside)(&bait);
    let line = serde_json::to_string(&outcome).unwrap_or_default();
    Some(output::print(&format!("{line}\n")))
}
