//! A sandbox as the control plane tells of it.

use sandcrate_e2b_wire::ENVD_VERSION;
use sandcrate_e2b_wire::control::{
    Lifecycle, ListedSandbox, PauseMode, Sandbox as Handle, SandboxDetail, SandboxState,
};
use sandcrate_runtime::SessionView;

use super::super::sandbox::{Sandbox, Secret};
use crate::App;

/// There is one of us, whatever E2B means by it.
const CLIENT_ID: &str = "sandcrate";
/// What a box has whose template does not say.
const DEFAULT_DISK_MB: u64 = 1024;

/// What whoever made or found it needs to talk to it.
pub(super) fn handle(app: &App, sandbox: &Sandbox) -> Handle {
    let facts = &sandbox.facts;
    let reveal = |secret: &Option<Secret>| secret.as_ref().map(|secret| secret.reveal().to_owned());
    Handle {
        template_id: facts.template.clone(),
        sandbox_id: facts.id.clone(),
        client_id: CLIENT_ID.to_owned(),
        envd_version: ENVD_VERSION.to_owned(),
        alias: Some(facts.template.clone()),
        envd_access_token: reveal(&facts.access),
        traffic_access_token: reveal(&facts.traffic),
        domain: app.config.e2b.domain.clone(),
    }
}

pub(super) fn listed(sandbox: &Sandbox, session: &SessionView) -> ListedSandbox {
    let (facts, span) = (&sandbox.facts, sandbox.span());
    ListedSandbox {
        template_id: facts.template.clone(),
        sandbox_id: facts.id.clone(),
        client_id: CLIENT_ID.to_owned(),
        started_at: facts.started_at,
        end_at: span.end_at,
        cpu_count: cpu_count(session),
        memory_mb: session.info.memory_mb,
        disk_size_mb: disk_mb(session),
        state: span.state,
        envd_version: ENVD_VERSION.to_owned(),
        alias: Some(facts.template.clone()),
        metadata: facts.metadata.clone(),
    }
}

pub(super) fn detail(app: &App, sandbox: &Sandbox, session: &SessionView) -> SandboxDetail {
    let (allow_internet_access, network) = sandbox.network();
    let listed = listed(sandbox, session);
    SandboxDetail {
        envd_access_token: sandbox.facts.access.as_ref().map(|secret| secret.reveal().to_owned()),
        allow_internet_access,
        domain: app.config.e2b.domain.clone(),
        network,
        lifecycle: Some(Lifecycle { auto_resume: false, on_timeout: sandbox.facts.on_timeout }),
        pause_mode: (listed.state == SandboxState::Paused).then_some(PauseMode::Filesystem),
        listed,
    }
}

/// Whole ones: a part of one counts.
pub(super) fn cpu_count(session: &SessionView) -> u32 {
    // Saturates: a cast of a float does not wrap.
    (session.info.cpus.ceil() as u32).max(1)
}

pub(super) fn disk_mb(session: &SessionView) -> u64 {
    match session.info.workspace_quota_mb {
        0 => DEFAULT_DISK_MB,
        quota => quota,
    }
}
