//! The launcher: the small, single-threaded process that makes boxes, and the janitor that ends them.
//!
//! The daemon starts it as a hidden role of its own binary and talks to it over one channel. It alone clones:
//! a fork of the daemon would copy the daemon's memory map and run among its threads. When the channel ends, for
//! whatever reason, it ends every box, removes their cgroups and is gone: nothing depends on a clean shutdown.

mod furnish;
mod start;

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{Timespec, epoll};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};
use sandcrate_sys::process::{Fork, SingleThreaded, exit_now, fork};
use sandcrate_sys::seccomp::Instruction;

use crate::cgroup::{BoxCgroup, ClosedCgroup, Owner, Parent};
use crate::channel::Channel;
use crate::identity::{BOX_USER, IdMapping};
use crate::init::{self, Filters, Inheritance};
use crate::message::{Failure, FilterInstruction, LauncherReply, LauncherRequest, Step};
use crate::plan::NetworkMode;
use crate::template::Template;
use crate::userns;

/// The event of the daemon's channel; boxes have their own ids.
const CONTROL: u64 = u64::MAX;

/// When nothing has been asked for so long, there is time for what may be asked next.
const REST: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// Everything the launcher holds.
struct Launcher {
    proof: SingleThreaded,
    control: Channel,
    events: OwnedFd,
    mapping: IdMapping,
    /// The mount namespace in which paths of the host mean something, and our own.
    host_mounts: OwnedFd,
    own_mounts: OwnedFd,
    template: Template,
    cgroups: Option<Parent>,
    /// Compiled once for each kind of network that boxes ask for.
    filters: HashMap<NetworkMode, Filters>,
    boxes: HashMap<u64, BoxRecord>,
    /// Cgroups for the next box.
    spare_cgroup: Option<BoxCgroup>,
    wants_cgroup: bool,
    made_cgroups: u64,
    /// User namespaces for id-mapped mounts, by disk owner and box user.
    idmaps: HashMap<(u32, u32, u32), OwnedFd>,
}

struct BoxRecord {
    pidfd: OwnedFd,
    /// Until its limits are set.
    open_cgroup: Option<BoxCgroup>,
    cgroup: Option<ClosedCgroup>,
}

/// The launcher's life: standard input is the channel to the daemon.
pub(crate) fn run() -> ! {
    let Ok(proof) = SingleThreaded::prove() else { exit_now(1) };
    let Ok(control) = sandcrate_sys::fd::take_stdin().map(Channel::from) else { exit_now(1) };
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
        let mut ready = Vec::with_capacity(64);
        loop {
            ready.clear();
            let patience = self.wants_cgroup.then_some(&REST);
            match epoll::wait(&self.events, rustix::buffer::spare_capacity(&mut ready), patience) {
                Err(rustix::io::Errno::INTR) => continue,
                other => other.step("waiting")?,
            };
            if ready.is_empty() {
                self.stock_cgroup();
            }
            for event in &ready {
                match event.data.u64() {
                    CONTROL => {
                        if !self.handle_request() {
                            self.end_everything();
                            return Ok(());
                        }
                    }
                    box_id => self.bury(box_id),
                }
            }
        }
    }

    /// False when the daemon is gone.
    fn handle_request(&mut self) -> bool {
        let Ok(Some((request, fds))) = self.control.recv::<LauncherRequest>() else { return false };
        match request {
            LauncherRequest::Prepare { box_id, network } => match self.prepare(box_id, network, fds) {
                Ok(()) => {}
                Err(failure) => self.reply(&LauncherReply::Failed { box_id, failure }, &[]),
            },
            LauncherRequest::Furnish { box_id, order } => match self.furnish(box_id, &order, fds) {
                Ok(mounts) => {
                    let mounts: Vec<_> = mounts.iter().map(AsFd::as_fd).collect();
                    self.reply(&LauncherReply::Furnished { box_id }, &mounts);
                    // Nobody waits for us now.
                    self.stock_cgroup();
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
                if let Some(BoxRecord { cgroup: Some(cgroup), .. }) = self.boxes.get(&box_id) {
                    // A box that cannot be frozen is ended by the daemon anyway.
                    let _ = if frozen { cgroup.freeze() } else { cgroup.thaw() };
                }
            }
        }
        true
    }

    /// Clones a new init into all its namespaces and its cgroup, and lets it go once its ids are mapped.
    fn prepare(&mut self, box_id: u64, network: NetworkMode, fds: Vec<OwnedFd>) -> Result<(), Failure> {
        let control = fds.into_iter().next().map(Channel::from);
        let control =
            control.ok_or_else(|| Failure { step: "no channel for init".into(), errno: libc::EBADF })?;
        if !self.filters.contains_key(&network) {
            return Err(Failure { step: "no policy for this network".into(), errno: libc::EINVAL });
        }
        self.wants_cgroup = true;
        let cgroup = match self.spare_cgroup.take() {
            Some(spare) => Some(spare),
            None => self.make_cgroup()?,
        };
        let (pid, pidfd, release) = match self.clone_init(control, network, cgroup.as_ref()) {
            Ok(cloned) => cloned,
            Err(failure) => {
                if let Some(cgroup) = cgroup {
                    let _ = cgroup.remove();
                }
                return Err(failure);
            }
        };
        let closed = cgroup.as_ref().map(BoxCgroup::closed);
        self.boxes.insert(box_id, BoxRecord { pidfd, open_cgroup: cgroup, cgroup: closed });
        self.release(box_id, pid, &release)
    }

    /// The parent's side: init's pid and pidfd, and the pipe that lets it go.
    fn clone_init(
        &self,
        control: Channel,
        network: NetworkMode,
        cgroup: Option<&BoxCgroup>,
    ) -> Result<(i32, OwnedFd, OwnedFd), Failure> {
        let (go, release) = pipe_with(PipeFlags::CLOEXEC).step("making a pipe")?;
        let run_directory = cgroup.and_then(BoxCgroup::run_dir).map(|fd| fd.try_clone_to_owned()).transpose();
        let inheritance = Inheritance {
            control,
            go,
            tasks: cgroup.map_or(Ok(Vec::new()), BoxCgroup::v1_task_files).step("opening cgroup files")?,
            run_directory: run_directory.step("opening the run cgroup")?,
            mapping: self.mapping,
            network,
        };
        let mut flags = libc::CLONE_NEWUSER
            | libc::CLONE_NEWNS
            | libc::CLONE_NEWPID
            | libc::CLONE_NEWIPC
            | libc::CLONE_NEWUTS;
        if network == NetworkMode::Off {
            flags |= libc::CLONE_NEWNET;
        }
        match fork(&self.proof, flags as u64, cgroup.and_then(BoxCgroup::unified_dir))
            .step("cloning a box")?
        {
            Fork::Child(proof) => init::run(proof, inheritance, &self.template, &self.filters[&network]),
            Fork::Parent { pid, pidfd } => Ok((pid, pidfd, release)),
        }
    }

    /// Makes the cgroups of the next box ahead of time.
    fn stock_cgroup(&mut self) {
        self.wants_cgroup = false;
        if self.spare_cgroup.is_none() {
            // One that cannot be made now is tried again, and reported, when it is needed.
            self.spare_cgroup = self.make_cgroup().ok().flatten();
        }
    }

    fn make_cgroup(&mut self) -> Result<Option<BoxCgroup>, Failure> {
        let Some(parent) = &self.cgroups else { return Ok(None) };
        self.made_cgroups += 1;
        let id = self.mapping.init_user();
        let owner = Owner { uid: self.mapping.host_uid(id), gid: self.mapping.host_gid(id) };
        let owner = (!self.mapping.is_rootless()).then_some(owner);
        parent
            .create(&format!("box-{}", self.made_cgroups), owner)
            .map(Some)
            .map_err(|error| Failure { step: format!("making cgroups ({error})"), errno: libc::EIO })
    }

    fn release(&mut self, box_id: u64, pid: i32, release: &OwnedFd) -> Result<(), Failure> {
        let record = &self.boxes[&box_id];
        let (uids, gids) = self.mapping.proc_maps(BOX_USER);
        let released = userns::write_maps(pid, &uids, &gids, self.mapping.is_rootless())
            .step("mapping the box's ids")
            .and_then(|()| rustix::io::write(release, &[1]).step("releasing init"));
        if let Err(failure) = released {
            let _ = pidfd_send_signal(&record.pidfd, Signal::KILL);
            self.watch(box_id)?;
            return Err(failure);
        }
        let usage = record
            .open_cgroup
            .as_ref()
            .map_or(Ok(Vec::new()), BoxCgroup::usage_dirs)
            .step("opening cgroup files")?;
        let mut fds = vec![record.pidfd.as_fd()];
        fds.extend(usage.iter().map(AsFd::as_fd));
        self.reply(&LauncherReply::Prepared { box_id }, &fds);
        self.watch(box_id)
    }

    fn watch(&self, box_id: u64) -> Result<(), Failure> {
        let data = epoll::EventData::new_u64(box_id);
        epoll::add(&self.events, &self.boxes[&box_id].pidfd, data, epoll::EventFlags::IN)
            .step("watching init")
    }

    /// Init has ended, and with it everything in its PID namespace.
    fn bury(&mut self, box_id: u64) {
        let Some(record) = self.boxes.remove(&box_id) else { return };
        let status = wait(&record.pidfd);
        let _ = epoll::delete(&self.events, &record.pidfd);
        if let Some(cgroup) = record.cgroup {
            // What cannot be removed now goes with the parent, or at the next start.
            let _ = cgroup.remove();
        }
        self.reply(&LauncherReply::Gone { box_id, status }, &[]);
    }

    /// The daemon is gone: so is everything it had.
    fn end_everything(self) {
        for record in self.boxes.values() {
            let _ = pidfd_send_signal(&record.pidfd, Signal::KILL);
        }
        for record in self.boxes.into_values() {
            wait(&record.pidfd);
            if let Some(cgroup) = record.cgroup {
                let _ = cgroup.kill();
                let _ = cgroup.remove();
            }
        }
        if let Some(spare) = self.spare_cgroup {
            let _ = spare.remove();
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

fn wait(pidfd: &OwnedFd) -> String {
    match waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED) {
        Ok(Some(status)) => match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => format!("init exited with {code}"),
            (_, Some(signal)) => format!("init was killed by signal {signal}"),
            _ => "init ended".to_owned(),
        },
        _ => "init ended".to_owned(),
    }
}

fn program(instructions: &[FilterInstruction]) -> Vec<Instruction> {
    instructions.iter().map(|&(code, jt, jf, k)| Instruction { code, jt, jf, k }).collect()
}
