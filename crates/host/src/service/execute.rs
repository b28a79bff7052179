//! Running a command for an agent.

use sandcrate_protocol::{BoxSpec, ErrorKind, ExecResult, ExecStatus, python_trim};
use serde_json::{Value, json};

use super::cleanup::is_cleanup;
use super::errors::query_id;
use super::quota::{self, Phase, Usage};
use super::truncate::{first, truncate};
use super::{HostMounts, Service};
use crate::{HostError, Query, Result};

const LOGGED_COMMAND_CHARS: usize = 400;
const PREVIEW_CHARS: usize = 200;

impl Service {
    /// The tool `exec`: `command`, and if they are there `workdir`, `timeout_sec` and `env`. Everything else about
    /// the box is not the agent's to choose.
    ///
    /// # Errors
    /// When the Box is not available, the parameters or the workspace are refused, or the runtime fails. A command
    /// that fails or times out is a result.
    pub async fn execute_tool(&self, parameters: &Value, query: &Query) -> Result<Value> {
        let Some(command) = parameters.get("command") else {
            return Err(self.record(HostError::invalid("command is required"), query));
        };
        let mut payload = json!({"cmd": command});
        for name in ["workdir", "timeout_sec", "env"] {
            if let Some(value) = parameters.get(name) {
                payload[name] = value.clone();
            }
        }
        let session = self.session_id(query).map_err(|error| self.record(error, query))?;
        payload["session_id"] = session.into();
        self.check_available().map_err(|error| self.record(error, query))?;
        let spec = self.build_spec(&payload, HostMounts::Check);
        let mut spec = spec.map_err(|error| self.record(error, query))?;
        // Made by the skill store, which need not be below the roots for other mounts.
        self.mount_skills(&mut spec, query);
        self.execute_spec(spec, query).await
    }

    /// Runs what a payload of the application describes.
    ///
    /// # Errors
    /// As [`Self::execute_tool`].
    pub async fn execute_spec_payload(
        &self,
        payload: &Value,
        query: &Query,
        mounts: HostMounts,
    ) -> Result<Value> {
        self.check_available().map_err(|error| self.record(error, query))?;
        let spec = self.build_spec(payload, mounts).map_err(|error| self.record(error, query))?;
        self.execute_spec(spec, query).await
    }

    async fn execute_spec(&self, spec: BoxSpec, query: &Query) -> Result<Value> {
        tracing::debug!(query_id = query_id(query), spec = %spec_summary(&spec), "LangBot Box request");
        let before = self.check_quota(&spec).await.map_err(|error| self.record(error, query))?;
        let result = self.inner.client.execute(&spec).await.map_err(|error| self.record(error, query))?;
        let checked = self.check_quota_after(&spec, before, &result).await;
        checked.map_err(|error| self.record(error, query))?;
        tracing::debug!(query_id = query_id(query), summary = %result_summary(&result), "LangBot Box result");
        Ok(presented(&result, self.inner.output_limit))
    }

    fn check_available(&self) -> Result<()> {
        if self.is_available() {
            return Ok(());
        }
        let backend = match self.inner.config.backend.as_deref() {
            Some("docker") => "Docker".to_owned(),
            Some("e2b") => "E2B".to_owned(),
            None | Some("local" | "auto") => "a sandbox backend (Docker or nsjail)".to_owned(),
            Some(name) => format!("the backend {name}"),
        };
        let reason = self.inner.availability.borrow().reason.clone();
        let reason = if reason.is_empty() { reason } else { format!(" ({reason})") };
        Err(HostError::new(
            ErrorKind::RuntimeUnavailable,
            format!("Box runtime is not available{reason}. Start it with {backend} to use sandbox features."),
        ))
    }

    /// Refuses what would add to a workspace that is too full.
    async fn check_quota(&self, spec: &BoxSpec) -> Result<Option<Usage>> {
        let cleans = is_cleanup(&spec.cmd);
        match quota::measure(spec).await {
            Ok(Some(usage)) if usage.is_too_much() && !cleans => {
                Err(usage.exceeded(Phase::Before, &spec.session_id))
            }
            Err(_) if cleans => Ok(None),
            measured => measured,
        }
    }

    /// The output of a command that left too much goes with the error; its session does not go on.
    async fn check_quota_after(
        &self,
        spec: &BoxSpec,
        before: Option<Usage>,
        result: &ExecResult,
    ) -> Result<()> {
        let cleans = is_cleanup(&spec.cmd);
        let mut error = match quota::measure(spec).await {
            Ok(Some(usage)) if usage.is_too_much() => {
                let grew = before.is_none_or(|before| usage.used > before.used);
                if cleans && !grew {
                    return Ok(());
                }
                usage.exceeded(Phase::After, &spec.session_id)
            }
            Err(error) if !cleans => error,
            _ => return Ok(()),
        };
        let session = &spec.session_id;
        if let Err(failed) = self.inner.client.delete_session(session).await {
            tracing::warn!(
                session.id = session,
                error = %failed,
                "Failed to clean up Box session after workspace quota was exceeded"
            );
        }
        let mut kept = result.clone();
        kept.stdout = truncate(&kept.stdout, self.inner.output_limit).0;
        kept.stderr = truncate(&kept.stderr, self.inner.output_limit).0;
        error.output = Some(Box::new(kept));
        Err(error)
    }
}

/// The result as an agent is shown it, of each stream so many characters.
pub fn presented(result: &ExecResult, output_limit: usize) -> Value {
    let (stdout, stdout_truncated) = truncate(&result.stdout, output_limit);
    let (stderr, stderr_truncated) = truncate(&result.stderr, output_limit);
    json!({
        "session_id": result.session_id,
        "backend": result.backend_name,
        "status": result.status,
        "ok": result.status == ExecStatus::Completed && result.exit_code == Some(0),
        "exit_code": result.exit_code,
        "stdout": stdout,
        "stderr": stderr,
        "stdout_truncated": stdout_truncated,
        "stderr_truncated": stderr_truncated,
        "duration_ms": result.duration_ms,
    })
}

/// Names of variables, never their values.
fn spec_summary(spec: &BoxSpec) -> Value {
    let mut cmd = python_trim(&spec.cmd).to_owned();
    if cmd.chars().nth(LOGGED_COMMAND_CHARS).is_some() {
        cmd = format!("{}...", first(&cmd, LOGGED_COMMAND_CHARS - 3));
    }
    json!({
        "session_id": spec.session_id,
        "workdir": spec.workdir,
        "mount_path": spec.mount_path,
        "timeout_sec": spec.timeout_sec,
        "network": spec.network,
        "image": spec.image,
        "host_path": spec.host_path,
        "host_path_mode": spec.host_path_mode,
        "cpus": spec.cpus,
        "memory_mb": spec.memory_mb,
        "pids_limit": spec.pids_limit,
        "read_only_rootfs": spec.read_only_rootfs,
        "workspace_quota_mb": spec.workspace_quota_mb,
        "env_keys": spec.env.keys().collect::<Vec<_>>(),
        "cmd": cmd,
    })
}

fn result_summary(result: &ExecResult) -> Value {
    let preview = |text: &str| match text.chars().nth(PREVIEW_CHARS) {
        Some(_) => format!("{}...", first(text, PREVIEW_CHARS)),
        None => text.to_owned(),
    };
    json!({
        "session_id": result.session_id,
        "backend": result.backend_name,
        "status": result.status,
        "exit_code": result.exit_code,
        "duration_ms": result.duration_ms,
        "stdout_preview": preview(&result.stdout),
        "stderr_preview": preview(&result.stderr),
    })
}
