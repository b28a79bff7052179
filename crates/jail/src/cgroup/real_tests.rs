//! What the kernel does. Made for hybrid cgroups as root; it also runs on v2 alone and rootless.

use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::Pid;

use super::dir::{subdirs, write_file};
use super::kill::pids_below;
use super::*;

/// An instance named after its test, swept when the test ends.
struct Instance {
    name: String,
    found: Discovery,
    parent: Parent,
}

impl Drop for Instance {
    fn drop(&mut self) {
        sweep(&self.found, &self.name).unwrap();
    }
}

/// `None`, with a word about it, where the host is another kind.
fn instance(test: &str) -> Option<Instance> {
    instance_with(test, |_| {})
}

fn instance_with(test: &str, change: impl FnOnce(&mut Discovery)) -> Option<Instance> {
    let mut found = Discovery::probe(Path::new("/")).unwrap();
    change(&mut found);
    let name = format!("test-{test}-{}", std::process::id());
    let placement = Placement { instance: &name, below: None, daemon: None };
    let parent = Parent::open(&found, &placement).unwrap();
    let report = parent.report().clone();
    let it = Instance { name, found, parent };
    let limits = [&report.memory, &report.pids, &report.cpu];
    if !limits.iter().all(|control| control.is_enforced()) {
        eprintln!("SKIP: needs cgroups that limit memory, pids and cpu: {report:?}");
        return None;
    }
    Some(it)
}

/// As [`instance`], where the host has the controllers on v1.
fn v1_instance(test: &str, change: impl FnOnce(&mut Discovery)) -> Option<Instance> {
    let it = instance_with(test, change)?;
    if it.found.v1.is_empty() {
        eprintln!("SKIP: needs cgroup v1");
        return None;
    }
    Some(it)
}

/// Outlives its child, which may be killed first.
const FOREVER: &str = "while :; do sleep 60; done";

/// A shell that runs `script` inside the box.
fn shell(cgroup: &BoxCgroup, script: &str) -> Child {
    let mut child =
        Command::new("sh").args(["-c", &format!("read go; {script}")]).stdin(Stdio::piped()).spawn().unwrap();
    cgroup.join_pid(pid(&child)).unwrap();
    child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    child
}

fn pid(child: &Child) -> Pid {
    Pid::from_child(child)
}

fn usage(cgroup: &BoxCgroup) -> UsageReader {
    UsageReader::new(cgroup.usage_dirs().unwrap())
}

fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while !check() {
        assert!(Instant::now() < deadline, "never: {what}");
        sleep(Duration::from_millis(2));
    }
}

fn path_of(fd: BorrowedFd<'_>) -> PathBuf {
    std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap()
}

/// How many directories anywhere in the host's cgroups are called `name`.
fn count_named(name: &str) -> usize {
    fn below(path: &Path, name: &str) -> usize {
        let Ok(entries) = std::fs::read_dir(path) else {
            return 0;
        };
        let dirs = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|t| t.is_dir()));
        dirs.map(|entry| usize::from(entry.file_name() == name) + below(&entry.path(), name)).sum()
    }
    below(Path::new("/sys/fs/cgroup"), name)
}

#[test]
fn everything_is_enforced_here() {
    let Some(it) = instance("report") else { return };
    let report = it.parent.report();
    for control in [&report.memory, &report.pids, &report.cpu, &report.kill, &report.freeze] {
        assert!(control.is_enforced(), "{report:?}");
    }
    assert!(it.found.cgroup_kill);
}

#[test]
fn pids_limit_stops_forks() {
    let Some(it) = instance("pids") else { return };
    let cgroup = it.parent.create("b", None).unwrap();
    cgroup.set_limits(&Limits { pids: Some(3), ..Limits::default() }).unwrap();
    assert_eq!(usage(&cgroup).pids_refused(), Some(0));
    let mut child = shell(&cgroup, "for i in 1 2 3 4 5 6 7 8 9; do sleep 30 & done 2>/dev/null");
    assert!(!child.wait().unwrap().success());
    assert!(usage(&cgroup).pids_refused() >= Some(1));
    // 3 and the headroom of 2, less the shell, which is gone.
    assert_eq!(pids_below(cgroup.unified_dir().unwrap()).unwrap().len(), 4);
    cgroup.kill().unwrap();
    cgroup.remove().unwrap();
}

#[test]
fn memory_limit_kills() {
    let Some(it) = instance("memory") else { return };
    let cgroup = it.parent.create("b", None).unwrap();
    let limit = 64 << 20;
    cgroup.set_limits(&Limits { memory_bytes: Some(limit), ..Limits::default() }).unwrap();
    // tail keeps an endless line in memory.
    let mut child = shell(&cgroup, "head -c 300000000 /dev/zero | tail -n 1 >/dev/null");
    assert_eq!(child.wait().unwrap().code(), Some(128 + 9));
    let usage = usage(&cgroup);
    assert_eq!(usage.oom_kills(), Some(1));
    let peak = usage.peak_memory_bytes().unwrap();
    assert!((limit / 2..=limit).contains(&peak), "{peak}");
    // v2 before Linux 6.12 cannot.
    if usage.reset_peak() {
        assert!(usage.peak_memory_bytes().unwrap() < peak / 2);
    } else {
        assert!(it.found.v1.is_empty());
    }
    assert!(usage.current_memory_bytes().unwrap() < peak / 2);
    cgroup.remove().unwrap();
}

#[test]
fn memory_limit_can_be_raised_and_lowered() {
    let Some(it) = v1_instance("raise", |_| {}) else {
        return;
    };
    let cgroup = it.parent.create("b", None).unwrap();
    for mib in [Some(64), Some(128), Some(32), None, Some(16), Some(16)] {
        let memory_bytes = mib.map(|mib| mib << 20);
        cgroup.set_limits(&Limits { memory_bytes, ..Limits::default() }).unwrap();
        let dirs = cgroup.usage_dirs().unwrap();
        let read = |dir: &OwnedFd, file| dir::read_file(dir.as_fd(), file).ok();
        for file in ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"] {
            let now: u64 = dirs.iter().find_map(|d| read(d, file)).unwrap().trim().parse().unwrap();
            assert_eq!(now.min(1 << 40), memory_bytes.unwrap_or(1 << 40), "{file}");
        }
    }
}

#[test]
fn tmpfs_is_counted() {
    let Some(it) = instance("tmpfs") else { return };
    let cgroup = it.parent.create("b", None).unwrap();
    let file = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
    let script = format!("head -c 8000000 /dev/zero >{}", file.path().display());
    assert!(shell(&cgroup, &script).wait().unwrap().success());
    assert!(usage(&cgroup).tmpfs_bytes() >= Some(8_000_000));
}

#[test]
fn cpu_limit_throttles() {
    let Some(it) = instance("cpu") else { return };
    let cgroup = it.parent.create("b", None).unwrap();
    cgroup.set_limits(&Limits { cpu_millis: Some(200), ..Limits::default() }).unwrap();
    let mut child = shell(&cgroup, "while :; do :; done");
    sleep(Duration::from_millis(600));
    let stat = super::dir::read_file(cgroup.unified_dir().unwrap(), "cpu.stat").unwrap();
    let used = super::usage::cpu_time(&stat).unwrap();
    cgroup.kill().unwrap();
    child.wait().unwrap();
    // A fifth of 600 ms is 120; a slice may overrun by some ms.
    let used = used.user + used.system;
    assert!((20..250).contains(&used.as_millis()), "{used:?}");
}

#[test]
fn kill_and_remove_leave_nothing() {
    let Some(it) = instance("kill") else { return };
    let cgroup = it.parent.create("b-of-kill", None).unwrap();
    let fork = "for i in 1 2 3 4 5 6 7 8; do (sleep 60; sleep 60) & done; wait";
    let mut child = shell(&cgroup, fork);
    eventually("9 processes", || pids_below(cgroup.unified_dir().unwrap()).unwrap().len() >= 9);
    assert_eq!(cgroup.try_remove().unwrap_err().kind(), std::io::ErrorKind::ResourceBusy);
    cgroup.kill().unwrap();
    cgroup.remove().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    assert_eq!(count_named("b-of-kill"), 0);
    it.parent.remove().unwrap();
    assert_eq!(count_named(&format!("sandcrate-{}", it.name)), 0);
}

#[test]
fn without_v2_every_listed_process_is_killed() {
    let Some(it) = v1_instance("legacy", |found| found.v2 = None) else {
        return;
    };
    let cgroup = it.parent.create("b", None).unwrap();
    assert!(cgroup.unified_dir().is_none());
    assert!(matches!(cgroup.freeze(), Err(CgroupError::FreezeUnsupported { .. })));
    let mut child = shell(&cgroup, &format!("for i in 1 2 3 4 5; do sleep 60 & done; {FOREVER}"));
    let procs = &cgroup.usage_dirs().unwrap()[0];
    eventually("7 processes", || pids_below(procs.as_fd()).unwrap().len() == 7);
    cgroup.kill().unwrap();
    assert!(pids_below(procs.as_fd()).unwrap().is_empty());
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    cgroup.remove().unwrap();
}

#[test]
fn child_joins_v1_by_itself() {
    let Some(it) = v1_instance("tasks", |_| {}) else {
        return;
    };
    let cgroup = it.parent.create("b", None).unwrap();
    let mut files = cgroup.v1_task_files().unwrap().into_iter().map(Stdio::from);
    let mut child = Command::new("sh")
        .args(["-c", "echo 0 >&0; echo 0; echo 0 >&2; exec sleep 60 </dev/null >/dev/null 2>&1"])
        .stdin(files.next().unwrap())
        .stdout(files.next().unwrap())
        .stderr(files.next().unwrap())
        .spawn()
        .unwrap();
    let own = format!("/proc/{}/cgroup", child.id());
    let joined = || {
        let text = std::fs::read_to_string(&own).unwrap();
        text.lines().filter(|line| line.ends_with(&format!("/sandcrate-{}/b", it.name))).count()
    };
    eventually("in memory, pids and cpu", || joined() == 3);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn command_is_frozen_measured_and_killed_alone() {
    let Some(it) = instance("command") else {
        return;
    };
    let cgroup = it.parent.create("b", None).unwrap();
    let run = cgroup.run_dir().unwrap();
    let mut init = shell(&cgroup, "sleep 60");
    let mut busy = shell(&cgroup, "while :; do :; done");
    let command = CommandCgroup::create(run, 1).unwrap();
    assert!(!command.populated().unwrap());
    write_file(command.dir(), "cgroup.procs", &busy.id().to_string()).unwrap();
    assert!(command.populated().unwrap());
    assert!(command.remove().is_err());
    let used = || command.cpu().map(|cpu| cpu.user + cpu.system).unwrap();
    eventually("it uses CPU", || used() > Duration::from_millis(20));

    cgroup.freeze().unwrap();
    eventually("frozen", || cgroup.is_frozen().unwrap());
    let before = used();
    sleep(Duration::from_millis(50));
    assert_eq!(used(), before);
    cgroup.thaw().unwrap();
    eventually("it goes on", || used() > before);

    cgroup.freeze().unwrap();
    command.kill().unwrap();
    assert_eq!(busy.wait().unwrap().signal(), Some(9), "killed while frozen");
    eventually("empty", || !command.populated().unwrap());
    command.remove().unwrap();
    assert!(subdirs(run).unwrap().is_empty());
    assert!(init.try_wait().unwrap().is_none(), "init lives on");
    cgroup.kill().unwrap();
    init.wait().unwrap();
    cgroup.remove().unwrap();
}

#[test]
fn only_the_owner_may_use_the_run_directory() {
    let Some(it) = instance("owner") else { return };
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIP: needs root, to be two other users");
        return;
    }
    let owner = Owner { uid: 0x7000_0000, gid: 0x7000_0000 };
    let cgroup = it.parent.create("b", Some(owner)).unwrap();
    let run = path_of(cgroup.run_dir().unwrap());
    let script = |uid: u32, script: &str| {
        let mut child = Command::new("sh")
            .args(["-c", &format!("read go; cd {} && {script}", run.display())])
            .uid(uid)
            .gid(uid)
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        cgroup.join_pid(pid(&child)).unwrap();
        child.stdin.take().unwrap().write_all(b"go\n").unwrap();
        child.wait().unwrap().success()
    };
    assert!(script(owner.uid, "mkdir 1 && echo $$ >1/cgroup.procs && grep -q run/1$ /proc/$$/cgroup"));
    assert!(!script(owner.uid + 1, "mkdir 2"), "a stranger");
    assert!(!script(owner.uid, "mkdir 1/2"), "no deeper");
    assert!(!script(owner.uid, "echo 9 >cgroup.max.depth"), "nor is the bound its own");
    assert!(!script(owner.uid, "echo $$ >../../cgroup.procs"), "nor may it leave the box");
    cgroup.remove().unwrap();
}

/// Used with v2 and without.
fn check_sweep(it: &Instance) {
    let cgroup = it.parent.create("b", None).unwrap();
    let mut children = [(); 2].map(|()| shell(&cgroup, FOREVER));
    if let Some(run) = cgroup.run_dir() {
        let command = CommandCgroup::create(run, 1).unwrap();
        write_file(command.dir(), "cgroup.procs", &children[0].id().to_string()).unwrap();
    }
    // A longer name that merely begins alike is another instance's.
    let name = format!("{}x", it.name);
    let placement = Placement { instance: &name, below: None, daemon: None };
    let parent = Parent::open(&it.found, &placement).unwrap();
    let other = Instance { name, found: it.found.clone(), parent };
    let hierarchies = it.found.v1.len() + it.found.v2.iter().len();
    assert_eq!(sweep(&it.found, &it.name).unwrap(), hierarchies);
    for child in &mut children {
        assert_eq!(child.wait().unwrap().signal(), Some(9));
    }
    assert_eq!(count_named(&format!("sandcrate-{}", it.name)), 0);
    assert_eq!(count_named(&format!("sandcrate-{}", other.name)), hierarchies);
}

#[test]
fn sweep_ends_what_a_dead_instance_left() {
    let Some(it) = instance("sweep") else { return };
    check_sweep(&it);
}

#[test]
fn sweep_works_without_v2() {
    let Some(it) = v1_instance("sweep-v1", |found| found.v2 = None) else {
        return;
    };
    check_sweep(&it);
}
