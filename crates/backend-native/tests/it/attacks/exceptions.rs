//! What cannot hold for an ordinary user, with the reason; SECURITY.md repeats this table.
//!
//! As root there are no exceptions. An exception only counts while the control it names is really not enforced, and
//! one for lack of cgroups only while the user has none to write to: a machine with the feature runs the trial.
//! `SANDCRATE_TEST_REQUIRE` takes names of controls (`memory,pids`) whose exceptions do not count at all.

use std::collections::BTreeMap;
use std::path::Path;

use rustix::fs::{Access, access};
use sandcrate_protocol::{Control, Enforcement};

const REQUIRE_VARIABLE: &str = "SANDCRATE_TEST_REQUIRE";

pub(super) struct Exception {
    /// The beginning of a trial's name, up to the number.
    trial: &'static str,
    /// Without this control the trial cannot hold.
    without: Control,
    why: &'static str,
}

const fn exception(trial: &'static str, without: Control, why: &'static str) -> Exception {
    Exception { trial, without, why }
}

const ONE_PROCESS: &str = "without cgroups memory is limited per process (RLIMIT_DATA), not for the box";
const NOT_CHARGED: &str = "without cgroups this memory is charged to nobody";
const PRIVATE_ONLY: &str =
    "without cgroups only private memory is limited (RLIMIT_DATA), and nothing reports an OOM kill";
const SAME_USER: &str = "init has the commands' host id; the filter keeps them off it, but a pidfd takes signals, \
                         which the kernel withholds from a PID 1";
const KEPT_GROUPS: &str =
    "an ordinary user cannot give up supplementary groups in a user namespace (user_namespaces(7))";
const NEEDS_ROOT: &str = "only root can make a file of root's or a device to share";

pub(super) const EXCEPTIONS: &[Exception] = &[
    exception("rs_03_memory_stops", Control::Memory, PRIVATE_ONLY),
    exception("rs_04", Control::Memory, ONE_PROCESS),
    exception("rs_13", Control::Cpu, "without cgroups nothing limits processor time"),
    exception("rs_19", Control::Memory, NOT_CHARGED),
    exception("rs_53", Control::Memory, NOT_CHARGED),
    exception("rs_54", Control::Memory, NOT_CHARGED),
    exception("rs_55", Control::Memory, NOT_CHARGED),
    exception("pr_06", Control::Identity, KEPT_GROUPS),
    exception("pr_57", Control::Identity, SAME_USER),
    exception("fs_23_a_setuid_file_of_root", Control::Identity, NEEDS_ROOT),
    exception("fs_24_a_device_of_a_shared", Control::Identity, NEEDS_ROOT),
];

/// Why a trial cannot run here; `None` when it must.
pub(super) fn missing(trial: &str, enforcement: &Enforcement, writable_root: bool) -> Option<String> {
    if rustix::process::geteuid().is_root() {
        return None;
    }
    if trial.starts_with("writable_root_") && !writable_root {
        return Some("an ordinary user has no writable root: it cannot own the system's files".to_owned());
    }
    let found = EXCEPTIONS.iter().find(|exception| trial.starts_with(exception.trial))?;
    let required = std::env::var(REQUIRE_VARIABLE).unwrap_or_default();
    let cgroups = matches!(found.without, Control::Memory | Control::Cpu | Control::Pids) && has_cgroups();
    let counts = !enforcement.holds(found.without)
        && !cgroups
        && required.split(',').all(|name| name != found.without.name());
    counts.then(|| found.why.to_owned())
}

/// What is skipped, told in few lines: with a writable root it is every trial, for one reason.
#[derive(Default)]
pub(super) struct Skipped(BTreeMap<String, Vec<String>>);

impl Skipped {
    pub(super) fn add(&mut self, trial: &str, why: &str) {
        self.0.entry(why.to_owned()).or_default().push(trial.to_owned());
    }

    pub(super) fn tell(&self) {
        for (why, trials) in &self.0 {
            match &trials[..] {
                [first, .., _] if first.starts_with("writable_root_") => {
                    eprintln!("SKIP: attack::writable_root_*, {} trials: {why}", trials.len());
                }
                all => all.iter().for_each(|trial| eprintln!("SKIP: attack::{trial}: {why}")),
            }
        }
    }
}

/// Looked up without Sandcrate's own discovery, which is under test: a cgroup of ours that we may add to.
fn has_cgroups() -> bool {
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    own.lines().any(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { return false };
        // Only hierarchies with a controller are of use.
        let controlled = controllers.is_empty()
            || ["memory", "pids", "cpu"].iter().any(|name| controllers.split(',').any(|c| c == *name));
        let mounts = [
            Path::new("/sys/fs/cgroup").join(controllers),
            "/sys/fs/cgroup/unified".into(),
            "/sys/fs/cgroup".into(),
        ];
        controlled
            && mounts.iter().any(|mount| {
                let directory = mount.join(path.trim_start_matches('/'));
                directory.join("cgroup.procs").exists() && access(&directory, Access::WRITE_OK).is_ok()
            })
    })
}
