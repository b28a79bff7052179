//! Attempts on processes: our own privileges, PID 1, and whoever else can be seen.

use std::fs::File;

use rustix::process::{Pid, Resource, Signal, getrlimit, kill_process};
use rustix::thread::set_thread_res_uid;

use super::Bait;
use super::outcome::{Outcome, must_fail};

/// The value of a line of /proc/self/status.
fn status(key: &str) -> Option<String> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    text.lines().find_map(|line| Some(line.strip_prefix(key)?.strip_prefix(':')?.trim().to_owned()))
}

/// Held when a line of our status has that value.
fn status_is(key: &str, wanted: &str) -> Outcome {
    match status(key) {
        Some(value) if value == wanted => Outcome::held(format!("{key} is {value}")),
        Some(value) => Outcome::broken(format!("{key} is {value}, not {wanted}")),
        None => Outcome::not_applicable(format!("{key} cannot be read")),
    }
}

pub(super) fn capabilities(_: &Bait) -> Outcome {
    let complaints: Vec<_> = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"]
        .iter()
        .filter_map(|set| Some((set, status(set)?)))
        .filter(|(_, value)| value.bytes().any(|digit| digit != b'0'))
        .map(|(set, value)| format!("{set} is {value}"))
        .collect();
    Outcome::from_complaints(&complaints, "all five sets are empty")
}

pub(super) fn no_new_privileges(_: &Bait) -> Outcome {
    status_is("NoNewPrivs", "1")
}

pub(super) fn seccomp(_: &Bait) -> Outcome {
    status_is("Seccomp", "2")
}

/// The second column of the map are ids outside; for a box that an ordinary user made, outside is another
/// namespace of that user, in which only his own id exists.
pub(super) fn identity(bait: &Bait) -> Outcome {
    if bait.uid != 0 {
        return Outcome::held(format!("made by uid {}, who has no other id to give", bait.uid));
    }
    let mut complaints = Vec::new();
    for file in ["/proc/self/uid_map", "/proc/self/gid_map"] {
        let map = std::fs::read_to_string(file).unwrap_or_default();
        if map.lines().any(|line| line.split_whitespace().nth(1) == Some("0")) {
            complaints.push(format!("{file} holds the host's 0"));
        }
    }
    Outcome::from_complaints(&complaints, "the host's 0 is in no map")
}

pub(super) fn become_root(_: &Bait) -> Outcome {
    let root = rustix::process::Uid::ROOT;
    if rustix::process::geteuid().is_root() {
        return Outcome::not_applicable("the box's own root, without capabilities");
    }
    must_fail(set_thread_res_uid(root, root, root))
}

pub(super) fn init_files(_: &Bait) -> Outcome {
    let mut complaints = Vec::new();
    for name in ["mem", "environ", "maps", "auxv", "syscall"] {
        let path = format!("/proc/1/{name}");
        let mut byte = [0];
        // Opening may work for a process without an address space of interest; reading must not.
        if File::open(&path)
            .and_then(|mut file| std::io::Read::read(&mut file, &mut byte))
            .is_ok_and(|length| length > 0)
        {
            complaints.push(format!("{path} can be read"));
        }
    }
    for name in ["root", "cwd", "exe"] {
        if std::fs::read_link(format!("/proc/1/{name}")).is_ok() {
            complaints.push(format!("/proc/1/{name} can be followed"));
        }
    }
    if std::fs::read_dir("/proc/1/fd").is_ok() {
        complaints.push("/proc/1/fd can be listed".to_owned());
    }
    Outcome::from_complaints(&complaints, "nothing of it opens")
}

/// That we can still answer is the proof: PID 1's end is ours too.
pub(super) fn kill_init(_: &Bait) -> Outcome {
    let mut answers = Vec::new();
    for signal in [Signal::TERM, Signal::STOP, Signal::KILL] {
        answers.push(match kill_process(Pid::INIT, signal) {
            Ok(()) => "ignored".to_owned(),
            Err(error) => std::io::Error::from(error).to_string(),
        });
    }
    answers.dedup();
    Outcome::held(answers.join(", "))
}

pub(super) fn core_limit(_: &Bait) -> Outcome {
    match getrlimit(Resource::Core) {
        limit if limit.current == Some(0) && limit.maximum == Some(0) => Outcome::held("RLIMIT_CORE is 0"),
        limit => Outcome::broken(format!("RLIMIT_CORE is {:?} of {:?}", limit.current, limit.maximum)),
    }
}

/// Processes beside PID 1 and ourselves, with their arguments.
fn others() -> Vec<(u32, String)> {
    let names = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    names
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| *pid != 1 && *pid != std::process::id())
        .map(|pid| {
            let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            (pid, String::from_utf8_lossy(&arguments).replace('\0', " ").trim().to_owned())
        })
        .collect()
}

pub(super) fn foreign(_: &Bait) -> Outcome {
    /// What the box itself gives every command.
    const KNOWN: [&str; 9] = ["PATH", "HOME", "LANG", "TERM", "USER", "LOGNAME", "SHELL", "PWD", "TMPDIR"];
    let mut complaints: Vec<String> =
        others().into_iter().map(|(pid, arguments)| format!("process {pid}: {arguments}")).collect();
    let variables = std::env::vars_os().map(|(key, _)| key.to_string_lossy().into_owned());
    complaints
        .extend(variables.filter(|key| !KNOWN.contains(&key.as_str())).map(|key| format!("variable {key}")));
    Outcome::from_complaints(&complaints, "alone, with an environment of its own")
}

pub(super) fn leftovers(_: &Bait) -> Outcome {
    let complaints: Vec<String> =
        others().into_iter().map(|(pid, arguments)| format!("process {pid}: {arguments}")).collect();
    Outcome::from_complaints(&complaints, "nothing is left")
}
