//! What the tools run on here: sessions as the service makes them, and sessions that are there already.

use std::sync::Arc;

use async_trait::async_trait;
use sandcrate_host::tools::Executor;
use sandcrate_host::{Client, HostError, HostMounts, Query, Service};
use sandcrate_protocol::BoxSpec;
use sandcrate_runtime::Runtime;
use serde_json::{Value, json};

/// The variable of a query that names its session.
pub(super) const SESSION: &str = "session";

#[derive(Debug)]
pub(super) struct Sessions {
    pub(super) service: Service,
    pub(super) runtime: Runtime,
}

impl Sessions {
    /// What the session is, when somebody made it before: a tool works in it as it is.
    fn existing(&self, query: &Query) -> Option<Value> {
        let session = query.variables.get(SESSION)?.as_str()?;
        let info = self.runtime.session(session).ok()?.info;
        let mut fields = json!({
            "session_id": info.session_id,
            "image": info.image,
            "network": info.network,
            "host_path_mode": info.host_path_mode,
            "mount_path": info.mount_path,
            "persistent": info.persistent,
            "cpus": info.cpus,
            "memory_mb": info.memory_mb,
            "pids_limit": info.pids_limit,
            "read_only_rootfs": info.read_only_rootfs,
            "workspace_quota_mb": info.workspace_quota_mb,
        });
        if let Some(host_path) = info.host_path {
            fields["host_path"] = host_path.into();
        }
        Some(fields)
    }
}

#[async_trait]
impl Executor for Sessions {
    async fn execute_tool(&self, parameters: Value, query: &Query) -> Result<Value, HostError> {
        let Some(mut payload) = self.existing(query) else {
            return self.service.execute_tool(&parameters, query).await;
        };
        payload["cmd"] = parameters["command"].clone();
        for name in ["workdir", "timeout_sec", "env"] {
            if let Some(value) = parameters.get(name) {
                payload[name] = value.clone();
            }
        }
        self.service.execute_spec_payload(&payload, query, HostMounts::Trust).await
    }

    async fn spec_for(&self, query: &Query) -> Result<BoxSpec, HostError> {
        match self.existing(query) {
            Some(payload) => self.service.build_spec(&payload, HostMounts::Trust),
            None => Executor::spec_for(&self.service, query).await,
        }
    }

    fn client(&self) -> Arc<dyn Client> {
        Arc::clone(self.service.client())
    }
}
