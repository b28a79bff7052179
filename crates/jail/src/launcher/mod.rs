//! The launcher: the small, single-threaded process that makes boxes, and the janitor that ends them.
//!
//! The daemon starts it as a hidden role of its own binary and talks to it over one channel. It alone clones:
//! a fork of the daemon would copy the daemon's memory map and run among its threads. When the channel ends, for
//! whatever reason, it ends every box, removes their cgroups and is gone: nothing depends on a clean shutdown.

mod furnish;
mod images;
mod network;
mod start;

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{Timespec, epoll};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use sandcrate_sys::process::{Fork, SingleThreaded, WaitStatus, exit_now, fork, reap};
use sandcrate_sys::seccomp::Instruction;

use crate::cgroup::{BoxCgroup, CgroupError, Confined, Owner, Parent};
use crate::channel::Channel;
use crate::identity::{BOX_USER, IdMapping};
use crate::init::{self, Filters, Inheritance};
use crate::message::{
    ConfineReply, Failure, FilterInstruction, ImageRoot, LauncherReply, LauncherRequest, Step,
};
use crate::plan::NetworkMode;
use crate::template::Template;
use crate::userns::{self, IdMap};
use furnish::SpareFiles;

/// Events of the daemon's channel, and of boxes that have ended.
const CONTROL: u64 = 0;
const CHILDREN: u64 = 1;

/// What happened last. When nothing has been asked for some time, there is time for what may be asked next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rest {
    /// Behind a new box more will be asked for soon.
    BehindNew,
    /// Behind one that is furnished nothing.
    BehindFurnished,
    /// What the next box needs is there. Before more is made for a crowd, the one that came last gets the cores.
    BeforeMore,
}

impl Rest {
    fn time(self) -> &'static Timespec {
        const fn millis(count: i64) -> Timespec {
            Timespec { tv_sec: 0, tv_nsec: count * 1_000_000 }
        }
        const NONE: Timespec = millis(0);
        const SHORT: Timespec = millis(10);
        const LONG: Timespec = millis(20);
        match self {
            Self::BehindFurnished => &NONE,
            Self::BehindNew => &SHORT,
            Self::BeforeMore => &LONG,
        }
    }
}

/// How much is made for a crowd, or removed behind one, before a request is looked for.
const MORE_AT_ONCE: usize = 4;

/// Everything the launcher holds.
struct Launcher {
    proof: SingleThreaded,
    control: Channel,
    events: OwnedFd,
    /// Readable when a child has ended.
    children: OwnedFd,
    mapping: IdMapping,
    /// The mount namespace in which paths of the host mean something, and our own.
    host_mounts: OwnedFd,
    own_mounts: OwnedFd,
    template: Template,
    cgroups: Option<Parent>,
    /// Compiled once for each kind of network that boxes ask for.
    filters: HashMap<NetworkMode, Filters>,
    /// A sorted map of plain numbers: what is written here after a box was cloned stays in that box as it was
    /// before, so a new box should change one page, and hold no descriptor.
    boxes: BTreeMap<u64, BoxRecord>,
    /// Cgroups for the next box.
    spare_cgroup: Option<Numbered>,
    /// Those of the latest box, until its limits are set: that is asked for right behind.
    open_cgroup: Option<(u64, BoxCgroup)>,
    boxes_ahead: usize,
    /// After which rest there is something to make for the next box.
    stock_after: Option<Rest>,
    made_cgroups: u64,
    /// Directories for the storage of the next boxes.
    spare_files: SpareFiles,
    spare_network: network::SpareNetwork,
    /// User namespaces for id-mapped mounts, by disk owner and box user.
    idmaps: HashMap<(u32, u32, u32), IdMap>,
    /// Those that boxes are made of now: few, so that each box copies few mounts.
    images: Vec<images::MountedImage>,
    mounted_images: u64,
}

/// Its number is its own until we have waited for it, so nobody else is ever killed for it.
#[derive(Debug, Clone, Copy)]
struct BoxRecord {
    pid: Pid,
    cgroup: Option<u64>,
    /// The image it is made of.
    image: Option<u64>,
}

/// A box's cgroups, and the number in their name.
#[derive(Debug)]
struct Numbered {
    number: u64,
    cgroup: BoxCgroup,
}

/// The launcher's life.
pub(crate) fn run(proof: SingleThreaded, control: Channel) -> ! {
    // Whatever else the daemon had open when it started us.
    if sandcrate_sys::fd::close_all_but(&proof, &[control.as_fd()]).is_err() {
        exit_now(1);
    }
    let reporter = control.as_fd().try_clone_to_owned().map(Channel::from);
    let result = start::start(proof, control).and_then(Launcher::serve);
    if let (Err(failure), Ok(reporter)) = (result, reporter) {
        let _ = reporter.send(&LauncherReply::Unusable { failure }, &[]);
        exit_now(1);
    }
    exit_now(0)
}

impl Launcher {
    fn serve(mut self) -> Result<(), Failure> {
        epoll::add(&self.events, &self.control, epoll::EventData::new_u64(CONTROL), epoll::EventFlags::IN)
            .step("watching the daemon")?;
        epoll::add(&self.events, &self.children, epoll::EventData::new_u64(CHILDREN), epoll::EventFlags::IN)
            .step("watching boxes")?;
        let mut ready = Vec::with_capacity(64);
        loop {
            ready.clear();
            match epoll::wait(
                &self.events,
                rustix::buffer::spare_capacity(&mut ready),
                self.stock_after.map(Rest::time),
            ) {
                Err(rustix::io::Errno::INTR) => continue,
                other => other.step("waiting")?,
            };
            if ready.is_empty() {
                self.stock();
            }
            for event in &ready {
                match event.data.u64() {
                    CONTROL => {
                        if !self.handle_request() {
                            self.end_everything();
                            return Ok(());
                        }
                    }
                    _ => self.bury()?,
                }
            }
        }
    }

    /// False when the daemon is gone.
    fn handle_request(&mut self) -> bool {
        let Ok(Some((request, fds))) = self.control.recv::<LauncherRequest>() else { return false };
        match request {
            LauncherRequest::Prepare { box_id, network, image } => {
                match self.prepare(box_id, network, image, fds) {
                    Ok(()) => {}
                    Err(failure) => self.reply(&LauncherReply::Failed { box_id, failure }, &[]),
                }
            }
            LauncherRequest::Furnish { box_id, order } => match self.furnish(box_id, &order, fds) {
                Ok(mounts) => {
                    let mounts: Vec<_> = mounts.iter().map(AsFd::as_fd).collect();
                    self.reply(&LauncherReply::Furnished { box_id }, &mounts);
                    self.stock_after = (self.boxes_ahead > 0).then_some(Rest::BehindFurnished);
                }
                Err(failure) => self.reply(&LauncherReply::Failed { box_id, failure }, &[]),
            },
            LauncherRequest::Policy { network, filters } => {
                self.filters.insert(
                    network,
                    Filters { init: program(&filters.init), command: program(&filters.command) },
                );
            }
            LauncherRequest::Freeze { box_id, frozen } => {
                if let Some(Ok(cgroup)) = self.open_cgroup(box_id) {
                    // A box that cannot be frozen is ended by the daemon anyway.
                    let _ = if frozen { cgroup.freeze() } else { cgroup.thaw() };
                }
            }
            LauncherRequest::Confine { box_id, memory_bytes } => {
                if let Some(asker) = fds.into_iter().next().map(Channel::from) {
                    self.confine(box_id, memory_bytes, &asker);
                }
            }
        }
        true
    }

    /// Clones a new init into all its namespaces and its cgroup, and lets it go once its ids are mapped.
    fn prepare(
        &mut self,
        box_id: u64,
        network: NetworkMode,
        image: Option<ImageRoot>,
        fds: Vec<OwnedFd>,
    ) -> Result<(), Failure> {
        let mut fds = fds.into_iter();
        let control = fds.next().map(Channel::from);
        let control =
            control.ok_or_else(|| Failure { step: "no channel for init".into(), errno: libc::EBADF })?;
        if !self.filters.contains_key(&network) {
            return Err(Failure { step: "no policy for this network".into(), errno: libc::EINVAL });
        }
        let image = match (image, fds.next()) {
            (None, _) => None,
            (Some(image), Some(directory)) => Some(self.mount_image(&image, &directory)?),
            (Some(_), None) => {
                return Err(Failure { step: "no directory of the image".into(), errno: libc::EBADF });
            }
        };
        let begun = self.begin(box_id, network, image, control);
        if let (Err(_), Some(image)) = (&begun, image) {
            self.release_image(image);
        }
        begun
    }

    fn begin(
        &mut self,
        box_id: u64,
        network: NetworkMode,
        image: Option<u64>,
        control: Channel,
    ) -> Result<(), Failure> {
        self.stock_after = (self.boxes_ahead > 0).then_some(Rest::BehindNew);
        let cgroup = match self.spare_cgroup.take() {
            Some(spare) => Some(spare),
            None => self.make_cgroup()?,
        };
        let open = cgroup.as_ref().map(|numbered| &numbered.cgroup);
        let (pid, pidfd, release) = match self.clone_init(control, network, image, open) {
            Ok(cloned) => cloned,
            Err(failure) => {
                if let Some(Numbered { cgroup, .. }) = cgroup {
                    let _ = cgroup.remove();
                }
                return Err(failure);
            }
        };
        let number = cgroup.as_ref().map(|numbered| numbered.number);
        self.boxes.insert(box_id, BoxRecord { pid, cgroup: number, image });
        self.open_cgroup = cgroup.map(|numbered| (box_id, numbered.cgroup));
        self.release(box_id, pid, &pidfd, &release)
    }

    /// The parent's side: init's pid and pidfd, and the pipe that lets it go.
    fn clone_init(
        &mut self,
        control: Channel,
        network: NetworkMode,
        image: Option<u64>,
        cgroup: Option<&BoxCgroup>,
    ) -> Result<(Pid, OwnedFd, OwnedFd), Failure> {
        let (go, release) = pipe_with(PipeFlags::CLOEXEC).step("making a pipe")?;
        let run_directory = cgroup.and_then(BoxCgroup::run_dir).map(|fd| fd.try_clone_to_owned()).transpose();
        let mut inheritance = Inheritance {
            control,
            go,
            tasks: cgroup.map_or(Ok(Vec::new()), BoxCgroup::v1_task_files).step("opening cgroup files")?,
            run_directory: run_directory.step("opening the run cgroup")?,
            mapping: self.mapping,
            network,
            has_loopback: false,
            root: images::root_of(image),
        };
        let mut flags = libc::CLONE_NEWUSER
            | libc::CLONE_NEWNS
            | libc::CLONE_NEWPID
            | libc::CLONE_NEWIPC
            | libc::CLONE_NEWUTS;
        let (proof, template, filters) = (&self.proof, &self.template, &self.filters);
        let cgroup = cgroup.and_then(BoxCgroup::unified_dir);
        let cloned = self.spare_network.within(network, |has_network| {
            inheritance.has_loopback = has_network;
            if network.has_own_namespace() && !has_network {
                flags |= libc::CLONE_NEWNET;
            }
            fork(proof, flags as u64, cgroup).step("cloning a box")
        })?;
        match cloned {
            Fork::Child(proof) => init::run(proof, inheritance, template, filters),
            Fork::Parent { pid, pidfd } => {
                let pid = Pid::from_raw(pid)
                    .ok_or_else(|| Failure { step: "a child without a number".into(), errno: libc::ESRCH })?;
                Ok((pid, pidfd, release))
            }
        }
    }

    /// Makes ahead of time what the next boxes will need.
    fn stock(&mut self) {
        let rest = self.stock_after.take();
        self.stock_files(if rest == Some(Rest::BeforeMore) { MORE_AT_ONCE } else { 0 });
        self.stock_after = self.has_files_to_stock().then_some(Rest::BeforeMore);
        self.spare_network.stock(&self.proof);
        if self.spare_cgroup.is_none() {
            // One that cannot be made now is tried again, and reported, when it is needed.
            self.spare_cgroup = self.make_cgroup().ok().flatten();
        }
    }

    fn make_cgroup(&mut self) -> Result<Option<Numbered>, Failure> {
        let Some(parent) = &self.cgroups else { return Ok(None) };
        self.made_cgroups += 1;
        let number = self.made_cgroups;
        let id = self.mapping.init_user();
        let owner = Owner { uid: self.mapping.host_uid(id), gid: self.mapping.host_gid(id) };
        let owner = (!self.mapping.is_rootless()).then_some(owner);
        parent
            .create(&cgroup_name(number), owner)
            .map(|cgroup| Some(Numbered { number, cgroup }))
            .map_err(|error| Failure { step: format!("making cgroups ({error})"), errno: libc::EIO })
    }

    /// A box's cgroups; nothing for one that is gone or has none.
    fn open_cgroup(&mut self, box_id: u64) -> Option<Result<BoxCgroup, CgroupError>> {
        let number = self.boxes.get(&box_id)?.cgroup?;
        match self.open_cgroup.take() {
            Some((of, cgroup)) if of == box_id => Some(Ok(cgroup)),
            other => {
                self.open_cgroup = other;
                Some(self.cgroups.as_ref()?.open_box(&cgroup_name(number)))
            }
        }
    }

    fn confine(&mut self, box_id: u64, memory_bytes: u64, asker: &Channel) {
        let confined = match self.open_cgroup(box_id) {
            Some(Ok(cgroup)) => cgroup.confine(memory_bytes),
            Some(Err(error)) => Err(error),
            None => Err(CgroupError::NoMemory),
        };
        let (reply, fds): (ConfineReply, Vec<OwnedFd>) = match confined {
            Ok(Confined { tasks, usage }) => (Ok(()), tasks.into_iter().chain(usage).collect()),
            Err(error) => (Err(Failure { step: error.chain(), errno: libc::ENOTSUP }), Vec::new()),
        };
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        // Whoever asked may have given up.
        let _ = asker.send(&reply, &fds);
    }

    fn release(&mut self, box_id: u64, pid: Pid, pidfd: &OwnedFd, release: &OwnedFd) -> Result<(), Failure> {
        let (uids, gids) = self.mapping.proc_maps(BOX_USER);
        let released = userns::write_maps(pid.as_raw_pid(), &uids, &gids, self.mapping.is_rootless())
            .step("mapping the box's ids")
            .and_then(|()| rustix::io::write(release, &[1]).step("releasing init"));
        if let Err(failure) = released {
            let _ = kill_process(pid, Signal::KILL);
            return Err(failure);
        }
        let usage = self.open_cgroup.as_ref().map_or(Ok(Vec::new()), |(_, cgroup)| cgroup.usage_dirs());
        let usage = usage.step("opening cgroup files")?;
        let mut fds = vec![pidfd.as_fd()];
        fds.extend(usage.iter().map(AsFd::as_fd));
        self.reply(&LauncherReply::Prepared { box_id }, &fds);
        Ok(())
    }

    /// Inits have ended, and with each everything in its PID namespace.
    fn bury(&mut self) -> Result<(), Failure> {
        let _ = rustix::io::read(&self.children, &mut [0_u8; 1024]);
        while let Some(ended) = reap().step("reaping")? {
            let found = self.boxes.iter().find(|(_, record)| record.pid.as_raw_pid() == ended.pid);
            let Some((&box_id, &record)) = found else { continue };
            self.boxes.remove(&box_id);
            self.open_cgroup.take_if(|(of, _)| *of == box_id);
            if let (Some(number), Some(parent)) = (record.cgroup, &self.cgroups) {
                // What cannot be removed now goes with the parent, or at the next start.
                let _ = parent.remove_box(&cgroup_name(number));
            }
            if let Some(image) = record.image {
                self.release_image(image);
            }
            let status = match ended.status {
                WaitStatus::Code(code) => format!("init exited with {code}"),
                WaitStatus::Signal(signal) => format!("init was killed by signal {signal}"),
            };
            self.reply(&LauncherReply::Gone { box_id, status }, &[]);
        }
        Ok(())
    }

    /// The daemon is gone: so is everything it had.
    fn end_everything(self) {
        for record in self.boxes.values() {
            let _ = kill_process(record.pid, Signal::KILL);
        }
        for record in self.boxes.into_values() {
            let _ = waitid(WaitId::Pid(record.pid), WaitIdOptions::EXITED);
            if let (Some(number), Some(parent)) = (record.cgroup, &self.cgroups) {
                let name = cgroup_name(number);
                let _ = parent.open_box(&name).and_then(|cgroup| cgroup.kill());
                let _ = parent.remove_box(&name);
            }
        }
        if let Some(Numbered { cgroup, .. }) = self.spare_cgroup {
            let _ = cgroup.remove();
        }
        if let Some(parent) = self.cgroups {
            let _ = parent.remove();
        }
    }

    fn reply(&self, reply: &LauncherReply, fds: &[BorrowedFd<'_>]) {
        // A daemon that is gone is noticed by the next receive.
        let _ = self.control.send(reply, fds);
    }
}

fn cgroup_name(number: u64) -> String {
    format!("box-{number}")
}

fn program(instructions: &[FilterInstruction]) -> Vec<Instruction> {
    instructions.iter().map(|&(code, jt, jf, k)| Instruction { code, jt, jf, k }).collect()
}
