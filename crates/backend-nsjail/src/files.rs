//! File operations: an nsjail of its own in the box does the work, as a command's would, so that whatever a path
//! leads to is no more than a command could reach. A pipe carries the bytes.

use std::os::fd::AsFd;
use std::sync::Arc;

use sandcrate_backend::{BackendError, FileReply, FileRequest};
use sandcrate_driver::pieces::files::{LIMIT, describe, file_error, prepare, reply, transfer};
use sandcrate_driver::step_failed;
use sandcrate_jail::message::InitReply;
use sandcrate_jail::nsjail::StageTask;

use crate::runner::Run;
use crate::session::Session;

pub(crate) async fn perform(session: &Arc<Session>, request: FileRequest) -> Result<FileReply, BackendError> {
    request.validate()?;
    let (name, path) = describe(&request);
    let (operation, theirs, ours) = prepare(&session.fittings, &request)?;
    let fds: Vec<_> = theirs.iter().map(AsFd::as_fd).collect();
    let run = Run::start(session, session.next_task(), StageTask::File(operation), &fds).await?;
    // The stage must be the only holder, or the end of the data is never seen.
    drop(fds);
    drop(theirs);
    let work = async {
        let data = transfer(ours, request).await?;
        match outcome(&run).await {
            Some(InitReply::FileDone { outcome: Ok(outcome), .. }) => Ok(reply(outcome, data)),
            Some(InitReply::FileDone { outcome: Err(failure), .. }) => Err(file_error(name, &path, &failure)),
            Some(InitReply::Failed { failure } | InitReply::StartFailed { failure, .. })
                if session.is_alive() =>
            {
                Err(step_failed(&failure))
            }
            None if session.is_alive() => Err(run.log.failure("confining a file operation")),
            _ => Err(session.ended_error()),
        }
    };
    let result = tokio::time::timeout(LIMIT, work).await;
    if result.is_err() {
        run.kill(session).await;
    }
    run.finish(session).await;
    result.unwrap_or_else(|_| Err(BackendError::Timeout { what: format!("{name} {path}"), limit: LIMIT }))
}

/// What became of it; `None` when nsjail ended before the stage could say anything.
async fn outcome(run: &Run) -> Option<InitReply> {
    loop {
        match run.stage.recv::<InitReply>().await {
            Ok(Some((InitReply::Prepared, _))) => {}
            Ok(Some((reply, _))) => return Some(reply),
            // The runner may know more than the stage, which may not have come up.
            _ => break,
        }
    }
    match run.runner.recv::<InitReply>().await {
        Ok(Some((InitReply::Exited { .. }, _))) => None,
        Ok(Some((reply, _))) => Some(reply),
        _ => None,
    }
}

/// Removes the file of a script that was too long for an argument.
pub(crate) async fn remove_script(session: &Arc<Session>, path: String) {
    if session.is_alive()
        && let Err(error) = perform(session, FileRequest::Remove { path }).await
    {
        tracing::debug!(session.id = session.id().as_str(), %error, "a script's file cannot be removed");
    }
}
