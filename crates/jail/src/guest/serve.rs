//! The guest's work: one request at a time, never waiting for any of them.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use sandcrate_sys::process::{Fork, SingleThreaded, WaitStatus, exit_now, fork, reap};

use super::keeper::{self, Report};
use crate::channel::Channel;
use crate::init::command::{Stdio, open_terminal, script_path};
use crate::init::files::perform;
use crate::message::{
    EndStatus, Failure, FileOperation, InitReply, InitRequest, ProcessEnd, StartCommand, Step,
};
use crate::tree;

/// A keeper says which program it has as soon as it is there.
const START_PATIENCE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

struct Guest {
    proof: SingleThreaded,
    control: Channel,
    /// Both ends: keepers write, we read.
    reports: (OwnedFd, OwnedFd),
    /// By pid of their keeper or worker.
    children: HashMap<i32, Child>,
}

struct Child {
    id: u32,
    task: Task,
}

enum Task {
    Command { program: Option<i32>, script: bool, terminated: bool, told: bool },
    Worker,
}

/// Serves until the owner is gone.
pub(super) fn serve(proof: SingleThreaded, control: Channel) -> Result<(), Failure> {
    let signals = sandcrate_sys::fd::child_signals().step("watching children")?;
    let reports = pipe_with(PipeFlags::CLOEXEC).step("making a pipe")?;
    let flags = rustix::fs::fcntl_getfl(&reports.0).step("making a pipe")?;
    rustix::fs::fcntl_setfl(&reports.0, flags | rustix::fs::OFlags::NONBLOCK).step("making a pipe")?;
    let mut guest = Guest { proof, control, reports, children: HashMap::new() };
    loop {
        let (requests, told, ended) = {
            let mut ready = [
                PollFd::new(&guest.control, PollFlags::IN),
                PollFd::new(&guest.reports.0, PollFlags::IN),
                PollFd::new(&signals, PollFlags::IN),
            ];
            match poll(&mut ready, None) {
                Err(rustix::io::Errno::INTR) => continue,
                other => other.step("waiting")?,
            };
            (!ready[0].revents().is_empty(), !ready[1].revents().is_empty(), !ready[2].revents().is_empty())
        };
        // Ends before requests: a request may be about a command that has just ended.
        if told {
            guest.take_reports();
        }
        if ended {
            let _ = rustix::io::read(&signals, &mut [0_u8; 1024]);
            guest.reap_all()?;
        }
        if requests && !guest.handle_request()? {
            return Ok(());
        }
    }
}

impl Guest {
    /// False when the owner is gone.
    fn handle_request(&mut self) -> Result<bool, Failure> {
        let Some((request, fds)) = self.control.recv::<InitRequest>().step("receiving a request")? else {
            return Ok(false);
        };
        match request {
            InitRequest::Start { id, command, memory_bytes } => {
                // Nobody asks a guest for it; one that was asked must not go on without.
                let bounded = memory_bytes.map(|_| Err(std::io::Error::from_raw_os_error(libc::ENOTSUP)));
                let started = bounded
                    .unwrap_or(Ok(()))
                    .step("bounding a command's memory")
                    .and_then(|()| self.start(id, &command, fds));
                if let Err(failure) = started {
                    self.reply(&InitReply::StartFailed { id, failure });
                    let ended = ProcessEnd { status: EndStatus::Code(126), ..keeper::lost() };
                    self.reply(&InitReply::Exited { id, ended });
                }
            }
            InitRequest::File { id, operation } => self.start_worker(id, &operation, fds.into_iter().next()),
            InitRequest::Signal { id, signal } => self.signal(id, signal),
            InitRequest::Terminate { id } => self.terminate(id),
            InitRequest::Kill { id } => self.kill(id),
            // The engine has configured the box.
            InitRequest::Configure { .. } => return Ok(false),
        }
        Ok(true)
    }

    fn start(&mut self, id: u32, command: &StartCommand, fds: Vec<OwnedFd>) -> Result<(), Failure> {
        let mut master = None;
        let stdio = if let Some((rows, cols)) = command.terminal {
            let (end, slave) = open_terminal(rows, cols).step("opening a terminal")?;
            master = Some(end);
            Stdio::Terminal { slave }
        } else {
            let streams: [OwnedFd; 3] = fds
                .try_into()
                .map_err(|_| Failure { step: "three streams are needed".into(), errno: libc::EBADF })?;
            let [stdin, stdout, stderr] = streams;
            Stdio::Pipes { stdin, stdout, stderr }
        };
        match fork(&self.proof, 0, None).step("starting a process")? {
            Fork::Child(proof) => {
                keeper::keep(&proof, id, command, stdio, master, &self.control, &self.reports.1)
            }
            Fork::Parent { pid, .. } => {
                let script = command.script.is_some();
                let task = Task::Command { program: None, script, terminated: false, told: false };
                self.children.insert(pid, Child { id, task });
                if let Some(master) = master {
                    let _ = self.control.send(&InitReply::Terminal { id }, &[master.as_fd()]);
                }
                Ok(())
            }
        }
    }

    /// File operations run in a process of their own: a slow or hostile file system holds up nobody else.
    fn start_worker(&mut self, id: u32, operation: &FileOperation, data: Option<OwnedFd>) {
        match fork(&self.proof, 0, None) {
            Ok(Fork::Child(_)) => {
                let outcome = rustix::process::chdir("/")
                    .step("entering the root")
                    .and_then(|()| perform(operation, data));
                let _ = self.control.send(&InitReply::FileDone { id, outcome }, &[]);
                exit_now(0)
            }
            Ok(Fork::Parent { pid, .. }) => {
                self.children.insert(pid, Child { id, task: Task::Worker });
            }
            Err(error) => {
                let failure = Failure::new("starting a worker", &error);
                self.reply(&InitReply::FileDone { id, outcome: Err(failure) });
            }
        }
    }

    /// The keeper of a command and its program, as soon as that is known.
    fn find(&mut self, id: u32) -> Option<(i32, Option<i32>)> {
        let known = |children: &HashMap<i32, Child>| {
            children.iter().find_map(|(pid, child)| match child.task {
                Task::Command { program, told: false, .. } if child.id == id => Some((*pid, program)),
                _ => None,
            })
        };
        if let Some((_, None)) = known(&self.children) {
            let _ = poll(&mut [PollFd::new(&self.reports.0, PollFlags::IN)], Some(&START_PATIENCE));
            self.take_reports();
        }
        known(&self.children)
    }

    fn signal(&mut self, id: u32, signal: i32) {
        let Some(signal) = Signal::from_named_raw(signal) else { return };
        if let Some((_, Some(program))) = self.find(id)
            && let Some(pid) = Pid::from_raw(program)
        {
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
        let Some((pid, worker)) = self
            .children
            .iter()
            .find(|(_, child)| child.id == id)
            .map(|(pid, child)| (*pid, matches!(child.task, Task::Worker)))
        else {
            return;
        };
        if worker {
            send(pid, Signal::KILL);
        } else {
            tree::end_below(pid);
            // A command can stop its keeper; it cannot keep it from telling.
            send(pid, Signal::CONT);
        }
    }

    fn take_reports(&mut self) {
        for report in keeper::read_reports(self.reports.0.as_fd()) {
            match report {
                Report::Started { keeper, program: started } => {
                    if let Some(Child { task: Task::Command { program, .. }, .. }) =
                        self.children.get_mut(&keeper)
                    {
                        *program = Some(started);
                    }
                }
                Report::Ended { keeper, ended } => self.finish(keeper, ended),
            }
        }
    }

    /// The program has ended; its keeper may live on.
    fn finish(&mut self, keeper: i32, ended: ProcessEnd) {
        let Some(child) = self.children.get_mut(&keeper) else { return };
        let id = child.id;
        let Task::Command { script, terminated, told, .. } = &mut child.task else { return };
        if *told {
            return;
        }
        *told = true;
        if *script {
            let _ = std::fs::remove_file(script_path(id));
        }
        if *terminated {
            tree::end_below(keeper);
        }
        self.reply(&InitReply::Exited { id, ended });
    }

    fn reap_all(&mut self) -> Result<(), Failure> {
        while let Some(ended) = reap().step("reaping")? {
            let Some(child) = self.children.get(&ended.pid) else { continue };
            match child.task {
                Task::Worker if ended.status != WaitStatus::Code(0) => {
                    let failure = Failure { step: "the worker was ended".into(), errno: libc::EINTR };
                    self.reply(&InitReply::FileDone { id: child.id, outcome: Err(failure) });
                }
                Task::Worker => {}
                Task::Command { .. } => {
                    // What it had to tell it told before it ended.
                    self.take_reports();
                    if ended.status != WaitStatus::Code(0) {
                        // Killed from inside: its orphans are ours now, and nobody's command.
                        self.finish(ended.pid, keeper::lost());
                        let known: Vec<i32> =
                            self.children.keys().copied().filter(|pid| *pid != ended.pid).collect();
                        tree::end_strays(rustix::process::getpid().as_raw_pid(), |pid| known.contains(&pid));
                    }
                }
            }
            self.children.remove(&ended.pid);
        }
        Ok(())
    }

    fn reply(&self, reply: &InitReply) {
        // An owner that is gone is noticed by the next receive.
        let _ = self.control.send(reply, &[]);
    }
}

fn send(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = kill_process(pid, signal);
    }
}
