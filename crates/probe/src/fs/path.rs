//! Paths that might lead to the host: dots, `/proc` links, own links, chroot.

use std::os::unix::fs::symlink;
use std::path::PathBuf;

use crate::canary::Canary;
use crate::child::attempt_in_child;
use crate::proc_tree::{mounts, process_ids};
use crate::report::{AttackResult, Report};
use crate::sys::{close, cstring, open, syscall};

/// FS-01: every path form that resolves upward, through `/proc` or through own links.
pub(crate) fn dotdot(arguments: &[String]) -> AttackResult {
    let canary = Canary::from_arguments(arguments)?;
    let mut report = Report::default();
    canary.look_at(&mut report, canary.path());
    canary.look_at(&mut report, &format!("{}{}", "../".repeat(60), canary.path()));
    canary.look_at(&mut report, &format!("//./..///.././{}", canary.path()));
    let mut prefixes: Vec<String> = [
        "",
        "/proc/self/root",
        "/proc/self/cwd",
        "/proc/thread-self/root",
        "/proc/thread-self/cwd",
        "/proc/self/task/self/root",
        "/proc/1/root",
        "/proc/1/cwd",
        "/proc/1/task/1/root",
        "/proc/1/task/1/cwd",
        "/proc/self/root/proc/1/root",
        "/dev/fd",
        "/dev/stdin",
        "/dev/pts",
        "/dev/shm",
        "/sys",
        "/sys/fs/cgroup",
        "/mnt",
        "/host",
        "/rootfs",
        "/.pivot_root",
        "/.old_root",
        "/oldroot",
        "/put_old",
        "/run/host",
        "/var/run/host",
    ]
    .map(str::to_owned)
    .to_vec();
    let pid = std::process::id();
    prefixes.extend(["root", "cwd"].map(|link| format!("/proc/self/task/{pid}/{link}")));
    prefixes.extend((0..64).map(|fd| format!("/proc/self/fd/{fd}")));
    prefixes.extend(mounts().into_iter().map(|mount| mount.target));
    for prefix in &prefixes {
        canary.look_below(&mut report, prefix);
    }
    from_opened_directories(&canary, &mut report);
    through_own_links(&canary, &mut report);
    check_working_directory(&mut report);
    println!("attempt: {} path forms of {} -> looked at", prefixes.len(), canary.path());
    report.verdict("no path form reaches the canary")
}

fn from_opened_directories(canary: &Canary, report: &mut Report) {
    for directory in ["/", ".", "/proc/self", "/proc/1", "/proc/self/ns", "/dev", "/tmp", "/workspace"] {
        if let Ok(fd) = open(directory, libc::O_PATH | libc::O_CLOEXEC) {
            canary.look_from(report, fd);
            canary.look_below(report, &format!("/proc/self/fd/{fd}"));
            canary.look_below(report, &format!("/dev/fd/{fd}"));
            close(fd);
        }
    }
}

/// A writable scratch directory of this process; removed by the caller.
pub(crate) fn scratch_directory() -> Option<PathBuf> {
    let name = format!("probe-scratch-{}", std::process::id());
    ["/tmp", "/workspace", "/dev/shm", "."].iter().find_map(|parent| {
        let path = PathBuf::from(parent).join(&name);
        std::fs::create_dir(&path).ok().map(|()| path)
    })
}

fn through_own_links(canary: &Canary, report: &mut Report) {
    let Some(scratch) = scratch_directory() else {
        report.remark("no writable directory for links");
        return;
    };
    let climb = "../".repeat(40);
    let files = [canary.path().to_owned(), format!("{climb}{}", canary.path())];
    let directories = ["/proc/1/root", "/proc/self/root/..", "/proc/1/cwd/../../../.."].map(str::to_owned);
    for (index, target) in files.iter().chain(&directories).enumerate() {
        let link = scratch.join(format!("link{index}"));
        if symlink(target, &link).is_err() {
            continue;
        }
        let link = link.display().to_string();
        if index < files.len() {
            canary.look_at(report, &link);
        } else {
            canary.look_below(report, &link);
        }
    }
    let hard = cstring(scratch.join("hard").display().to_string());
    for source in [canary.path().to_owned(), format!("/proc/1/root{}", canary.path())] {
        let what = format!("link({source})");
        report.must_fail(&what, || syscall!(libc::SYS_link, &cstring(&source), &hard));
    }
    let _ = std::fs::remove_dir_all(scratch);
}

/// A working directory outside the root shows as "(unreachable)" (CVE-2024-21626).
fn check_working_directory(report: &mut Report) {
    let mut buffer = [0u8; 4096];
    let Ok(length) = syscall!(libc::SYS_getcwd, buffer.as_mut_ptr(), buffer.len()) else { return };
    let shown = String::from_utf8_lossy(&buffer[..length as usize]).trim_end_matches('\0').to_owned();
    println!("attempt: getcwd -> {shown}");
    if !shown.starts_with('/') {
        report.breach(format!("working directory is outside the root: {shown}"));
    }
}

/// FS-02: root, cwd, descriptors and mapped files of every visible process.
pub(crate) fn procroots(arguments: &[String]) -> AttackResult {
    let canary = Canary::from_arguments(arguments)?;
    let mut report = Report::default();
    for pid in process_ids() {
        let mut prefixes = vec![format!("/proc/{pid}/root"), format!("/proc/{pid}/cwd")];
        for folder in ["fd", "map_files", "task"] {
            let folder = format!("/proc/{pid}/{folder}");
            for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten().take(64) {
                let name = entry.file_name().to_string_lossy().into_owned();
                prefixes.push(format!("{folder}/{name}"));
                if folder.ends_with("task") {
                    prefixes.push(format!("{folder}/{name}/root"));
                    prefixes.push(format!("{folder}/{name}/cwd"));
                }
            }
        }
        for prefix in &prefixes {
            canary.look_below(&mut report, prefix);
        }
        let target = std::fs::read_link(format!("/proc/{pid}/root"));
        println!("attempt: {} links of pid {pid} -> root {target:?}", prefixes.len());
    }
    report.verdict("no process link leads to the canary")
}

/// FS-09: chroot in several forms, with the climb out of it when it is permitted.
pub(crate) fn chroot(arguments: &[String]) -> AttackResult {
    let canary = Canary::from_arguments(arguments)?;
    let mut report = Report::default();
    for target in ["/", ".", "/proc/self/root", "/proc/1/root", "/tmp", "/dev", "/usr"] {
        report.must_refuse_or(&format!("chroot({target})"), &[libc::ENOENT], || {
            syscall!(libc::SYS_chroot, &cstring(target))
        });
    }
    for unshared in [libc::CLONE_NEWUSER, libc::CLONE_FS, libc::CLONE_NEWNS] {
        report.must_fail(&format!("unshare({unshared:#x}) then chroot(/)"), || {
            let _ = syscall!(libc::SYS_unshare, unshared);
            syscall!(libc::SYS_chroot, c"/")
        });
    }
    let climbed = attempt_in_child(|| {
        syscall!(libc::SYS_chdir, c"/")?;
        syscall!(libc::SYS_chroot, c"/tmp")?;
        for _ in 0..100 {
            let _ = syscall!(libc::SYS_chdir, c"..");
        }
        let _ = syscall!(libc::SYS_chroot, c".");
        open(canary.path(), libc::O_PATH)
    });
    if report.attempt("chroot, climb, open the canary", climbed).succeeded() {
        report.breach("the canary was reached by climbing out of a chroot");
    }
    report.verdict("chroot is refused in every form")
}
