//! Starting the roles of this program, and one nsjail in a box by them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::Stdio;

use sandcrate_backend::BackendError;
use sandcrate_driver::AsyncChannel;
use sandcrate_jail::Channel;
use sandcrate_jail::cgroup::{BoxCgroup, CommandCgroup};
use sandcrate_jail::nsjail::{RUNNER, RunOrder, StageOrder, StageTask};
use tokio::process::{Child, Command};

use crate::log::Log;
use crate::session::{Session, Tools};

/// Starts this program in a role; our end of its channel. It ends with the handle.
pub(crate) fn spawn_role(tools: &Tools, role: &str) -> io::Result<(AsyncChannel, Child)> {
    let (ours, theirs) = Channel::pair()?;
    let child = role_of(&tools.program_path, role, theirs).kill_on_drop(true).spawn()?;
    Ok((AsyncChannel::new(ours)?, child))
}

/// This program in a role, with its end of a channel.
pub(crate) fn role_of(program: &Path, role: &str, channel: Channel) -> Command {
    let mut command = Command::new(program);
    command
        .arg0(role)
        .env_clear()
        .stdin(Stdio::from(OwnedFd::from(channel)))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .current_dir("/");
    command
}

/// One nsjail in the box, on its way.
#[derive(Debug)]
pub(crate) struct Run {
    /// To the runner, which says when it has ended.
    pub(crate) runner: AsyncChannel,
    /// To the stage, which says how far it came.
    pub(crate) stage: AsyncChannel,
    pub(crate) log: Log,
    pub(crate) cgroup: Option<CommandCgroup>,
    child: Child,
}

impl Run {
    /// Starts an nsjail in the box that becomes `task`; `fds` are the task's.
    pub(crate) async fn start(
        session: &Session,
        id: u32,
        task: StageTask,
        fds: &[std::os::fd::BorrowedFd<'_>],
    ) -> Result<Self, BackendError> {
        Self::start_bounded(session, id, task, fds, None).await
    }

    /// The same with a bound of memory, which was prepared for it: the bytes, and the file by which it is joined on v1.
    pub(crate) async fn start_bounded(
        session: &Session,
        id: u32,
        task: StageTask,
        fds: &[std::os::fd::BorrowedFd<'_>],
        memory: Option<(u64, Option<OwnedFd>)>,
    ) -> Result<Self, BackendError> {
        if !session.is_alive() {
            return Err(session.ended_error());
        }
        let failed = |error| BackendError::failed("starting nsjail", error);
        let (log, log_end) = Log::new()?;
        let (ours, theirs) = Channel::pair().map_err(failed)?;
        let stage = AsyncChannel::new(ours).map_err(failed)?;
        let order = StageOrder { id, user: session.user, data_bytes: session.data_bytes, task };
        // It waits in the socket until nsjail has come so far.
        stage.send(&order, fds).await.map_err(failed)?;
        let cgroup = session.command_cgroup(id)?;
        let memory_tasks = match (memory, &cgroup) {
            (Some((bytes, None)), Some(cgroup)) => cgroup.limit_memory(bytes).map(|()| None),
            (Some((_, None)), None) => Err(io::ErrorKind::Unsupported.into()),
            (memory, _) => Ok(memory.and_then(|(_, tasks)| tasks)),
        };
        let run = || -> io::Result<_> {
            let (runner, child) = spawn_role(&session.tools, RUNNER)?;
            let mut tasks =
                session.ground.cgroup.as_ref().map_or_else(|| Ok(Vec::new()), BoxCgroup::v1_task_files)?;
            // Behind the box's own, which it leaves again for this one below it.
            tasks.extend(memory_tasks?);
            Ok((runner, child, tasks))
        };
        let (runner, child, tasks) = match run() {
            Ok(run) => run,
            Err(error) => {
                cgroup.into_iter().for_each(|cgroup| session.leave(cgroup));
                return Err(failed(error));
            }
        };
        let run = Self { runner, stage, log, cgroup, child };
        let tools = &session.tools;
        let mut all = vec![tools.nsjail.as_fd(), tools.program.as_fd(), session.configuration.as_fd()];
        all.extend([log_end.as_fd(), session.holder.as_fd(), theirs.as_fd()]);
        all.extend(tasks.iter().map(AsFd::as_fd));
        all.extend(run.cgroup.iter().map(CommandCgroup::dir));
        let order = RunOrder { tasks: tasks.len(), unified: run.cgroup.is_some() };
        let sent = run.runner.send(&order, &all).await;
        if let Err(error) = sent {
            run.finish(session).await;
            return Err(failed(error));
        }
        Ok(run)
    }

    /// Ends the whole tree of the command; without a cgroup of its own, the box. It does not wait.
    pub(crate) async fn kill(&self, session: &Session) {
        // Before the runner is told: it may not have got so far that there is anything in the cgroup.
        match &self.cgroup {
            Some(cgroup) => drop(cgroup.kill()),
            None => session.end_box(),
        }
        let _ = self.runner.send(&sandcrate_jail::message::InitRequest::Kill { id: 0 }, &[]).await;
    }

    /// Gives back what belongs to it. What the command left in the background lives on.
    pub(crate) async fn finish(mut self, session: &Session) {
        self.runner.close();
        let _ = self.child.wait().await;
        if let Some(cgroup) = self.cgroup {
            session.leave(cgroup);
        }
    }
}
