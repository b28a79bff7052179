//! Grants of workspaces, and whether this machine can hold them: what LangBot's cloud edition asks.

use sandcrate_protocol::{AdmissionGrant, AdmissionRevocation};
use sandcrate_runtime::{Placement, Readiness, Runtime, RuntimeError};
use serde::Serialize;

use super::actions::{Call, Outcome};
use super::answer::{ActionError, Answer};

/// The backend as LangBot is told of it. Where grants are required it is available when all of it holds.
#[derive(Debug, Serialize)]
pub(crate) struct BackendInfo {
    name: Option<String>,
    available: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    readiness: Option<Box<Readiness>>,
}

impl BackendInfo {
    pub(super) async fn of(runtime: &Runtime) -> Self {
        if runtime.admission_policy().is_none() {
            let status = runtime.backend_status().await;
            let name = status.name.map(|name| runtime.reported_backend(name));
            return Self { name, available: status.available, readiness: None };
        }
        let readiness = runtime.readiness().await;
        let (name, available) = (readiness.backend.name.clone(), readiness.ready);
        Self { name, available, readiness: Some(Box::new(Readiness::clone(&readiness))) }
    }
}

/// A grant in force. Fields in the order of the wire.
#[derive(Debug, Serialize)]
pub(crate) struct Granted {
    installed: bool,
    workspace_uuid: String,
    execution_generation: u64,
    entitlement_revision: u64,
    max_sessions: u64,
    max_managed_processes: u64,
    /// As Python prints it.
    expires_at: String,
}

impl From<AdmissionGrant> for Granted {
    fn from(grant: AdmissionGrant) -> Self {
        let expires_at = grant.expires_at.to_string();
        Self {
            installed: true,
            workspace_uuid: grant.workspace_uuid,
            execution_generation: grant.execution_generation,
            entitlement_revision: grant.entitlement_revision,
            max_sessions: grant.max_sessions,
            max_managed_processes: grant.max_managed_processes,
            expires_at: format!("{}+00:00", expires_at.trim_end_matches('Z')),
        }
    }
}

pub(super) async fn get_backend_info(call: Call<'_>) -> Outcome {
    Ok(Answer::Backend(Box::new(BackendInfo::of(call.runtime).await)))
}

pub(super) async fn health(call: Call<'_>) -> Outcome {
    if call.runtime.admission_policy().is_none() {
        return get_backend_info(call).await;
    }
    let readiness = call.runtime.readiness().await;
    if readiness.ready {
        return Ok(Answer::Readiness(Box::new(Readiness::clone(&readiness))));
    }
    let why = "managed sandbox isolation is not ready".to_owned();
    Err(RuntimeError::NotReady { why }.into())
}

pub(super) async fn upsert_grant(call: Call<'_>) -> Outcome {
    check_enforced(&call)?;
    let grant = AdmissionGrant::from_json(call.data)?;
    check_instance(
        &call,
        &grant.instance_uuid,
        "Sandbox admission grant does not match the trusted instance",
    )?;
    let placement = Placement::new(&grant.instance_uuid, &grant.workspace_uuid, grant.execution_generation);
    let fence = &call.app.tenancy.fence;
    if fence.is_past(&placement) {
        let why = "Sandbox admission execution generation is stale".to_owned();
        return Err(RuntimeError::Admission { why }.into());
    }
    let installed = call.runtime.install_grant(&grant).await?;
    // It makes its generation the newest, as a call would.
    drop(fence.enter(call.app, &placement).await?);
    Ok(Answer::Granted(installed.into()))
}

pub(super) async fn revoke_grant(call: Call<'_>) -> Outcome {
    check_enforced(&call)?;
    let revocation = AdmissionRevocation::from_json(call.data)?;
    let foreign = "Sandbox admission revocation does not match the trusted instance";
    check_instance(&call, &revocation.instance_uuid, foreign)?;
    call.runtime.revoke_grant(&revocation).await?;
    let AdmissionRevocation { workspace_uuid, entitlement_revision, .. } = revocation;
    Ok(Answer::Revoked { revoked: true, workspace_uuid, entitlement_revision })
}

fn check_enforced(call: &Call<'_>) -> Result<(), ActionError> {
    if call.runtime.admission_policy().is_some() {
        return Ok(());
    }
    let why = "Sandbox admission enforcement is not enabled".to_owned();
    Err(RuntimeError::Admission { why }.into())
}

fn check_instance(call: &Call<'_>, named: &str, foreign: &'static str) -> Result<(), ActionError> {
    match call.app.tenancy.instance() {
        Some(ours) if ours.as_str() == named => Ok(()),
        _ => Err(ActionError::Permission(foreign)),
    }
}
