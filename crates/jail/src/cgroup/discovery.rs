//! Finds the host's cgroup hierarchies from `/proc/self/mountinfo` and `/proc/self/cgroup`.
//!
//! Reads only. The result is plain facts, fit for printing by `doctor`; nothing is held open.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::dir::Dir;
use super::{CgroupError, Controller, Version};

/// Which cgroup interfaces carry the controllers that boxes need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// cgroup v2 alone.
    Unified,
    /// v1 controllers beside a v2 tree.
    Hybrid,
    /// cgroup v1 alone.
    Legacy,
    None,
}

/// One mounted hierarchy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Hierarchy {
    pub version: Version,
    pub mount: PathBuf,
    /// Our own cgroup relative to `mount`; `None` when it lies outside of what is mounted.
    pub own: Option<PathBuf>,
    /// Those of memory, pids and cpu that it offers.
    pub controllers: Vec<Controller>,
    /// Whether we may make cgroups in our own one, or in the mount's root if that is not there.
    pub writable: bool,
}

/// What the host has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Discovery {
    pub mode: Mode,
    pub v2: Option<Hierarchy>,
    pub v1: Vec<Hierarchy>,
    /// Whether v2 can kill a whole cgroup at once (Linux 5.14).
    pub cgroup_kill: bool,
}

struct Mount {
    version: Version,
    root: PathBuf,
    point: PathBuf,
    controllers: Vec<Controller>,
}

impl Discovery {
    /// Looks at the host below `root`, which is `/` but for tests.
    pub fn probe(root: &Path) -> Result<Self, CgroupError> {
        let host = Dir::open(root)?;
        let own = host.read("proc/self/cgroup")?;
        let (mut v1, mut v2) = (Vec::<Hierarchy>::new(), None);
        for mount in host.read("proc/self/mountinfo")?.lines().filter_map(parse_mount) {
            let seen = |c: &Controller| v1.iter().any(|h| h.controllers.contains(c));
            match mount.version {
                Version::V2 if v2.is_none() => v2 = mount.inspect(root, &own),
                Version::V1 if !mount.controllers.is_empty() && !mount.controllers.iter().any(seen) => {
                    v1.extend(mount.inspect(root, &own));
                }
                _ => {}
            }
        }
        let mode = match (&v2, v1.is_empty()) {
            (Some(_), true) => Mode::Unified,
            (Some(_), false) => Mode::Hybrid,
            (None, false) => Mode::Legacy,
            (None, true) => Mode::None,
        };
        let cgroup_kill = v2.is_some() && has_cgroup_kill(&host);
        Ok(Self { mode, v2, v1, cgroup_kill })
    }
}

impl Mount {
    /// `None` for a mount that cannot be opened, such as one hidden by a later mount.
    fn inspect(self, root: &Path, own: &str) -> Option<Hierarchy> {
        let point = root.join(self.point.strip_prefix("/").unwrap_or(&self.point));
        let mount = Dir::open(&point).ok()?;
        let controllers = match self.version {
            Version::V1 => self.controllers,
            Version::V2 => Controller::parse_list(&mount.read("cgroup.controllers").ok()?, ' '),
        };
        let found = own_path(own, self.version, &controllers)
            .and_then(|path| path.strip_prefix(&self.root).ok().map(Path::to_owned))
            .and_then(|path| Some((mount.sub(&path).ok()?, path)));
        let writable = found.as_ref().map_or(&mount, |(dir, _)| dir).is_writable();
        let own = found.map(|(_, path)| path);
        Some(Hierarchy { version: self.version, mount: point, own, controllers, writable })
    }
}

/// One line of mountinfo, see proc_pid_mountinfo(5):
/// `36 35 98:0 /root /point rw,noatime master:1 - cgroup source rw,memory`.
fn parse_mount(line: &str) -> Option<Mount> {
    let (mount, filesystem) = line.split_once(" - ")?;
    let mut filesystem = filesystem.split(' ');
    let version = match filesystem.next()? {
        "cgroup" => Version::V1,
        "cgroup2" => Version::V2,
        _ => return None,
    };
    let controllers = Controller::parse_list(filesystem.nth(1)?, ',');
    let mut fields = mount.split(' ').skip(3);
    let (root, point) = (unescape(fields.next()?), unescape(fields.next()?));
    Some(Mount { version, root, point, controllers })
}

/// Our path in the hierarchy of `controllers`, from lines like `4:cpu,cpuacct:/a/b` and `0::/a`.
fn own_path<'a>(text: &'a str, version: Version, controllers: &[Controller]) -> Option<&'a Path> {
    text.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (names, path) = (fields.next()?, fields.next()?);
        let matches = match version {
            Version::V1 => Controller::parse_list(names, ',').iter().any(|c| controllers.contains(c)),
            Version::V2 => names.is_empty(),
        };
        matches.then(|| Path::new(path))
    })
}

/// mountinfo writes blanks and backslashes as three octal digits.
fn unescape(field: &str) -> PathBuf {
    let (mut bytes, mut rest) = (Vec::new(), field.as_bytes());
    while let [first, tail @ ..] = rest {
        let octal = tail.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if *first == b'\\' => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

/// The root cgroup has no `cgroup.kill` file even where the kernel knows it, and we may well be in
/// the root, so the kernel's release decides.
fn has_cgroup_kill(host: &Dir) -> bool {
    let release = host.read("proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|n| n.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(5), Some(14))
}
