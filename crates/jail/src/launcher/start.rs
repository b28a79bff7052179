//! How a launcher comes to life: leave the daemon's terminal, open what lies outside, build the template.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::event::epoll;
use rustix::fs::{Mode, OFlags, open};
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::process::{Pid, Resource, getrlimit, setrlimit};
use sandcrate_protocol::Enforcement;
use sandcrate_sys::process::{SingleThreaded, unshare};

use super::furnish::SpareFiles;
use super::network::SpareNetwork;
use super::{Launcher, Rest};
use crate::cgroup::{Discovery, Parent, Placement};
use crate::channel::Channel;
use crate::identity::{HOST_BASE, ID_COUNT, IdMapping};
use crate::message::{Failure, LauncherConfig, LauncherReply, Step};
use crate::template::{self, Draft, FullRoot, Template};
use crate::userns::{self, IdMap};

pub(super) fn start(proof: SingleThreaded, control: Channel) -> Result<Launcher, Failure> {
    // Ctrl-C at a terminal is for the daemon; it decides what becomes of the boxes.
    let _ = rustix::process::setsid();
    let _ = rustix::thread::set_name(c"sandcrate-box");
    raise_open_files();
    // Of the template, and of every command.
    rustix::process::umask(0o022.into());
    sandcrate_sys::signal::block_child_ends().step("blocking a signal")?;
    let mapping = IdMapping::for_this_user();
    // Ahead of the configuration, which a daemon that has just started us still makes; what fails is told behind
    // it. An ordinary user has to be in a namespace of their own for it.
    let ahead = (!mapping.is_rootless()).then(|| Draft::make(&proof));
    let Some((config, _)) = control.recv::<LauncherConfig>().step("receiving the configuration")? else {
        return Err(Failure { step: "the daemon is gone".into(), errno: libc::EPIPE });
    };
    // The daemon's cgroup may have to be emptied, and can be of us alone.
    let ahead = ahead.map(|draft| draft.and_then(Draft::finish));
    // Before the user namespace is left: cgroups are opened as who we are outside.
    let mut enforcement = Enforcement::new();
    let cgroups = open_cgroups(&config, &mut enforcement);
    let ready = build_home(&proof, mapping, ahead, &config).and_then(|home| {
        let shelf = open(template::FILES, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .step("opening the storage")?;
        control
            .send(&LauncherReply::Ready { enforcement }, &[shelf.as_fd()])
            .step("reporting to the daemon")
            .map(|()| home)
    });
    match ready {
        Ok(Home { host_mounts, own_mounts, spare_network, template, events, children }) => Ok(Launcher {
            proof,
            control,
            events,
            children,
            mapping,
            host_mounts,
            own_mounts,
            template,
            cgroups,
            filters: HashMap::new(),
            boxes: BTreeMap::new(),
            spare_cgroup: None,
            open_cgroup: None,
            boxes_ahead: config.boxes_ahead,
            // While the daemon hears that we are up.
            stock_after: Some(Rest::BehindFurnished),
            made_cgroups: 0,
            spare_files: SpareFiles::default(),
            spare_network,
            idmaps: HashMap::new(),
            images: Vec::new(),
            mounted_images: 0,
        }),
        Err(failure) => {
            // A daemon that died meanwhile, for one: nobody else knows of these.
            if let Some(cgroups) = cgroups {
                let _ = cgroups.remove();
            }
            Err(failure)
        }
    }
}

/// Where a launcher lives, and where it came from.
struct Home {
    host_mounts: OwnedFd,
    own_mounts: OwnedFd,
    spare_network: SpareNetwork,
    template: Template,
    events: OwnedFd,
    children: OwnedFd,
}

fn build_home(
    proof: &SingleThreaded,
    mapping: IdMapping,
    ahead: Option<Result<FullRoot, Failure>>,
    config: &LauncherConfig,
) -> Result<Home, Failure> {
    if let IdMapping::Single { uid, gid } = mapping {
        // With a copy of the host's mounts that it may clone from.
        userns::enter_own(proof, uid, gid, libc::CLONE_NEWNS)?;
    }
    let host_mounts = mount_namespace()?;
    unshare(proof, libc::CLONE_NEWNS).step("making a mount namespace")?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .step("making mounts private")?;
    let root = ahead.unwrap_or_else(|| Draft::make(proof).and_then(Draft::finish))?;
    let idmap = match mapping {
        IdMapping::Range => {
            let map = format!("0 {HOST_BASE} {ID_COUNT}\n");
            Some(IdMap::make(proof, &map, &map).step("making an id map")?)
        }
        IdMapping::Single { .. } => None,
    };
    let template = template::build(root, idmap.as_ref().map(AsFd::as_fd), &config.directory)?;
    template::mount_files(mapping.is_rootless())?;
    let own_mounts = mount_namespace()?;
    let events = epoll::create(epoll::CreateFlags::CLOEXEC).step("making an event queue")?;
    let children = sandcrate_sys::fd::child_signals().step("watching boxes")?;
    let spare_network = SpareNetwork::new(mapping)?;
    Ok(Home { host_mounts, own_mounts, spare_network, template, events, children })
}

fn mount_namespace() -> Result<OwnedFd, Failure> {
    open("/proc/self/ns/mnt", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .step("opening the mount namespace")
}

fn open_cgroups(config: &LauncherConfig, enforcement: &mut Enforcement) -> Option<Parent> {
    let opened = Discovery::probe(Path::new("/")).and_then(|found| {
        Parent::open(
            &found,
            &Placement {
                instance: &config.instance,
                below: config.cgroup_parent.as_deref(),
                daemon: Pid::from_raw(config.daemon_pid),
            },
        )
    });
    match opened {
        Ok(parent) => {
            crate::cgroup_report::record(parent.report(), enforcement);
            Some(parent)
        }
        Err(error) => {
            crate::cgroup_report::record_none(&error.to_string(), enforcement);
            None
        }
    }
}

/// A box costs the launcher a handful of descriptors; what the machine allows at most is for them.
fn raise_open_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
}
