//! Landlock: a second line for file access, should a mount or a permission ever be wrong.
//!
//! One domain for the whole box, entered by init: commands of different execs can signal each other, and
//! nobody outside.

use std::os::fd::{BorrowedFd, OwnedFd};

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetStatus, Scope,
};
use rustix::fs::{FileType, Mode, OFlags, open};
use sandcrate_protocol::State;

use crate::message::{Failure, Step};

/// The newest set of rights this policy was written for.
const KNOWN: ABI = ABI::V6;

/// Restricts this process and all it will start: reading and executing everywhere, writing below `writable`
/// (and in `own`, init's cgroup directory). Returns what the kernel made of it.
pub(crate) fn restrict(writable: &[String], own: Option<BorrowedFd<'_>>) -> Result<(State, String), Failure> {
    build(writable, own)
        .map_err(|error| Failure { step: format!("entering Landlock ({error})"), errno: libc::EPERM })
}

/// Restricts this process to what it has open: no file, no listening, nobody else's abstract sockets and processes.
pub(crate) fn restrict_to_nothing() -> Result<State, Failure> {
    let build = || -> Result<RulesetStatus, landlock::RulesetError> {
        let rules = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(KNOWN))?
            .handle_access(AccessNet::BindTcp)?
            .scope(Scope::from_all(KNOWN))?
            .create()?;
        Ok(rules.restrict_self()?.ruleset)
    };
    let status = build()
        .map_err(|error| Failure { step: format!("entering Landlock ({error})"), errno: libc::EPERM })?;
    Ok(match status {
        RulesetStatus::FullyEnforced => State::Enforced,
        RulesetStatus::PartiallyEnforced => State::Degraded,
        RulesetStatus::NotEnforced => State::Absent,
    })
}

fn build(
    writable: &[String],
    own: Option<BorrowedFd<'_>>,
) -> Result<(State, String), Box<dyn std::error::Error>> {
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(KNOWN))?
        .scope(Scope::from_all(KNOWN))?
        .create()?
        .add_rule(PathBeneath::new(place("/")?, AccessFs::from_read(KNOWN)))?;
    for path in writable {
        let place = place(path)?;
        // Rights on directories, asked for on a file, would count as not enforced.
        let is_file =
            rustix::fs::fstat(&place).is_ok_and(|facts| FileType::from_raw_mode(facts.st_mode).is_file());
        let rights = if is_file { AccessFs::from_file(KNOWN) } else { AccessFs::from_all(KNOWN) };
        rules = rules.add_rule(PathBeneath::new(place, rights))?;
    }
    if let Some(directory) = own {
        rules = rules.add_rule(PathBeneath::new(directory, AccessFs::from_all(KNOWN)))?;
    }
    let status = rules.restrict_self()?;
    Ok(match status.ruleset {
        RulesetStatus::FullyEnforced => (State::Enforced, "Landlock ABI 6: writes only below the box's writable directories; signals and abstract sockets stay inside".to_owned()),
        RulesetStatus::PartiallyEnforced => (State::Degraded, "Landlock of an older kernel: files are covered, signals and abstract sockets are left to the namespaces".to_owned()),
        RulesetStatus::NotEnforced => (State::Absent, "the kernel has no Landlock; mounts and permissions stand alone".to_owned()),
    })
}

fn place(path: &str) -> Result<OwnedFd, Failure> {
    open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).step_with(|| format!("opening {path}"))
}
