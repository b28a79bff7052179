//! nsjail's configurations: what a session's nsjail mounts and unshares, and what a command's gives up.
//!
//! Pure text in protobuf's text format (nsjail's config.proto), where a path is a quoted string: no character of it
//! means anything. Sources are named by places of the maker's own, never by paths of a caller.

use std::fmt::Write;

use sandcrate_jail::identity::{HOST_BASE, ID_COUNT, INIT_USER};
use sandcrate_jail::nsjail::{BLANK, EMPTY, FILES, ROOT, SOURCES};
use sandcrate_jail::seccomp::{Features, Network, PolicyError, command_policy, kafel};
use sandcrate_jail::{Access, MountSource, NodeKind, Plan, Rlimit};

/// The two configurations of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Configurations {
    pub(crate) session: String,
    pub(crate) command: String,
}

/// What of the host a configuration depends on.
#[derive(Debug, Clone)]
pub(crate) struct Surroundings {
    /// Names below /proc to cover.
    pub(crate) hidden: Vec<(String, NodeKind)>,
    /// The policy in kafel's words.
    pub(crate) policy: String,
    /// Hard limits that nothing can be set above.
    pub(crate) most_open_files: u64,
    pub(crate) most_processes: u64,
}

impl Surroundings {
    pub(crate) fn look() -> Result<Self, PolicyError> {
        use rustix::process::{Resource, getrlimit};
        let most = |resource| getrlimit(resource).maximum.unwrap_or(u64::MAX);
        Ok(Self {
            hidden: sandcrate_jail::nsjail::hidden_in_proc(),
            policy: kafel(&command_policy()?, Features { network: Network::Off }),
            most_open_files: most(Resource::Nofile),
            most_processes: most(Resource::Nproc),
        })
    }
}

pub(crate) fn write(plan: &Plan, around: &Surroundings) -> Configurations {
    let mut session = Text::new("ONCE");
    session.limits(plan, around);
    session.identity(&[(INIT_USER, 1), (0, INIT_USER), (INIT_USER + 1, ID_COUNT - INIT_USER - 1)]);
    session.namespaces(true);
    session.line("hostname", &quoted("sandbox"));
    session.mounts(plan, around);
    session.policy(&around.policy);

    Configurations { session: session.0, command: write_command(plan, plan.user, around) }
}

/// Of an nsjail that becomes `user` where it stands: no map is written without a user namespace.
pub(crate) fn write_command(plan: &Plan, user: u32, around: &Surroundings) -> String {
    let mut command = Text::new("EXECVE");
    command.limits(plan, around);
    command.line("uidmap", &id_map(user, user, 1));
    command.line("gidmap", &id_map(user, user, 1));
    command.namespaces(false);
    command.policy(&around.policy);
    command.0
}

struct Text(String);

impl Text {
    fn new(mode: &str) -> Self {
        let mut text = Self(String::new());
        text.line("name", &quoted("sandcrate"));
        text.line("mode", mode);
        // No limit of nsjail's own: by default it ends everything after 600 s.
        text.line("time_limit", "0");
        text.line("log_level", "WARNING");
        text.line("keep_env", "false");
        text.line("keep_caps", "false");
        text.line("disable_no_new_privs", "false");
        // What nsjail executes starts a session by itself, with its terminal.
        text.line("skip_setsid", "true");
        text.line("nice_level", "0");
        text
    }

    fn line(&mut self, key: &str, value: &str) {
        let _ = writeln!(self.0, "{key}: {value}");
    }

    /// nsjail's own defaults are 600 s of CPU time, 1 MiB files and 4 GiB of addresses.
    fn limits(&mut self, plan: &Plan, around: &Surroundings) {
        for name in ["as", "cpu", "fsize"] {
            self.line(&format!("rlimit_{name}_type"), "HARD");
        }
        self.line("rlimit_stack_type", "SOFT");
        let of = |wanted: Rlimit| {
            plan.rlimits.iter().find(|limit| limit.resource == wanted).map_or(0, |limit| limit.value)
        };
        for (name, value) in [
            ("core", of(Rlimit::Core)),
            ("nofile", of(Rlimit::OpenFiles).min(around.most_open_files)),
            ("nproc", of(Rlimit::Processes).min(around.most_processes)),
            // In units of 1024 bytes.
            ("memlock", of(Rlimit::LockedMemory) >> 10),
            ("rtprio", of(Rlimit::RealtimePriority)),
            ("msgqueue", of(Rlimit::MessageQueues)),
        ] {
            self.line(&format!("rlimit_{name}_type"), "VALUE");
            self.line(&format!("rlimit_{name}"), &value.to_string());
        }
    }

    /// The first of the ranges begins with the id that nsjail takes.
    fn identity(&mut self, ranges: &[(u32, u32)]) {
        for key in ["uidmap", "gidmap"] {
            for (inside, count) in ranges {
                self.line(key, &id_map(*inside, HOST_BASE + inside, *count));
            }
        }
    }

    fn namespaces(&mut self, new: bool) {
        for name in ["net", "user", "ns", "pid", "ipc", "uts", "cgroup"] {
            self.line(&format!("clone_new{name}"), if new { "true" } else { "false" });
        }
    }

    fn mounts(&mut self, plan: &Plan, around: &Surroundings) {
        self.mount(&Mount::bind(ROOT, "/", Access::ReadOnly, NodeKind::Directory));
        self.mount(&Mount::new("proc", "/proc", "", "rw: true nosuid: true nodev: true noexec: true"));
        self.mount(&Mount::bind("/proc/sys", "/proc/sys", Access::ReadOnly, NodeKind::Directory));
        for (name, kind) in &around.hidden {
            let cover = if *kind == NodeKind::Directory { EMPTY } else { BLANK };
            self.mount(&Mount::bind(cover, &format!("/proc/{name}"), Access::ReadOnly, *kind));
        }
        let terminals = "newinstance,ptmxmode=0666,mode=0620";
        self.mount(&Mount::new("devpts", "/dev/pts", terminals, "rw: true nosuid: true noexec: true"));
        for (target, bytes) in [("/tmp", plan.tmp_bytes), ("/dev/shm", plan.shm_bytes)] {
            // As many files as pages.
            let options = format!("size={bytes},nr_inodes={},mode=1777", (bytes / 4096).max(64));
            self.mount(&Mount::new("tmpfs", target, &options, "rw: true nosuid: true nodev: true"));
        }
        for mount in &plan.mounts {
            let source = match &mount.source {
                MountSource::Storage { directory } => format!("{FILES}/{directory}"),
                MountSource::Requested { index } => format!("{SOURCES}/{index}"),
                // Of a writable root, which is refused.
                MountSource::Overlay { .. } => continue,
            };
            self.mount(&Mount::bind(&source, &mount.target, mount.access, mount.kind));
        }
    }

    fn mount(&mut self, mount: &Mount) {
        let _ = writeln!(self.0, "mount {{ {} }}", mount.0);
    }

    fn policy(&mut self, policy: &str) {
        for line in policy.lines() {
            self.line("seccomp_string", &quoted(line));
        }
    }
}

struct Mount(String);

impl Mount {
    fn new(kind: &str, target: &str, options: &str, flags: &str) -> Self {
        Self(format!(
            "dst: {} fstype: {} options: {} is_dir: true {flags}",
            quoted(target),
            quoted(kind),
            quoted(options)
        ))
    }

    fn bind(source: &str, target: &str, access: Access, kind: NodeKind) -> Self {
        Self(format!(
            "src: {} dst: {} is_bind: true rw: {} is_dir: {} nosuid: true nodev: true",
            quoted(source),
            quoted(target),
            access == Access::ReadWrite,
            kind == NodeKind::Directory
        ))
    }
}

fn id_map(inside: u32, outside: u32, count: u32) -> String {
    format!("{{ inside_id: \"{inside}\" outside_id: \"{outside}\" count: {count} }}")
}

/// A string of the text format: everything but plain characters as octal bytes.
fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => {
                quoted.push('\\');
                quoted.push(char::from(byte));
            }
            b' '..=b'~' => quoted.push(char::from(byte)),
            _ => {
                let _ = write!(quoted, "\\{byte:03o}");
            }
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
