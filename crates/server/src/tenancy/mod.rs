//! LangBot since 4.10.7: the one instance that is served, and the generation of each of its workspaces.
//!
//! A client that names its instance in the handshake speaks the newer dialects; one that does not speaks the first.

mod fence;
mod instance;

use std::sync::OnceLock;

use axum::http::{HeaderMap, StatusCode};
use sandcrate_runtime::Placement;

use crate::{Refusal, ServerConfig};

pub(crate) use fence::{Fence, FenceError};
pub use instance::InstanceId;

/// Sent with every handshake of the newer dialects, and only there.
pub(crate) const INSTANCE_HEADER: &str = "x-langbot-instance-id";
const WORKSPACE_HEADER: &str = "x-langbot-workspace-id";
const GENERATION_HEADER: &str = "x-langbot-placement-generation";
const WORKSPACE_CHARS: usize = 256;

/// What is known of the LangBot that is served.
#[derive(Debug)]
pub(crate) struct Tenancy {
    /// The operator's word, else that of the first handshake; for the life of the server.
    instance: OnceLock<InstanceId>,
    pub(crate) fence: Fence,
}

impl Tenancy {
    pub(crate) fn new(config: &ServerConfig) -> Self {
        let instance = config.instance.clone().map_or_else(OnceLock::new, OnceLock::from);
        Self { instance, fence: Fence::default() }
    }

    pub(crate) fn instance(&self) -> Option<&InstanceId> {
        self.instance.get()
    }

    /// The instance that a handshake names, which must be ours; nothing in the first dialect.
    pub(crate) fn named(&self, headers: &HeaderMap) -> Result<Option<InstanceId>, Refusal> {
        let Some(value) = headers.get(INSTANCE_HEADER) else { return Ok(None) };
        let named: InstanceId = value
            .to_str()
            .ok()
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| unauthorized("X-LangBot-Instance-Id is not an instance's id"))?;
        match self.instance() {
            Some(ours) if *ours != named => Err(unauthorized("this server serves another LangBot instance")),
            _ => Ok(Some(named)),
        }
    }

    /// From now on this instance is served and no other. Of several at once, the first.
    pub(crate) fn pin(&self, instance: &InstanceId) -> Result<(), Refusal> {
        if self.instance.get_or_init(|| instance.clone()) == instance {
            return Ok(());
        }
        Err(unauthorized("this server serves another LangBot instance"))
    }

    /// The placement that a relay is opened for, which an action must have made known. Nothing in the first dialect.
    pub(crate) fn relayed(&self, headers: &HeaderMap, session: &str) -> Result<Option<Placement>, Refusal> {
        let Some(instance) = self.named(headers)? else { return Ok(None) };
        if self.instance().is_none() {
            return Err(unauthorized("no LangBot instance has opened `/rpc/ws` yet"));
        }
        let header =
            |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().trim();
        let workspace = header(WORKSPACE_HEADER);
        if workspace.is_empty() || workspace.chars().count() > WORKSPACE_CHARS {
            return Err(unauthorized("X-LangBot-Workspace-Id must have 1 to 256 characters"));
        }
        let written = header(GENERATION_HEADER);
        let generation =
            written.parse::<u64>().ok().filter(|number| *number >= 1 && number.to_string() == written);
        let generation = generation
            .ok_or_else(|| unauthorized("X-LangBot-Placement-Generation must be a number of at least 1"))?;
        let placement = Placement::new(instance.as_str(), workspace, generation);
        if !self.fence.is_current(&placement) {
            return Err(unauthorized("the placement generation is not the current one"));
        }
        if !placement.owns(session) {
            return Err(unauthorized("the session is not one of this placement"));
        }
        Ok(Some(placement))
    }
}

pub(crate) fn unauthorized(message: &str) -> Refusal {
    Refusal::new(StatusCode::UNAUTHORIZED, "unauthorized", message)
}
