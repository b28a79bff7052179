//! Attempts on files: of the host, of the system, of the kernel.

use std::fs::{File, OpenOptions, Permissions};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

use super::Bait;
use super::outcome::Outcome;

/// Processes that the box can see.
fn processes() -> Vec<String> {
    let names = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit())).chain(["self".to_owned()]).collect()
}

pub(super) fn canary(bait: &Bait) -> Outcome {
    let up = "/..".repeat(20);
    let mut forms =
        vec![bait.canary.clone(), format!("{up}{}", bait.canary), format!(".{up}{}", bait.canary)];
    for process in processes() {
        forms.push(format!("/proc/{process}/root{}", bait.canary));
        forms.push(format!("/proc/{process}/root{up}{}", bait.canary));
        forms.push(format!("/proc/{process}/cwd{up}{}", bait.canary));
        let descriptors = std::fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
        forms.extend(descriptors.map(|entry| format!("{}{up}{}", entry.path().display(), bait.canary)));
    }
    let reached =
        |form: &&String| std::fs::read_to_string(form.as_str()).is_ok_and(|text| text.contains(&bait.token));
    let complaints: Vec<_> = forms.iter().filter(reached).map(|form| format!("read by {form}")).collect();
    Outcome::from_complaints(&complaints, format!("{} forms of the path lead nowhere", forms.len()))
}

pub(super) fn descriptors(_: &Bait) -> Outcome {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else {
        return Outcome::not_applicable("/proc/self/fd is not there");
    };
    let complaints: Vec<_> = entries
        .flatten()
        .filter(|entry| !["0", "1", "2"].iter().any(|known| entry.file_name() == *known))
        .filter_map(|entry| Some((entry.file_name(), std::fs::read_link(entry.path()).ok()?)))
        // The descriptor that this very listing uses.
        .filter(|(_, target)| !(target.starts_with("/proc") && target.ends_with("fd")))
        .map(|(number, target)| format!("{} is {}", number.display(), target.display()))
        .collect();
    Outcome::from_complaints(&complaints, "only 0, 1, 2")
}

pub(super) fn executables(_: &Bait) -> Outcome {
    let opened =
        |process: &String| OpenOptions::new().write(true).open(format!("/proc/{process}/exe")).is_ok();
    let complaints: Vec<_> = processes()
        .iter()
        .filter(|process| opened(process))
        .map(|process| format!("/proc/{process}/exe opened"))
        .collect();
    Outcome::from_complaints(&complaints, "none opens")
}

pub(super) fn device_nodes(_: &Bait) -> Outcome {
    let mut complaints = Vec::new();
    for dir in ["/workspace", "/tmp", "/dev/shm"] {
        for (name, kind, device) in [
            ("disk", FileType::BlockDevice, makedev(254, 0)),
            ("sda", FileType::BlockDevice, makedev(8, 0)),
            ("mem", FileType::CharacterDevice, makedev(1, 1)),
        ] {
            let path = format!("{dir}/{name}");
            if mknodat(CWD, path.as_str(), kind, Mode::RUSR | Mode::WUSR, device).is_ok() {
                complaints.push(format!("{path} was made"));
                let _ = std::fs::remove_file(&path);
            }
        }
    }
    Outcome::from_complaints(&complaints, "none can be made")
}

pub(super) fn devices(_: &Bait) -> Outcome {
    const KNOWN: [&str; 17] = [
        "null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm", "fd", "stdin", "stdout",
        "stderr", "console", "mqueue", "core", "log",
    ];
    let Ok(entries) = std::fs::read_dir("/dev") else { return Outcome::not_applicable("no /dev") };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let complaints: Vec<_> =
        names.filter(|name| !KNOWN.contains(&name.as_str())).map(|name| format!("/dev/{name}")).collect();
    Outcome::from_complaints(&complaints, "only the allow list")
}

pub(super) fn system_files(_: &Bait) -> Outcome {
    let mut complaints = Vec::new();
    for dir in [
        "/", "/usr", "/usr/bin", "/usr/lib", "/etc", "/bin", "/lib", "/var", "/opt", "/dev", "/proc", "/home",
    ] {
        let path = Path::new(dir).join("broken-out");
        if File::create(&path).is_ok() {
            complaints.push(format!("{} was made", path.display()));
            let _ = std::fs::remove_file(&path);
        }
    }
    for file in ["/etc/passwd", "/etc/hosts", "/usr/bin/env", "/etc/ld.so.cache"] {
        if OpenOptions::new().append(true).open(file).is_ok() {
            complaints.push(format!("{file} opened for writing"));
        }
    }
    Outcome::from_complaints(&complaints, "nothing can be written")
}

pub(super) fn kernel_settings(_: &Bait) -> Outcome {
    const FILES: [&str; 12] = [
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/kernel/modprobe",
        "/proc/sys/kernel/hotplug",
        "/proc/sys/kernel/hostname",
        "/proc/sys/vm/drop_caches",
        "/proc/sys/vm/overcommit_memory",
        "/proc/sys/fs/binfmt_misc/register",
        "/proc/sysrq-trigger",
        "/proc/1/oom_score_adj",
        "/proc/irq/0/smp_affinity",
        "/sys/kernel/uevent_helper",
        "/sys/fs/cgroup/release_agent",
    ];
    let opened = |file: &&&str| OpenOptions::new().write(true).open(file).is_ok();
    let complaints: Vec<_> =
        FILES.iter().filter(opened).map(|file| format!("{file} opened for writing")).collect();
    Outcome::from_complaints(&complaints, "none opens for writing")
}

pub(super) fn kernel_information(_: &Bait) -> Outcome {
    const FILES: [&str; 14] = [
        "kcore",
        "kallsyms",
        "keys",
        "key-users",
        "timer_list",
        "interrupts",
        "config.gz",
        "cmdline",
        "sched_debug",
        "slabinfo",
        "vmallocinfo",
        "iomem",
        "ioports",
        "kmsg",
    ];
    let readable = |file: &&&str| {
        let mut byte = [0];
        // Not kmsg with a wait: it would block where it opens and has nothing.
        let mut options = OpenOptions::new();
        options.read(true);
        std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, 0o4000);
        options
            .open(format!("/proc/{file}"))
            .and_then(|mut open| open.read(&mut byte))
            .is_ok_and(|length| length > 0)
    };
    let complaints: Vec<_> =
        FILES.iter().filter(readable).map(|file| format!("/proc/{file} can be read")).collect();
    Outcome::from_complaints(&complaints, "all masked or empty")
}

pub(super) fn mount_table(bait: &Bait) -> Outcome {
    let Ok(table) = std::fs::read_to_string("/proc/self/mountinfo") else {
        return Outcome::held("the table itself cannot be read");
    };
    let host_dir = Path::new(&bait.canary).parent().unwrap_or(Path::new("/")).display().to_string();
    let mut complaints = Vec::new();
    for line in table.lines() {
        let Some((left, _)) = line.split_once(" - ") else { continue };
        let fields: Vec<_> = left.split(' ').collect();
        let (Some(source), Some(point), Some(options)) = (fields.get(3), fields.get(4), fields.get(5)) else {
            continue;
        };
        if fields[6..].iter().any(|tag| tag.starts_with("shared:") || tag.starts_with("master:")) {
            complaints.push(format!("{point} is shared with the host"));
        }
        if !options.split(',').any(|option| option == "nosuid") {
            complaints.push(format!("{point} honours setuid"));
        }
        if source.starts_with(&host_dir) {
            complaints.push(format!("{point} shows {source}"));
        }
    }
    Outcome::from_complaints(
        &complaints,
        format!("{} mounts, none shared, all nosuid", table.lines().count()),
    )
}

pub(super) fn setuid(_: &Bait) -> Outcome {
    let mut complaints = Vec::new();
    for dir in ["/workspace", "/tmp"] {
        let path = format!("{dir}/setuid");
        if File::create(&path).is_err() {
            continue;
        }
        for mode in [0o4755, 0o2755, 0o6755] {
            let _ = std::fs::set_permissions(&path, Permissions::from_mode(mode));
            let kept = std::fs::metadata(&path).map_or(0, |meta| meta.permissions().mode());
            if kept & 0o6000 != 0 {
                complaints.push(format!("{path} has mode {:o}", kept & 0o7777));
            }
        }
        let _ = std::fs::remove_file(&path);
    }
    Outcome::from_complaints(&complaints, "the bits cannot be set")
}
