//! The protocol of one client: its tools and resources, in one session.

use std::borrow::Cow;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, Implementation, ListResourceTemplatesResult,
    ListResourcesResult, ListToolsResult, PaginatedRequestParams, ProgressNotificationParam, ProtocolVersion,
    ReadResourceRequestParams, ReadResourceResponse, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use sandcrate_host::HostError;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::http::Lease;
use super::tools::{SESSION_LIST, SESSION_RESET};
use super::{Boxes, instructions, outcome, resources, tools};

/// Between two words on a call that goes on.
const PROGRESS: Duration = Duration::from_secs(1);

/// An MCP server over one session of boxes.
#[derive(Debug)]
pub struct BoxServer {
    boxes: Arc<dyn Boxes>,
    session: String,
    versions: Versions,
    /// The client's claim on the session; the box goes with it.
    _lease: Option<Arc<Lease>>,
}

/// Which revisions of the protocol are spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Versions {
    All,
    /// Those in which a client has a session of its own. Later ones know none over HTTP, so that a client could
    /// not be told from another.
    WithSessions,
}

impl BoxServer {
    /// A server that works in the session of this name.
    pub fn new(boxes: Arc<dyn Boxes>, session: impl Into<String>) -> Self {
        Self { boxes, session: session.into(), versions: Versions::All, _lease: None }
    }

    pub(super) fn leased(
        boxes: Arc<dyn Boxes>,
        session: String,
        versions: Versions,
        lease: Option<Arc<Lease>>,
    ) -> Self {
        Self { boxes, session, versions, _lease: lease }
    }

    async fn work(&self, tool: &str, arguments: &Value) -> Result<CallToolResult, HostError> {
        match tool {
            SESSION_LIST => {
                no_arguments(tool, arguments)?;
                let found = self.boxes.session(&self.session).await?;
                let text = format!(
                    "session {}: {}; network {}; {} MiB of memory, {} CPUs, {} processes",
                    found.session, found.state, found.network, found.memory_mb, found.cpus, found.pids_limit
                );
                Ok(outcome::with_facts(text, json!({"ok": true, "sessions": [found]}), true))
            }
            SESSION_RESET => {
                no_arguments(tool, arguments)?;
                let existed = self.boxes.reset(&self.session).await?;
                let text = match existed {
                    true => {
                        "The box was ended, with all that ran in it and its private files. The next call has a new one."
                    }
                    false => "There was no box yet. The next call makes one.",
                };
                let facts = json!({"ok": true, "session": self.session, "existed": existed});
                Ok(outcome::with_facts(text.to_owned(), facts, true))
            }
            _ => {
                let value = self.boxes.call(&self.session, tool, arguments).await?;
                Ok(outcome::result(tool, value))
            }
        }
    }
}

fn no_arguments(tool: &str, arguments: &Value) -> Result<(), HostError> {
    match arguments.as_object().and_then(|fields| fields.keys().next()) {
        Some(field) => Err(HostError::invalid(format!("`{tool}` has no argument `{field}`"))),
        None => Ok(()),
    }
}

/// Tells a client that asked for it how long a call has gone on. Never ends.
async fn tell_progress(context: &RequestContext<RoleServer>, arguments: &Value) -> Infallible {
    let Some(token) = context.meta.get_progress_token() else { return std::future::pending().await };
    let total = arguments.get("timeout_sec").and_then(Value::as_f64);
    let began = Instant::now();
    let mut clock = tokio::time::interval_at(began + PROGRESS, PROGRESS);
    loop {
        clock.tick().await;
        let seconds = began.elapsed().as_secs_f64();
        let mut word = ProgressNotificationParam::new(token.clone(), seconds)
            .with_message(format!("running for {seconds:.0} s"));
        if let Some(total) = total {
            word = word.with_total(total);
        }
        if context.peer.notify_progress(word).await.is_err() {
            // Nobody listens; the call itself is none the worse.
            return std::future::pending().await;
        }
    }
}

impl ServerHandler for BoxServer {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().enable_resources().build();
        let about = Implementation::new("sandcrate", env!("CARGO_PKG_VERSION"))
            .with_title("Sandcrate sandbox")
            .with_description("A Linux sandbox for commands and files");
        ServerConfig::new(capabilities)
            .with_server_info(about)
            .with_instructions(instructions::text(&self.boxes.facts()))
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        match self.versions {
            Versions::All => Cow::Borrowed(ProtocolVersion::KNOWN_VERSIONS),
            Versions::WithSessions => {
                let with_sessions =
                    |version: &&ProtocolVersion| version.as_str() < ProtocolVersion::V_2026_07_28.as_str();
                ProtocolVersion::KNOWN_VERSIONS.iter().filter(with_sessions).cloned().collect()
            }
        }
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(tools::list(self.boxes.tools())))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        tools::list(self.boxes.tools()).into_iter().find(|tool| tool.name == name)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let offered = tools::list(self.boxes.tools());
        if !offered.iter().any(|tool| tool.name == request.name) {
            let names: Vec<_> = offered.iter().map(|tool| tool.name.as_ref()).collect();
            let asked: String = request.name.chars().take(100).collect();
            let message = format!("there is no tool `{asked}` here; there are {}", names.join(", "));
            return Err(ErrorData::invalid_params(message, None));
        }
        let arguments = Value::Object(request.arguments.unwrap_or_default());
        let outcome = tokio::select! {
            outcome = self.work(&request.name, &arguments) => outcome,
            // Dropping the call ends its command, and the answer has no reader any more.
            () = context.ct.cancelled() => return Err(ErrorData::internal_error("the call was cancelled", None)),
            never = tell_progress(&context, &arguments) => match never {},
        };
        Ok(outcome.unwrap_or_else(|error| outcome::failure(&error)).into())
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let cursor = request.and_then(|request| request.cursor);
        resources::list(&*self.boxes, &self.session, cursor.as_deref()).await
    }

    async fn list_resource_templates(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(resources::templates(&self.session))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        Ok(resources::read(&*self.boxes, &self.session, &request.uri).await?.into())
    }
}
