//! The stage: the last step before a command, in everything that confines it.

use std::io;
use std::os::fd::OwnedFd;

use rustix::process::{DumpableBehavior, Resource, Rlimit, chdir, setrlimit};
use sandcrate_sys::process::{SingleThreaded, exit_now};

use super::{StageOrder, StageTask, findings};
use crate::channel::Channel;
use crate::init::command::{Never, Program, Stdio, connect, open_terminal};
use crate::init::files::perform;
use crate::init::path_walk::make_directories;
use crate::message::{Failure, InitReply, StartCommand, Step};

pub(super) fn run() -> ! {
    let Ok(control) = sandcrate_sys::fd::take_stdin().map(Channel::from) else { exit_now(1) };
    if let Err(failure) = serve(&control) {
        let _ = control.send(&InitReply::Failed { failure }, &[]);
        exit_now(1);
    }
    exit_now(0)
}

fn serve(control: &Channel) -> Result<(), Failure> {
    let _proof = SingleThreaded::prove().step("counting threads")?;
    // Until the program's exec: who has the box's id could reach into this process, and speak to our owner.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).step("closing to tracers")?;
    let Some((order, fds)) = control.recv::<StageOrder>().step("reading the order")? else { return Ok(()) };
    findings::verify(order.user)?;
    if let Some(bytes) = order.data_bytes {
        let bound = Rlimit { current: Some(bytes), maximum: Some(bytes) };
        setrlimit(Resource::Data, bound).step("bounding the data of each process")?;
    }
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    // From here on whatever fails is the command's affair, not nsjail's.
    control.send(&InitReply::Prepared, &[]).step("reporting to the owner")?;
    let id = order.id;
    match order.task {
        StageTask::Command(command) => {
            let failure = match start(id, &command, fds, control) {
                Err(failure) => failure,
                Ok(never) => match never {},
            };
            let _ = control.send(&InitReply::StartFailed { id, failure }, &[]);
            exit_now(127)
        }
        StageTask::File(operation) => {
            let outcome = perform(&operation, fds.into_iter().next());
            control.send(&InitReply::FileDone { id, outcome }, &[]).step("reporting to the owner")
        }
    }
}

fn start(id: u32, command: &StartCommand, fds: Vec<OwnedFd>, control: &Channel) -> Result<Never, Failure> {
    let stdio = streams(id, command, fds, control)?;
    rustix::process::setsid().step("starting a session")?;
    connect(&stdio).step("connecting the streams")?;
    sandcrate_sys::fd::close_on_exec_from_3().step("closing descriptors")?;
    enter(&command.cwd).step_with(|| format!("entering {}", String::from_utf8_lossy(&command.cwd)))?;
    let program = Program::new(id, command)?;
    program.place_script(command)?;
    // A server that ignores SIGPIPE would pass that on.
    sandcrate_sys::signal::reset_dispositions().step("resetting signals")?;
    sandcrate_sys::signal::unblock_all().step("unblocking signals")?;
    program.exec()
}

fn streams(id: u32, command: &StartCommand, fds: Vec<OwnedFd>, control: &Channel) -> Result<Stdio, Failure> {
    if let Some((rows, columns)) = command.terminal {
        let (master, slave) = open_terminal(rows, columns).step("opening a terminal")?;
        control
            .send(&InitReply::Terminal { id }, &[std::os::fd::AsFd::as_fd(&master)])
            .step("handing out the terminal")?;
        return Ok(Stdio::Terminal { slave });
    }
    match <[OwnedFd; 3]>::try_from(fds) {
        Ok([stdin, stdout, stderr]) => Ok(Stdio::Pipes { stdin, stdout, stderr }),
        Err(_) => Err(Failure { step: "a stream was not handed in".into(), errno: libc::EBADF }),
    }
}

/// Links are followed as the command itself could; there is no descriptor here that one could lead to.
fn enter(path: &[u8]) -> io::Result<()> {
    match chdir(path) {
        Err(rustix::io::Errno::NOENT) => {
            make_directories(path)?;
            Ok(chdir(path)?)
        }
        other => Ok(other?),
    }
}
