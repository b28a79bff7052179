//! Facts about the machine, read from files below a root that tests can replace.

use std::path::{Path, PathBuf};

use serde::Serialize;

/// How a package is installed here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Packages {
    Apt,
    Dnf,
    Apk,
    Pacman,
    Zypper,
    Unknown,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct Machine {
    /// `/`, or a fake tree.
    #[serde(skip)]
    pub(super) root: PathBuf,
    pub(super) uid: u32,
    pub(super) user: String,
    pub(super) kernel: String,
    pub(super) arch: String,
    pub(super) distribution: String,
    /// What kind of container we are in, if any.
    pub(super) container: Option<String>,
    pub(super) cpus: usize,
    pub(super) memory_bytes: u64,
    /// CapEff of this process.
    pub(super) capabilities: u64,
    #[serde(skip)]
    pub(super) packages: Packages,
}

impl Machine {
    /// Reads a machine. `kernel` and `arch` are uname's; the rest comes from files below `root`.
    pub(super) fn read(root: &Path, uid: u32, kernel: &str, arch: &str) -> Self {
        let mut machine = Self {
            root: root.to_owned(),
            uid,
            user: String::new(),
            kernel: kernel.to_owned(),
            arch: arch.to_owned(),
            distribution: String::new(),
            container: None,
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: 0,
            capabilities: 0,
            packages: Packages::Unknown,
        };
        let release = machine.text("etc/os-release").unwrap_or_default();
        let field = |key: &str| {
            let line = release.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
            line.map(|value| value.trim_matches('"').to_owned())
        };
        machine.distribution = field("PRETTY_NAME").unwrap_or_else(|| "unknown".to_owned());
        let family = format!("{} {}", field("ID").unwrap_or_default(), field("ID_LIKE").unwrap_or_default());
        machine.packages = packages(&family);
        machine.user = machine.user_name().unwrap_or_else(|| "a user without a name".to_owned());
        machine.container = machine.find_container();
        machine.memory_bytes = machine
            .value("proc/meminfo", "MemTotal")
            .and_then(|value| value.trim_end_matches("kB").trim().parse::<u64>().ok())
            .map_or(0, |kib| kib << 10);
        machine.capabilities = machine
            .value("proc/self/status", "CapEff")
            .and_then(|value| u64::from_str_radix(&value, 16).ok())
            .unwrap_or(0);
        machine
    }

    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// A file's text without surrounding white space.
    pub(super) fn text(&self, path: &str) -> Option<String> {
        let bytes = std::fs::read(self.path(path)).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// A file that holds one number.
    pub(super) fn number(&self, path: &str) -> Option<i64> {
        self.text(path)?.parse().ok()
    }

    /// The value of a `key: value` line.
    pub(super) fn value(&self, path: &str, key: &str) -> Option<String> {
        let text = self.text(path)?;
        text.lines().find_map(|line| Some(line.strip_prefix(key)?.strip_prefix(':')?.trim().to_owned()))
    }

    pub(super) fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// Major and minor.
    pub(super) fn kernel_version(&self) -> (u32, u32) {
        let mut parts =
            self.kernel.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
        (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
    }

    pub(super) fn has_capability(&self, number: u32) -> bool {
        self.capabilities >> number & 1 == 1
    }

    /// The command that installs a package.
    pub(super) fn install(&self, apt: &str, others: &str) -> String {
        match self.packages {
            Packages::Apt => format!("apt-get install -y {apt}"),
            Packages::Dnf => format!("dnf install -y {others}"),
            Packages::Apk => format!("apk add {others}"),
            Packages::Pacman => format!("pacman -S {others}"),
            Packages::Zypper => format!("zypper install {others}"),
            Packages::Unknown => format!("install the package {others} of this distribution"),
        }
    }

    /// Mounts of this process: mount point, type, options of the file system.
    pub(super) fn mounts(&self) -> Vec<MountLine> {
        let text = self.text("proc/self/mountinfo").unwrap_or_default();
        text.lines().filter_map(MountLine::parse).collect()
    }

    fn user_name(&self) -> Option<String> {
        let passwd = self.text("etc/passwd")?;
        passwd.lines().find_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?;
            (fields.nth(1)? == self.uid.to_string()).then(|| name.to_owned())
        })
    }

    fn find_container(&self) -> Option<String> {
        if self.path(".dockerenv").exists() {
            return Some("docker".to_owned());
        }
        if self.path("run/.containerenv").exists() {
            return Some("podman".to_owned());
        }
        if let Some(kind) = self.text("run/systemd/container").filter(|kind| !kind.is_empty()) {
            return Some(kind);
        }
        let environ = self.text("proc/1/environ")?;
        let kind = environ.split('\0').find_map(|entry| entry.strip_prefix("container="))?;
        Some(if kind.is_empty() { "unknown".to_owned() } else { kind.to_owned() })
    }
}

fn packages(family: &str) -> Packages {
    let is = |name: &str| family.split_whitespace().any(|word| word == name);
    match () {
        () if is("debian") || is("ubuntu") => Packages::Apt,
        () if is("fedora") || is("rhel") || is("centos") => Packages::Dnf,
        () if is("alpine") => Packages::Apk,
        () if is("arch") => Packages::Pacman,
        () if is("suse") || is("opensuse") => Packages::Zypper,
        () => Packages::Unknown,
    }
}

/// One line of mountinfo, as far as it is of use here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MountLine {
    pub(super) point: String,
    pub(super) kind: String,
    /// Options of the file system itself, which for cgroup v1 name the controllers.
    pub(super) options: String,
}

impl MountLine {
    fn parse(line: &str) -> Option<Self> {
        let (left, right) = line.split_once(" - ")?;
        let mut right = right.split(' ');
        let kind = right.next()?.to_owned();
        let options = right.nth(1).unwrap_or_default().to_owned();
        Some(Self { point: left.split(' ').nth(4)?.to_owned(), kind, options })
    }
}
