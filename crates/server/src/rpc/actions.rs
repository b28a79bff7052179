//! The actions of LangBot's dialects: tables of names, and one function for each.
//!
//! An action reads its data, asks the runtime and shapes the answer; it decides nothing else. Ids of sessions
//! are trimmed everywhere, as those in a spec are.

use std::future::Future;
use std::pin::Pin;

use sandcrate_protocol::{
    BoxSpec, DEFAULT_PROCESS_ID, ProcessInfo, ProcessSpec, SessionDetails, python_trim,
};
use sandcrate_runtime::{InitSource, OnTimeout, Placement, Runtime, SessionOptions, SessionView, owner};
use serde_json::Value;

use super::admission_actions::{get_backend_info, health, revoke_grant, upsert_grant};
use super::answer::{ActionError, Answer};
use super::dialect::Dialect;
use super::file_actions::{list_files, read_file, stat_file, write_file};
use super::skill_actions::{
    create_skill, delete_skill, file_chunk, get_skill, install_skill_zip, list_skill_files, list_skills,
    preview_skill_zip, read_skill_file, scan_skill_directory, update_skill, write_skill_file,
};
use super::tenant_actions::{self, TenantSession, get_storage_analysis, verify_shared_workspace};
use crate::{App, Identity};

/// What an action works with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call<'a> {
    pub(super) app: &'a App,
    pub(super) runtime: &'a Runtime,
    pub(super) identity: &'a Identity,
    pub(super) data: &'a Value,
    pub(super) dialect: Dialect,
    /// The workspace that the call is for; in the newer dialects, and not in calls that are for the host itself.
    pub(super) placement: Option<&'a Placement>,
}

impl Call<'_> {
    /// The id in the table of sessions for one of the caller's.
    fn physical(&self, id: &str) -> Result<String, ActionError> {
        match self.placement {
            Some(placement) => Ok(self.runtime.admitted_session(placement, id)?),
            None if owner(id).is_some() => Err(ActionError::invalid(
                "session_id is of the form that belongs to workspaces of LangBot 4.10.7",
            )),
            None => Ok(id.to_owned()),
        }
    }

    fn logical(&self, id: String) -> String {
        match self.placement {
            Some(placement) => placement.logical(&id).to_owned(),
            None => id,
        }
    }

    /// The session that the call is about.
    fn session(&self) -> Result<String, ActionError> {
        self.physical(session_id(self.data)?)
    }

    pub(super) async fn spec(&self) -> Result<BoxSpec, ActionError> {
        let mut spec = BoxSpec::from_json(self.data)?;
        if let Some(placement) = self.placement
            && self.runtime.admission_policy().is_some()
        {
            return Ok(self.runtime.admitted_spec(placement, spec).await?);
        }
        spec.session_id = self.physical(&spec.session_id)?;
        Ok(spec)
    }

    /// With the backend's name as LangBot is told it.
    fn reported(&self, mut view: SessionView) -> SessionView {
        view.info.backend_name = self.runtime.reported_backend(view.info.backend_name);
        view
    }

    fn process(&self, mut info: ProcessInfo) -> Answer {
        info.session_id = self.logical(info.session_id);
        Answer::Process(Box::new(info))
    }
}

pub(super) type Outcome = Result<Answer, ActionError>;
type Running<'a> = Pin<Box<dyn Future<Output = Outcome> + Send + 'a>>;
pub(super) type Action = for<'a> fn(Call<'a>) -> Running<'a>;

macro_rules! table {
    ($($name:literal => $action:ident,)*) => {
        &[$(($name, |call| Box::pin($action(call)))),*]
    };
}

/// What all dialects have, by the name on the wire.
const ACTIONS: &[(&str, Action)] = table! {
    "__ping" => ping,
    "box_init" => init,
    "box_health" => health,
    "box_get_backend_info" => get_backend_info,
    "box_status" => status,
    "box_exec" => exec,
    "box_create_session" => create_session,
    "box_get_session" => get_session,
    "box_get_sessions" => get_sessions,
    "box_delete_session" => delete_session,
    "box_start_managed_process" => start_managed_process,
    "box_get_managed_process" => get_managed_process,
    "box_stop_managed_process" => stop_managed_process,
    "box_shutdown" => shutdown,
    "__file_chunk" => file_chunk,
    "box_list_skills" => list_skills,
    "box_get_skill" => get_skill,
    "box_create_skill" => create_skill,
    "box_update_skill" => update_skill,
    "box_delete_skill" => delete_skill,
    "box_scan_skill_directory" => scan_skill_directory,
    "box_list_skill_files" => list_skill_files,
    "box_read_skill_file" => read_skill_file,
    "box_write_skill_file" => write_skill_file,
    "box_preview_skill_zip" => preview_skill_zip,
    "box_install_skill_zip" => install_skill_zip,
    "box_file_stat" => stat_file,
    "box_file_list" => list_files,
    "box_file_read" => read_file,
    "box_file_write" => write_file,
};

/// What the newer dialects have beside it.
const TENANT_ACTIONS: &[(&str, Action)] = table! {
    "box_get_storage_analysis" => get_storage_analysis,
    "box_verify_shared_workspace" => verify_shared_workspace,
    "box_upsert_sandbox_admission_grant" => upsert_grant,
    "box_revoke_sandbox_admission_grant" => revoke_grant,
};

pub(super) fn find(dialect: Dialect, name: &str) -> Option<Action> {
    let more = if dialect == Dialect::Tenant { TENANT_ACTIONS } else { &[] };
    ACTIONS.iter().chain(more).find(|(known, _)| *known == name).map(|(_, action)| *action)
}

async fn ping(_: Call<'_>) -> Outcome {
    Ok(Answer::Empty {})
}

async fn init(call: Call<'_>) -> Outcome {
    let source = InitSource { known: call.identity.known, base_dir: call.identity.base_dir().await };
    call.runtime.init(call.data, &source)?;
    Ok(Answer::Initialized { initialized: true })
}

async fn status(call: Call<'_>) -> Outcome {
    match call.placement {
        Some(placement) => Ok(tenant_actions::status(&call, placement).await),
        None => {
            let mut status = call.runtime.status().await;
            status.backend.name = status.backend.name.map(|name| call.runtime.reported_backend(name));
            Ok(Answer::Status(status))
        }
    }
}

async fn exec(call: Call<'_>) -> Outcome {
    let spec = call.spec().await?;
    if spec.cmd.is_empty() {
        return Err(ActionError::invalid("cmd must not be empty"));
    }
    let outcome = call.runtime.exec(&spec, OnTimeout::EndSession).await?;
    let mut shown = outcome.presented(spec.timeout_sec);
    shown.session_id = call.logical(shown.session_id);
    shown.backend_name = call.runtime.reported_backend(shown.backend_name);
    Ok(Answer::Exec(shown))
}

async fn create_session(call: Call<'_>) -> Outcome {
    let view = call.runtime.create_session(&call.spec().await?, SessionOptions::default()).await?;
    let view = call.reported(view);
    if let Some(placement) = call.placement {
        return Ok(Answer::TenantSession(Box::new(TenantSession::brief(placement, view))));
    }
    Ok(Answer::Session(Box::new(SessionDetails::new(view.info, []))))
}

async fn get_session(call: Call<'_>) -> Outcome {
    let view = call.reported(call.runtime.session(&call.session()?)?);
    if let Some(placement) = call.placement {
        return Ok(Answer::TenantSession(Box::new(TenantSession::full(placement, view))));
    }
    Ok(Answer::Session(Box::new(SessionDetails::new(view.info, view.processes))))
}

async fn get_sessions(call: Call<'_>) -> Outcome {
    if let Some(placement) = call.placement {
        let views = call.runtime.sessions_of(placement).into_iter().map(|view| call.reported(view));
        let sessions = views.map(|view| TenantSession::brief(placement, view)).collect();
        return Ok(Answer::TenantSessions { sessions });
    }
    let views = call.runtime.sessions().into_iter().map(|view| call.reported(view));
    let sessions = views.map(|view| view.info).filter(|info| owner(&info.session_id).is_none()).collect();
    Ok(Answer::Sessions { sessions })
}

async fn delete_session(call: Call<'_>) -> Outcome {
    call.runtime.delete_session(&call.session()?).await?;
    Ok(Answer::Deleted { deleted: session_id(call.data)?.to_owned() })
}

async fn start_managed_process(call: Call<'_>) -> Outcome {
    let id = call.session()?;
    if let Some(placement) = call.placement {
        call.runtime.check_granted_process(placement)?;
    }
    let spec = call.data.get("spec").ok_or(ActionError::MissingKey { key: "spec" })?;
    let spec = ProcessSpec::from_json(spec)?;
    Ok(call.process(call.runtime.start_process(&id, &spec).await?))
}

async fn get_managed_process(call: Call<'_>) -> Outcome {
    Ok(call.process(call.runtime.process(&call.session()?, process_id(call.data)?)?))
}

async fn stop_managed_process(call: Call<'_>) -> Outcome {
    let process = process_id(call.data)?;
    call.runtime.stop_process(&call.session()?, process).await?;
    Ok(Answer::Stopped { stopped: process.to_owned() })
}

async fn shutdown(call: Call<'_>) -> Outcome {
    match call.dialect {
        Dialect::First => call.runtime.end_sessions().await,
        Dialect::Tenant => call.runtime.end_tenants().await,
    }
    Ok(Answer::Empty {})
}

fn session_id(data: &Value) -> Result<&str, ActionError> {
    let id = data.get("session_id").ok_or(ActionError::MissingKey { key: "session_id" })?;
    id.as_str().map(python_trim).ok_or_else(|| ActionError::invalid("session_id must be a string"))
}

fn process_id(data: &Value) -> Result<&str, ActionError> {
    match data.get("process_id") {
        None => Ok(DEFAULT_PROCESS_ID),
        Some(id) => id.as_str().ok_or_else(|| ActionError::invalid("process_id must be a string")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_are_unique_and_found() {
        let all: Vec<&str> = ACTIONS.iter().chain(TENANT_ACTIONS).map(|(name, _)| *name).collect();
        for (index, name) in all.iter().enumerate() {
            assert!(!all[..index].contains(name), "{name} stands twice");
            assert!(find(Dialect::Tenant, name).is_some());
            let first = ACTIONS.iter().any(|(known, _)| known == name);
            assert_eq!(find(Dialect::First, name).is_some(), first);
        }
        // A constant of the reference that it never registered.
        assert!(find(Dialect::First, "__heartbeat").is_none());
        assert!(find(Dialect::Tenant, "").is_none());
    }

    /// L16: a spec trims its session id, so everything else that takes one must too.
    #[test]
    fn ids_of_sessions_are_trimmed() {
        assert_eq!(session_id(&json!({"session_id": " s1\t"})).unwrap(), "s1");
    }

    #[test]
    fn what_is_missing_or_of_the_wrong_type_is_named() {
        for (data, message) in [
            (json!({}), "KeyError: 'session_id'"),
            (json!(null), "KeyError: 'session_id'"),
            (json!({"session_id": 5}), "BoxValidationError: session_id must be a string"),
        ] {
            assert_eq!(session_id(&data).unwrap_err().message(), message);
        }
        assert_eq!(process_id(&json!({})).unwrap(), "default");
        assert_eq!(process_id(&json!({"process_id": " p "})).unwrap(), " p ");
        assert!(process_id(&json!({"process_id": null})).is_err());
    }
}
