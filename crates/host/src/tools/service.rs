//! The Box service as what the tools run on.

use std::sync::Arc;

use async_trait::async_trait;
use sandcrate_protocol::BoxSpec;
use serde_json::{Value, json};

use super::Executor;
use crate::{Client, HostMounts, Query, Result, Service};

#[async_trait]
impl Executor for Service {
    async fn execute_tool(&self, parameters: Value, query: &Query) -> Result<Value> {
        Service::execute_tool(self, &parameters, query).await
    }

    async fn spec_for(&self, query: &Query) -> Result<BoxSpec> {
        let session = self.session_id(query)?;
        let mut spec = self.build_spec(&json!({"session_id": session}), HostMounts::Check)?;
        self.mount_skills(&mut spec, query);
        Ok(spec)
    }

    fn client(&self) -> Arc<dyn Client> {
        Arc::clone(Service::client(self))
    }
}
