//! This instance's directory in every hierarchy, and where in each it goes.
//!
//! A hierarchy that cannot be used is left out and named in the report; only a wrong request is an
//! error. Opening resolves paths and is done once, before the launcher leaves the host's root.

use std::cmp::Reverse;
use std::path::{Component, Path};
use std::sync::Arc;

use rustix::process::{Pid, geteuid, getpid};

use super::dir::Dir;
use super::report::Gap;
use super::{BoxCgroup, CgroupError, Controller, Discovery, Hierarchy, Report, Version, check_name, v2};

/// Where an instance puts its cgroups.
#[derive(Debug, Clone, Copy)]
pub struct Placement<'a> {
    /// Unique on this host, since [`sweep`](super::sweep) kills whatever bears it.
    pub instance: &'a str,
    /// An existing cgroup, from the root of each mount, instead of our own one.
    pub below: Option<&'a str>,
    /// The process that started us and may be moved along with us.
    pub daemon: Option<Pid>,
}

/// Whom a box's `run` cgroup is delegated to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    pub uid: u32,
    pub gid: u32,
}

/// The instance's directories, held by fd.
#[derive(Debug)]
pub struct Parent {
    name: String,
    /// Where the daemon may have had to move to.
    leaf: String,
    nodes: Vec<Node>,
    report: Report,
}

/// A cgroup in one hierarchy, with the directory that holds it.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) version: Version,
    pub(super) controllers: Vec<Controller>,
    pub(super) base: Arc<Dir>,
    pub(super) dir: Arc<Dir>,
}

impl Parent {
    pub fn open(found: &Discovery, placement: &Placement<'_>) -> Result<Self, CgroupError> {
        placement.check()?;
        let (mut nodes, mut gaps) = (Vec::new(), Vec::new());
        for hierarchy in found.v1.iter().chain(&found.v2) {
            let opened = match hierarchy.version {
                Version::V1 => open_v1(hierarchy, placement),
                Version::V2 => open_v2(hierarchy, placement, &mut gaps),
            };
            match opened {
                Ok(node) => nodes.push(node),
                Err(error) => gaps.push(Gap::new(hierarchy.version, &hierarchy.controllers, error.chain())),
            }
        }
        let report = Report::new(&nodes, &gaps);
        Ok(Self { name: placement.directory(), leaf: daemon_leaf(placement.instance), nodes, report })
    }

    /// What is enforced by what, and what is not.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Makes a box's cgroups; on failure none is left.
    pub fn create(&self, name: &str, owner: Option<Owner>) -> Result<BoxCgroup, CgroupError> {
        BoxCgroup::make(&self.nodes, name, owner)
    }

    /// Opens the cgroups that [`Parent::create`] made. What is left to do with them is seldom done, and a descriptor
    /// that the launcher holds is a place in the table of every box it makes later.
    pub fn open_box(&self, name: &str) -> Result<BoxCgroup, CgroupError> {
        BoxCgroup::open(&self.nodes, name)
    }

    /// As [`BoxCgroup::remove`], by name.
    pub fn remove_box(&self, name: &str) -> Result<(), CgroupError> {
        self.nodes.iter().try_for_each(|node| node.dir.remove(name))
    }

    /// Removes the instance's directories, once its boxes are removed, and lets the daemon back to where it was.
    pub fn remove(&self) -> Result<(), CgroupError> {
        self.nodes.iter().try_for_each(|node| {
            node.base.remove(&self.name)?;
            match node.version {
                Version::V1 => Ok(()),
                Version::V2 => v2::give_back(&node.base, &self.leaf),
            }
        })
    }
}

impl Placement<'_> {
    fn check(&self) -> Result<(), CgroupError> {
        check_name("instance", self.instance)?;
        let plain = |c| matches!(c, Component::RootDir | Component::Normal(_));
        match self.below {
            Some(path) if !Path::new(path).components().all(plain) => {
                Err(CgroupError::ParentPath { path: path.to_owned() })
            }
            _ => Ok(()),
        }
    }

    fn directory(&self) -> String {
        directory(self.instance)
    }

    /// The cgroup that holds this instance's directory: as asked, or our own.
    fn base<'a>(&'a self, hierarchy: &'a Hierarchy) -> &'a Path {
        match self.below {
            Some(path) => Path::new(path.trim_start_matches('/')),
            None => hierarchy.own.as_deref().unwrap_or(Path::new("")),
        }
    }
}

pub(super) fn directory(instance: &str) -> String {
    format!("sandcrate-{instance}")
}

/// Where the daemon moves to when its own cgroup must hold no process; the dot keeps it apart from
/// every instance's directory.
pub(super) fn daemon_leaf(instance: &str) -> String {
    format!("sandcrate-{instance}.daemon")
}

fn open_v1(hierarchy: &Hierarchy, placement: &Placement<'_>) -> Result<Node, CgroupError> {
    let base = Dir::open(&hierarchy.mount)?.sub(placement.base(hierarchy))?;
    let dir = base.make_or_open(&placement.directory())?;
    Ok(Node::new(Version::V1, &hierarchy.controllers, base, dir))
}

fn open_v2(
    hierarchy: &Hierarchy,
    placement: &Placement<'_>,
    gaps: &mut Vec<Gap>,
) -> Result<Node, CgroupError> {
    let leaf = daemon_leaf(placement.instance);
    let ours: Vec<Pid> = placement.daemon.into_iter().chain([getpid()]).collect();
    let mut best: Option<(Dir, v2::Enabled)> = None;
    for base in v2_bases(hierarchy, placement, &leaf)? {
        let enabled = v2::enable(&base, &v2::offered(&base), &leaf, &ours);
        let complete = enabled.on.len() == hierarchy.controllers.len();
        if best.as_ref().is_none_or(|(_, other)| enabled.on.len() > other.on.len()) {
            best = Some((base, enabled));
        }
        if complete {
            break;
        }
    }
    let Some((base, enabled)) = best else { unreachable!("v2_bases returns at least one") };
    let dir = base.make_or_open(&placement.directory())?;
    // The same again one level down, for the boxes.
    let below = v2::enable(&dir, &enabled.on, &leaf, &[]);
    let refused = enabled.refused.into_iter().chain(below.refused);
    gaps.extend(refused.map(|(controller, why)| Gap::new(Version::V2, &[controller], why)));
    let why = format!("cgroup `{}` does not offer it", base.path().display());
    gaps.push(Gap::new(Version::V2, &hierarchy.controllers, why));
    Ok(Node::new(Version::V2, &below.on, base, dir))
}

/// The cgroups that may hold ours, best first: the one that offers most controllers, and of equals
/// our own before the hierarchy's root, which only root may use.
fn v2_bases(hierarchy: &Hierarchy, placement: &Placement<'_>, leaf: &str) -> Result<Vec<Dir>, CgroupError> {
    let mount = Dir::open(&hierarchy.mount)?;
    let mut base = placement.base(hierarchy);
    if base.ends_with(leaf) {
        // A restarted launcher: an earlier one already moved the daemon.
        base = base.parent().unwrap_or(base);
    }
    let mut bases = vec![mount.sub(base)?];
    if placement.below.is_none() && geteuid().is_root() && !base.as_os_str().is_empty() {
        bases.push(mount);
    }
    bases.sort_by_key(|base| Reverse(v2::offered(base).len()));
    Ok(bases)
}

impl Node {
    fn new(version: Version, controllers: &[Controller], base: Dir, dir: Dir) -> Self {
        let limited = |c: &Controller| dir.has(version.limit_file(*c));
        let controllers = controllers.iter().copied().filter(limited).collect();
        Self { version, controllers, base: Arc::new(base), dir: Arc::new(dir) }
    }

    /// One directory down.
    pub(super) fn below(&self, dir: Arc<Dir>) -> Self {
        let (version, controllers) = (self.version, self.controllers.clone());
        Self { version, controllers, base: Arc::clone(&self.dir), dir }
    }
}
