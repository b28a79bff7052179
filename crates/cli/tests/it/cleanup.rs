//! Nothing stays behind, however we end.

use std::path::{Path, PathBuf};

use rustix::process::Signal;

use crate::driver::{Running, StateDir, run_shell, sandcrate, until};
use crate::skip::{Feature, skip_without};

/// Processes of the host whose arguments hold `token`, the box's own shell aside from us.
pub(crate) fn processes_with(token: &str) -> Vec<u32> {
    let names = std::fs::read_dir("/proc").unwrap().flatten();
    names
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| {
            let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&arguments).split('\0').any(|argument| argument == token)
        })
        .collect()
}

/// Directories of the cgroups that a process is in, beyond those that we are in ourselves.
pub(crate) fn cgroups_of(pid: u32) -> Vec<PathBuf> {
    let table = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let ours = std::fs::read_to_string("/proc/self/cgroup").unwrap();
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let mut found = Vec::new();
    for line in table.lines().filter(|line| !ours.lines().any(|own| own == *line)) {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let mount = mounts.lines().find_map(|mount| {
            let mut fields = mount.split(' ').skip(1);
            let (point, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
            let fits = match kind {
                "cgroup2" => controllers.is_empty(),
                "cgroup" => {
                    !controllers.is_empty()
                        && controllers.split(',').all(|name| options.split(',').any(|known| known == name))
                }
                _ => false,
            };
            fits.then(|| point.to_owned())
        });
        found.extend(mount.map(|mount| Path::new(&mount).join(path.trim_start_matches('/'))));
    }
    found
}

/// A box in which a process with this argument sleeps.
fn sleeping_box(token: &str) -> Running {
    let script = format!("(setsid sleep {token} &); echo ready; sleep {token}");
    let mut running = run_shell(&["--timeout", "100s"], &script).start();
    running.wait_for("ready\n");
    until("the sleepers", || (processes_with(token).len() >= 2).then_some(()));
    running
}

/// An argument of `sleep` that no other test uses: more than an hour, told apart by its digits.
pub(crate) fn token(number: u32) -> String {
    format!("{}.{}", 5000 + number, std::process::id())
}

#[test]
fn kill_9_leaves_no_process_and_no_cgroup() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let token = token(1);
    let running = sleeping_box(&token);
    let cgroups: Vec<_> = processes_with(&token).into_iter().flat_map(cgroups_of).collect();
    assert!(cgroups.iter().all(|dir| dir.exists()), "{cgroups:?}");
    running.signal(Signal::KILL);
    until("the processes to go", || processes_with(&token).is_empty().then_some(()));
    until("the cgroups to go", || cgroups.iter().all(|dir| !dir.exists()).then_some(()));
}

#[test]
fn the_end_of_the_command_is_the_end_of_its_children() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let token = token(2);
    let output = run_shell(&[], &format!("(setsid sleep {token} &); sleep {token} & echo started")).run();
    assert_eq!(output.ok(), "started\n");
    until("the processes to go", || processes_with(&token).is_empty().then_some(()));
}

#[test]
fn two_instances_do_not_touch_each_other() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let state = StateDir::new();
    let start = || {
        let args = [
            "run",
            "-n",
            "same name",
            "-i",
            "--timeout",
            "100s",
            "--",
            "sh",
            "-c",
            "echo mine > f; echo ready; read x; cat f; ls",
        ];
        let mut running = sandcrate(&args).env("SANDCRATE_STATE_DIR", state.path()).start();
        running.wait_for("ready\n");
        running
    };
    let (first, second, third) = (start(), start(), start());
    first.signal(Signal::KILL);
    // Whatever cleans up after the first must leave the others alone; a fourth one cleans at its start.
    sandcrate(&["run", "--", "true"]).env("SANDCRATE_STATE_DIR", state.path()).run().ok();
    for mut survivor in [second, third] {
        std::io::Write::write_all(survivor.child.stdin.as_mut().unwrap(), b"\n").unwrap();
        assert_eq!(survivor.finish().ok(), "mine\nf\n");
    }
}

#[test]
fn the_state_directory_is_empty_of_boxes_after_the_next_start() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let state = StateDir::new();
    let script = "touch /workspace/left-behind; echo ready; sleep 60";
    let mut running =
        sandcrate(&["run", "--", "sh", "-c", script]).env("SANDCRATE_STATE_DIR", state.path()).start();
    running.wait_for("ready\n");
    running.signal(Signal::KILL);
    drop(running);
    let left = || find_name(state.path(), "left-behind");
    until("the next start to clean up", || {
        sandcrate(&["run", "--", "true"]).env("SANDCRATE_STATE_DIR", state.path()).run().ok();
        left().is_none().then_some(())
    });
}

fn find_name(dir: &Path, name: &str) -> Option<PathBuf> {
    std::fs::read_dir(dir).ok()?.flatten().map(|entry| entry.path()).find_map(|path| {
        if path.file_name().is_some_and(|known| known == name) {
            return Some(path);
        }
        if path.is_dir() && !path.is_symlink() { find_name(&path, name) } else { None }
    })
}
