//! SIGKILL at any moment, many times over: nothing is left but files, and those go at the next start.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;

use crate::driver::{StateDir, sandcrate, until};
use crate::skip::{Feature, skip_without};

const ROUNDS: u32 = 200;

/// Moments from before the launcher exists to well into the command, in no order.
fn moment(round: u32) -> Duration {
    Duration::from_micros(u64::from(round.wrapping_mul(2_654_435_761) >> 16) % 60_000)
}

#[test]
fn two_hundred_kills_at_any_moment_leave_nothing() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let state = StateDir::new();
    let mut killed = BTreeSet::new();
    for round in 0..ROUNDS {
        // Every tenth with a file system of its own.
        let quota: &[&str] = if round % 10 == 0 { &["--quota", "8M"] } else { &[] };
        let args = [&["run"], quota, &["--", "sh", "-c", "(setsid sleep 300 &); sleep 300"]].concat();
        let running = sandcrate(&args).env("SANDCRATE_STATE_DIR", state.path()).start();
        std::thread::sleep(moment(round));
        running.signal(Signal::KILL);
        // The next start may sweep it away.
        killed.extend(instances(state.path()));
    }
    let instances: Vec<String> = killed.into_iter().collect();
    assert!(instances.len() > ROUNDS as usize / 2, "only {} were killed in their life", instances.len());
    until("every process to go", || processes_of(&instances, state.path()).is_empty().then_some(()));
    until("every cgroup to go", || cgroups_of(&instances).is_empty().then_some(()));
    until("every loop device to go", || loop_devices(state.path()).is_empty().then_some(()));
    until("the next start to remove the files", || {
        sandcrate(&["run", "--", "true"]).env("SANDCRATE_STATE_DIR", state.path()).run().ok();
        names(&state.path().join("instances")).is_empty().then_some(())
    });
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// The dead leave their lock files.
fn instances(state: &Path) -> Vec<String> {
    let locks = names(&state.join("instances"));
    locks.iter().filter_map(|name| name.strip_suffix(".lock").map(str::to_owned)).collect()
}

/// Processes in a cgroup of one of the instances, or in a mount namespace that shows their storage.
fn processes_of(instances: &[String], state: &Path) -> Vec<String> {
    let pids =
        names(Path::new("/proc")).into_iter().filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
    pids.filter(|pid| {
        let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let cgroups = read("cgroup");
        let mounts = read("mountinfo");
        instances.iter().any(|name| cgroups.contains(&format!("sandcrate-{name}")))
            || mounts.contains(&*state.to_string_lossy())
    })
    .collect()
}

fn cgroups_of(instances: &[String]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut pending = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let name = entry.file_name().to_string_lossy().into_owned();
            if instances.iter().any(|instance| name == format!("sandcrate-{instance}")) {
                found.push(entry.path());
            }
            pending.push(entry.path());
        }
    }
    found
}

fn loop_devices(state: &Path) -> Vec<String> {
    let blocks = names(Path::new("/sys/block")).into_iter();
    blocks
        .filter(|name| {
            let backing =
                fs::read_to_string(format!("/sys/block/{name}/loop/backing_file")).unwrap_or_default();
            backing.contains(&*state.to_string_lossy())
        })
        .collect()
}
