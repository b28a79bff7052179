//! What only the newer dialects have: sessions with a status, limits and capacity, storage, the shared volume.

use std::collections::BTreeMap;

use sandcrate_protocol::{DEFAULT_PROCESS_ID, ProcessInfo, SessionInfo};
use sandcrate_runtime::{BoxLimits, Capacity, Placement, SessionView, StorageAnalysis};
use serde::Serialize;

use super::actions::{Call, Outcome};
use super::admission_actions::BackendInfo;
use super::answer::{ActionError, Answer};

/// A session as hosts since 4.10.7 see it. Fields in the order of the wire.
#[derive(Debug, Serialize)]
pub(crate) struct TenantSession {
    #[serde(flatten)]
    info: SessionInfo,
    status: &'static str,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    managed_processes: BTreeMap<String, ProcessInfo>,
    #[serde(skip_serializing_if = "Option::is_none")]
    managed_process: Option<ProcessInfo>,
}

impl TenantSession {
    /// Without its processes.
    pub(super) fn brief(placement: &Placement, view: SessionView) -> Self {
        let status = if view.executing { "running" } else { "idle" };
        let mut info = view.info;
        info.session_id = placement.logical(&info.session_id).to_owned();
        Self { info, status, managed_processes: BTreeMap::new(), managed_process: None }
    }

    pub(super) fn full(placement: &Placement, mut view: SessionView) -> Self {
        let processes = std::mem::take(&mut view.processes).into_iter().map(|mut process| {
            process.session_id = placement.logical(&process.session_id).to_owned();
            (process.process_id.clone(), process)
        });
        let managed_processes: BTreeMap<_, _> = processes.collect();
        let managed_process = managed_processes.get(DEFAULT_PROCESS_ID).cloned();
        Self { managed_processes, managed_process, ..Self::brief(placement, view) }
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct TenantStatus {
    backend: BackendInfo,
    active_sessions: usize,
    managed_processes: usize,
    session_ttl_sec: u64,
    limits: BoxLimits,
    capacity: Capacity,
}

pub(super) async fn status(call: &Call<'_>, placement: &Placement) -> Answer {
    let backend = BackendInfo::of(call.runtime).await;
    let sandcrate_runtime::TenantStatus { active_sessions, managed_processes, limits, capacity } =
        call.runtime.tenant_status(placement);
    let session_ttl_sec = call.runtime.config().session_ttl.as_secs();
    Answer::TenantStatus(Box::new(TenantStatus {
        backend,
        active_sessions,
        managed_processes,
        session_ttl_sec,
        limits,
        capacity,
    }))
}

#[derive(Debug, Serialize)]
pub(crate) struct Storage(StorageAnalysis);

pub(super) async fn get_storage_analysis(call: Call<'_>) -> Outcome {
    let placement = call.placement.ok_or(ActionError::MissingKey { key: "context" })?;
    Ok(Answer::Storage(Box::new(Storage(call.runtime.storage_analysis(placement).await?))))
}

pub(super) async fn verify_shared_workspace(call: Call<'_>) -> Outcome {
    let marker = call.data.get("marker_name").ok_or(ActionError::MissingKey { key: "marker_name" })?;
    let marker_name = marker.as_str().unwrap_or_default().to_owned();
    let probe = call.runtime.probe_shared_workspace(&marker_name).await?;
    Ok(Answer::SharedWorkspace { marker_name, sha256: probe.sha256, size: probe.size })
}
