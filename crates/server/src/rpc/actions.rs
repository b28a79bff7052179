//! The actions of LangBot's first dialect: a table of names, and one function for each.
//!
//! An action reads its data, asks the runtime and shapes the answer; it decides nothing else. Ids of sessions
//! are trimmed everywhere, as those in a spec are.

use std::future::Future;
use std::pin::Pin;

use sandcrate_protocol::{BoxSpec, DEFAULT_PROCESS_ID, ProcessSpec, SessionDetails};
use sandcrate_runtime::{InitSource, OnTimeout, Runtime, SessionOptions};
use serde_json::Value;

use super::answer::{ActionError, Answer};
use super::output;
use crate::Identity;

/// What an action works with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call<'a> {
    pub(super) runtime: &'a Runtime,
    pub(super) identity: &'a Identity,
    pub(super) data: &'a Value,
}

type Outcome = Result<Answer, ActionError>;
type Running<'a> = Pin<Box<dyn Future<Output = Outcome> + Send + 'a>>;
pub(super) type Action = for<'a> fn(Call<'a>) -> Running<'a>;

macro_rules! table {
    ($($name:literal => $action:ident,)*) => {
        /// Every action by its name on the wire.
        const ACTIONS: &[(&str, Action)] = &[$(($name, |call| Box::pin($action(call)))),*];
    };
}

table! {
    "__ping" => ping,
    "box_init" => init,
    "box_health" => get_backend_info,
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
}

pub(super) fn find(name: &str) -> Option<Action> {
    ACTIONS.iter().find(|(known, _)| *known == name).map(|(_, action)| *action)
}

async fn ping(_: Call<'_>) -> Outcome {
    Ok(Answer::Empty {})
}

async fn init(call: Call<'_>) -> Outcome {
    let source = InitSource { known: call.identity.known, base_dir: call.identity.base_dir().await };
    call.runtime.init(call.data, &source)?;
    Ok(Answer::Initialized { initialized: true })
}

async fn get_backend_info(call: Call<'_>) -> Outcome {
    Ok(Answer::Backend(call.runtime.backend_status().await))
}

async fn status(call: Call<'_>) -> Outcome {
    Ok(Answer::Status(call.runtime.status().await))
}

async fn exec(call: Call<'_>) -> Outcome {
    let spec = BoxSpec::from_json(call.data)?;
    if spec.cmd.is_empty() {
        return Err(ActionError::invalid("cmd must not be empty"));
    }
    let outcome = call.runtime.exec(&spec, OnTimeout::EndSession).await?;
    Ok(Answer::Exec(output::present(&outcome, spec.timeout_sec)))
}

async fn create_session(call: Call<'_>) -> Outcome {
    let spec = BoxSpec::from_json(call.data)?;
    let view = call.runtime.create_session(&spec, SessionOptions::default()).await?;
    Ok(Answer::Session(Box::new(SessionDetails::new(view.info, []))))
}

async fn get_session(call: Call<'_>) -> Outcome {
    let view = call.runtime.session(session_id(call.data)?)?;
    Ok(Answer::Session(Box::new(SessionDetails::new(view.info, view.processes))))
}

async fn get_sessions(call: Call<'_>) -> Outcome {
    let sessions = call.runtime.sessions().into_iter().map(|view| view.info).collect();
    Ok(Answer::Sessions { sessions })
}

async fn delete_session(call: Call<'_>) -> Outcome {
    let id = session_id(call.data)?;
    call.runtime.delete_session(id).await?;
    Ok(Answer::Deleted { deleted: id.to_owned() })
}

async fn start_managed_process(call: Call<'_>) -> Outcome {
    let id = session_id(call.data)?;
    let spec = call.data.get("spec").ok_or(ActionError::MissingKey { key: "spec" })?;
    let spec = ProcessSpec::from_json(spec)?;
    Ok(Answer::Process(Box::new(call.runtime.start_process(id, &spec).await?)))
}

async fn get_managed_process(call: Call<'_>) -> Outcome {
    let info = call.runtime.process(session_id(call.data)?, process_id(call.data)?)?;
    Ok(Answer::Process(Box::new(info)))
}

async fn stop_managed_process(call: Call<'_>) -> Outcome {
    let process = process_id(call.data)?;
    call.runtime.stop_process(session_id(call.data)?, process).await?;
    Ok(Answer::Stopped { stopped: process.to_owned() })
}

async fn shutdown(call: Call<'_>) -> Outcome {
    call.runtime.end_sessions().await;
    Ok(Answer::Empty {})
}

fn session_id(data: &Value) -> Result<&str, ActionError> {
    let id = data.get("session_id").ok_or(ActionError::MissingKey { key: "session_id" })?;
    id.as_str().map(output::strip).ok_or_else(|| ActionError::invalid("session_id must be a string"))
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
        for (index, (name, _)) in ACTIONS.iter().enumerate() {
            assert!(ACTIONS[..index].iter().all(|(before, _)| before != name), "{name} stands twice");
            assert!(find(name).is_some());
        }
        // A constant of the reference that it never registered.
        assert!(find("__heartbeat").is_none());
        assert!(find("").is_none());
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
