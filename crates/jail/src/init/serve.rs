//! The second life of PID 1: start, signal, kill and reap, one request at a time, never waiting for what others could
//! hold up.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use sandcrate_sys::process::{
    Ended, Fork, SingleThreaded, WaitStatus, exit_now, fork, kill_everyone_else, own_peak_rss, reap,
};
use sandcrate_sys::seccomp::Instruction;
use sandcrate_sys::shared_spawn;

use super::command::{Identity, Never, Program, Stdio, become_program, open_terminal, script_path};
use super::files;
use super::oom_score::OomScore;
use crate::cgroup::{CommandCgroup, CpuTime};
use crate::channel::Channel;
use crate::message::{
    EndStatus, Failure, FileOperation, InitReply, InitRequest, ProcessEnd, StartCommand, Step,
};
use crate::tree;

/// Command cgroups kept for the next command: making one costs as much as the rest of init's part.
const IDLE_CGROUPS: usize = 4;

/// When nothing has been asked for so long, what is kept ready for the next command is given back. That command then
/// takes up to a fifth longer: commands that follow each other closely must not feel it, a person does not.
const REST: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };

/// An init that once took a long message has a peak that no later command should be charged with.
const SMALL: u64 = 8 << 20;

struct Init<'a> {
    proof: SingleThreaded,
    control: Channel,
    run_directory: Option<OwnedFd>,
    oom_score: OomScore,
    identity: Identity,
    filter: &'a [Instruction],
    /// Others have directories that are mounted here.
    shares_directories: bool,
    /// By pid.
    children: HashMap<i32, Child>,
    idle: Vec<(CommandCgroup, CpuTime)>,
    /// Cgroups of commands that have ended, until they are empty.
    lingering: Vec<Lingering>,
    made_cgroups: u32,
    /// Ended commands without a cgroup of whose group somebody is left, by pid.
    survived: HashSet<i32>,
}

struct Lingering {
    cgroup: CommandCgroup,
    /// It is not used again: it has a bound of its own, or was killed once and would kill whatever is cloned into it
    /// later (Linux 6.18).
    spent: bool,
}

struct Child {
    id: u32,
    task: Task,
}

enum Task {
    Command {
        cgroup: Option<(CommandCgroup, CpuTime)>,
        script: bool,
        killed: bool,
        bounded: bool,
        terminated: bool,
    },
    Worker,
}

/// Serves until the daemon is gone.
pub(super) fn serve(
    proof: SingleThreaded,
    control: Channel,
    run_directory: Option<OwnedFd>,
    oom_score: OomScore,
    identity: Identity,
    shares_directories: bool,
    filter: &[Instruction],
) -> Result<(), Failure> {
    sandcrate_sys::signal::block_all().step("blocking signals")?;
    // Inherited by every command.
    sandcrate_sys::signal::reset_dispositions().step("resetting signals")?;
    let signals = sandcrate_sys::fd::child_signals().step("watching children")?;
    let mut init = Init {
        proof,
        control,
        run_directory,
        oom_score,
        identity,
        filter,
        shares_directories,
        children: HashMap::new(),
        idle: Vec::new(),
        lingering: Vec::new(),
        made_cgroups: 0,
        survived: HashSet::new(),
    };
    // For the first command, while nobody asks yet; one that cannot be made is reported when it is needed.
    if let Ok(Some(cgroup)) = init.command_cgroup() {
        init.idle.push(cgroup);
    }
    let mut resting = false;
    loop {
        let (requests, children) = {
            let mut ready = [PollFd::new(&init.control, PollFlags::IN), PollFd::new(&signals, PollFlags::IN)];
            match poll(&mut ready, (!resting).then_some(&REST)) {
                Err(rustix::io::Errno::INTR) => continue,
                other => other.step("waiting")?,
            };
            (!ready[0].revents().is_empty(), !ready[1].revents().is_empty())
        };
        resting = !requests && !children;
        if resting {
            init.rest();
        }
        // Ends before requests: a request may be about a child that has just ended.
        if children {
            let _ = rustix::io::read(&signals, &mut [0_u8; 1024]);
            init.reap_all(requests)?;
        }
        if requests && !init.handle_request()? {
            return Ok(());
        }
    }
}

impl Init<'_> {
    /// False when the daemon is gone.
    fn handle_request(&mut self) -> Result<bool, Failure> {
        let Some((request, fds)) = self.control.recv::<InitRequest>().step("receiving a request")? else {
            return Ok(false);
        };
        match request {
            InitRequest::Start { id, command, memory_bytes } => self.start(id, &command, memory_bytes, fds),
            InitRequest::File { id, operation } => self.start_worker(id, &operation, fds.into_iter().next()),
            InitRequest::Signal { id, signal } => self.signal(id, signal),
            InitRequest::Terminate { id } => self.terminate(id),
            InitRequest::Kill { id } => self.kill(id),
            // A box is configured once.
            InitRequest::Configure { .. } => return Ok(false),
        }
        Ok(true)
    }

    fn start(&mut self, id: u32, command: &StartCommand, memory_bytes: Option<u64>, fds: Vec<OwnedFd>) {
        if let Err(failure) = self.try_start(id, command, memory_bytes, fds) {
            self.reply(&InitReply::StartFailed { id, failure });
            let ended = ProcessEnd {
                status: EndStatus::Code(126),
                user_micros: 0,
                system_micros: 0,
                peak_rss_bytes: 0,
            };
            self.reply(&InitReply::Exited { id, ended });
        }
    }

    fn try_start(
        &mut self,
        id: u32,
        command: &StartCommand,
        memory_bytes: Option<u64>,
        fds: Vec<OwnedFd>,
    ) -> Result<(), Failure> {
        let program = Program::new(id, command)?;
        let mut fds = fds.into_iter();
        let mut master = None;
        let stdio = if let Some((rows, cols)) = command.terminal {
            let (end, slave) = open_terminal(rows, cols).step("opening a terminal")?;
            master = Some(end);
            Stdio::Terminal { slave }
        } else {
            let (Some(stdin), Some(stdout), Some(stderr)) = (fds.next(), fds.next(), fds.next()) else {
                return Err(Failure { step: "three streams are needed".into(), errno: libc::EBADF });
            };
            Stdio::Pipes { stdin, stdout, stderr }
        };
        let memory_tasks = fds.next();
        let own_bound = memory_bytes.filter(|_| memory_tasks.is_none());
        let cgroup = match own_bound {
            Some(bytes) => Some(self.bounded_cgroup(bytes)?),
            None => self.command_cgroup()?,
        };
        let become_it = || {
            let joined = memory_tasks.as_ref().map(AsFd::as_fd);
            become_program(command, &program, &stdio, joined, self.identity, self.filter)
        };
        match self.spawn(id, cgroup.as_ref().map(|(cgroup, _)| cgroup.dir()), become_it) {
            Ok(pid) => {
                let task = Task::Command {
                    cgroup,
                    script: command.script.is_some(),
                    killed: false,
                    bounded: own_bound.is_some(),
                    terminated: false,
                };
                self.children.insert(pid, Child { id, task });
                if let Some(master) = master {
                    let _ = self.control.send(&InitReply::Terminal { id }, &[master.as_fd()]);
                }
                Ok(())
            }
            Err(error) => {
                match own_bound {
                    Some(_) => cgroup.into_iter().for_each(|(cgroup, _)| drop(cgroup.remove())),
                    None => self.idle.extend(cgroup),
                }
                Err(error).step("starting a process")
            }
        }
    }

    /// A child that becomes a program, or reports why not and ends. Either it borrows our memory, and we wait until it is
    /// another's, or it has a copy.
    fn spawn(
        &self,
        id: u32,
        cgroup: Option<BorrowedFd<'_>>,
        become_it: impl FnOnce() -> Result<Never, Failure>,
    ) -> io::Result<i32> {
        let report = |result| {
            let Err(failure) = result;
            self.reply(&InitReply::StartFailed { id, failure });
        };
        if self.may_lend_memory() {
            self.oom_score.raise()?;
            let spawned = shared_spawn::spawn(&self.proof, cgroup, become_it);
            self.oom_score.lower();
            let (pid, left) = spawned?;
            left.into_iter().for_each(report);
            return Ok(pid);
        }
        match self.fork(cgroup)? {
            Fork::Child(_) => {
                report(become_it());
                exit_now(127)
            }
            Fork::Parent { pid, .. } => Ok(pid),
        }
    }

    /// Whether nobody could hold the child up on its way, and us with it: who lives in the box could stop or kill it, and
    /// who shares a directory could keep it from a file there, to which a link or a script's first line may lead from
    /// anywhere. And our own peak becomes the program's.
    fn may_lend_memory(&self) -> bool {
        shared_spawn::AVAILABLE
            && !self.shares_directories
            && !tree::has_children()
            && own_peak_rss().is_ok_and(|bytes| bytes < SMALL)
    }

    /// What is made here goes before init when the box is out of memory.
    fn fork(&self, cgroup: Option<BorrowedFd<'_>>) -> io::Result<Fork> {
        self.oom_score.raise()?;
        let forked = fork(&self.proof, 0, cgroup);
        if !matches!(forked, Ok(Fork::Child(_))) {
            self.oom_score.lower();
        }
        forked
    }

    /// An empty cgroup, and the CPU time it has seen.
    fn command_cgroup(&mut self) -> Result<Option<(CommandCgroup, CpuTime)>, Failure> {
        let Some(directory) = &self.run_directory else { return Ok(None) };
        if let Some(cgroup) = self.idle.pop() {
            return Ok(Some(cgroup));
        }
        self.made_cgroups += 1;
        CommandCgroup::create(directory.as_fd(), self.made_cgroups)
            .map(|made| Some((made, CpuTime::default())))
            .step("making a command's cgroup")
    }

    /// A new one with a bound of memory, for the one command that asked for it.
    fn bounded_cgroup(&mut self, bytes: u64) -> Result<(CommandCgroup, CpuTime), Failure> {
        let step = "bounding a command's memory";
        let Some(directory) = &self.run_directory else {
            return Err(Failure { step: step.into(), errno: libc::ENOTSUP });
        };
        self.made_cgroups += 1;
        let made = CommandCgroup::create(directory.as_fd(), self.made_cgroups).step(step)?;
        if let Err(error) = made.limit_memory(bytes) {
            let _ = made.remove();
            return Err(error).step(step);
        }
        Ok((made, CpuTime::default()))
    }

    /// File operations run in a process of their own, with the box's identity: a slow or hostile file system
    /// holds up nobody else.
    fn start_worker(&mut self, id: u32, operation: &FileOperation, data: Option<OwnedFd>) {
        match self.fork(None) {
            Ok(Fork::Child(_)) => files::work(id, operation, data, self.identity, self.filter, &self.control),
            Ok(Fork::Parent { pid, .. }) => {
                self.children.insert(pid, Child { id, task: Task::Worker });
            }
            Err(error) => {
                let failure = Failure::new("starting a worker", &error);
                self.reply(&InitReply::FileDone { id, outcome: Err(failure) });
            }
        }
    }

    fn signal(&self, id: u32, signal: i32) {
        let Some(signal) = Signal::from_named_raw(signal) else { return };
        if let Some(pid) = self.pid_of(id) {
            // Before its setsid the child is not yet a group of its own.
            if kill_process_group(pid, signal).is_err() {
                let _ = kill_process(pid, signal);
            }
        }
    }

    /// What the program leaves behind is not to outlive it.
    fn terminate(&mut self, id: u32) {
        for child in self.children.values_mut().filter(|child| child.id == id) {
            if let Task::Command { terminated, .. } = &mut child.task {
                *terminated = true;
            }
        }
        self.signal(id, libc::SIGTERM);
    }

    fn kill(&mut self, id: u32) {
        let Some((pid, child)) = self.children.iter_mut().find(|(_, child)| child.id == id) else { return };
        let pid = Pid::from_raw(*pid);
        match (&mut child.task, pid) {
            (Task::Command { cgroup: Some((cgroup, _)), killed, .. }, _) if cgroup.kill().is_ok() => {
                *killed = true
            }
            (Task::Worker, Some(pid)) => drop(kill_process(pid, Signal::KILL)),
            (_, Some(pid)) => self.end_tree(pid.as_raw_pid()),
            (_, None) => {}
        }
    }

    /// Without a cgroup: what descends from the command, and what nobody can say whose it is.
    fn end_tree(&mut self, command: i32) {
        self.survived.retain(|pid| has_group(*pid));
        let own = rustix::process::getpid().as_raw_pid();
        let others =
            |pid| pid != command && (self.children.contains_key(&pid) || self.survived.contains(&pid));
        if !tree::end_all_but(own, others) {
            let _ = kill_everyone_else();
        }
    }

    fn pid_of(&self, id: u32) -> Option<Pid> {
        self.children.iter().find(|(_, child)| child.id == id).and_then(|(pid, _)| Pid::from_raw(*pid))
    }

    fn reap_all(&mut self, requests: bool) -> Result<(), Failure> {
        let mut told = false;
        while let Some(ended) = reap().step("reaping")? {
            // Anybody else was an orphan of some command.
            if let Some(child) = self.children.remove(&ended.pid) {
                self.finish(child, ended);
                told = true;
            }
        }
        if told && !requests {
            // The daemon is often on this core, and somebody waits for it.
            rustix::thread::sched_yield();
        }
        self.tidy();
        Ok(())
    }

    fn finish(&mut self, child: Child, ended: Ended) {
        let status = match ended.status {
            WaitStatus::Code(code) => EndStatus::Code(code),
            WaitStatus::Signal(signal) => EndStatus::Signal(signal),
        };
        let Task::Command { cgroup, script, mut killed, bounded, terminated } = child.task else {
            if ended.status != WaitStatus::Code(0) {
                let failure = Failure { step: "the worker was ended".into(), errno: libc::EINTR };
                self.reply(&InitReply::FileDone { id: child.id, outcome: Err(failure) });
            }
            return;
        };
        let (mut user, mut system) = (ended.user, ended.system);
        if let Some((cgroup, before)) = &cgroup
            && let Some(now) = cgroup.cpu()
        {
            // The whole tree's, where the leader's own figures miss what was never waited for.
            user = user.max(now.user.saturating_sub(before.user));
            system = system.max(now.system.saturating_sub(before.system));
        }
        match &cgroup {
            Some((cgroup, _)) if terminated => killed |= cgroup.kill().is_ok(),
            None if terminated => self.end_tree(ended.pid),
            // Its number is not given away while its group has members.
            None if has_group(ended.pid) => drop(self.survived.insert(ended.pid)),
            _ => {}
        }
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let ended = ProcessEnd {
            status,
            user_micros: micros(user),
            system_micros: micros(system),
            peak_rss_bytes: ended.peak_rss_bytes,
        };
        self.reply(&InitReply::Exited { id: child.id, ended });
        self.lingering.extend(cgroup.map(|(cgroup, _)| Lingering { cgroup, spent: killed || bounded }));
        if script {
            let path = script_path(child.id).into_bytes();
            self.start_worker(child.id, &FileOperation::Remove { path }, None);
        }
    }

    /// Keeps or removes the cgroups that have become empty. After the reply: nobody waits for it.
    fn tidy(&mut self) {
        for Lingering { cgroup, spent } in std::mem::take(&mut self.lingering) {
            if cgroup.populated().unwrap_or(true) {
                self.lingering.push(Lingering { cgroup, spent });
            } else if !spent && self.idle.len() < IDLE_CGROUPS {
                let seen = cgroup.cpu().unwrap_or_default();
                self.idle.push((cgroup, seen));
            } else {
                // One that cannot be removed goes with the box.
                let _ = cgroup.remove();
            }
        }
    }

    /// Gives back what an idle box need not have.
    fn rest(&mut self) {
        for (cgroup, _) in std::mem::take(&mut self.idle) {
            let _ = cgroup.remove();
        }
        let _ = sandcrate_sys::memory::give_back(&self.proof);
        // What made the box is most of it, and is not needed again.
        let _ = sandcrate_sys::memory::release_code();
    }

    fn reply(&self, reply: &InitReply) {
        // A daemon that is gone is noticed by the next receive.
        let _ = self.control.send(reply, &[]);
    }
}

fn has_group(pid: i32) -> bool {
    Pid::from_raw(pid).is_some_and(|group| rustix::process::test_kill_process_group(group).is_ok())
}
