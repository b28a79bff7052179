//! What a client of the gateway is answered.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use rmcp::ServerHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorCode, ErrorData,
    GetPromptRequestParams, GetPromptResponse, Implementation, ListPromptsResult,
    ListResourceTemplatesResult, ListResourcesResult, ListToolsResult, MetaObject, PaginatedRequestParams,
    ReadResourceRequestParams, ReadResourceResponse, RequestMetaObject, ResultType, ServerCapabilities,
    ServerConfig, SubscriptionFilter, Tool,
};
use rmcp::service::{NotificationContext, RequestContext, RoleServer, SubscriptionContext};
use serde_json::json;
use tokio::sync::mpsc;

use super::denials::tell;
use super::library::readdress;
use super::{Scope, Shared};
use crate::manager::{CallError, CallOptions};

/// The key of a result's `_meta` when a call has no result of its server.
pub(crate) const FAILURE_KEY: &str = "sandcrate/failure";
/// Progress of one call that its client has not taken yet.
const PROGRESS_QUEUE: usize = 64;
/// Metadata with this prefix is between a client and us.
const OF_THE_PROTOCOL: &str = "io.modelcontextprotocol/";

/// Serves one client.
#[derive(Debug, Clone)]
pub(crate) struct Desk {
    pub(crate) shared: Arc<Shared>,
    pub(crate) scope: Scope,
}

impl Shared {
    /// What a client of this scope is offered.
    pub(crate) fn tools(&self, scope: &Scope) -> Vec<Tool> {
        let offers = self.manager.offers().into_iter().filter(|(server, _)| scope.has(server));
        let named = |(server, tools): (String, Vec<Tool>)| {
            tools.into_iter().map(move |mut tool| {
                tool.name = scope.full_name(&server, &tool.name).into();
                tool
            })
        };
        offers.flat_map(named).collect()
    }

    /// What tells whether it is still the same.
    pub(crate) fn fingerprint(&self, scope: &Scope) -> Fingerprint {
        let (mut tools, mut library) = (DefaultHasher::new(), DefaultHasher::new());
        for tool in self.tools(scope) {
            serde_json::to_string(&tool).unwrap_or_default().hash(&mut tools);
        }
        for (server, live) in self.manager.libraries().into_iter().filter(|(server, _)| scope.has(server)) {
            (server, live.library_version(), Arc::as_ptr(&live)).hash(&mut library);
        }
        Fingerprint { tools: tools.finish(), library: library.finish() }
    }
}

/// Numbers that change with what is offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fingerprint {
    pub(crate) tools: u64,
    /// Of prompts and resources.
    pub(crate) library: u64,
}

/// Leaves out what is between a client and us.
pub(super) fn without_protocol_keys(meta: &mut Option<RequestMetaObject>) {
    if let Some(meta) = meta {
        meta.0.retain(|key, _| !key.starts_with(OF_THE_PROTOCOL));
    }
}

impl Desk {
    async fn call(
        &self,
        mut params: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResult, ErrorData> {
        let unknown = |name: &str| CallError::ToolNotFound { name: name.to_owned() };
        let name = params.name.clone();
        let Some((server, tool)) = self.scope.split(&name) else { return answer(unknown(&name)) };
        let route = match self.shared.manager.route(server, tool) {
            Ok(route) => route,
            Err(CallError::ToolNotFound { .. }) => return answer(unknown(&name)),
            Err(error) => return answer(error),
        };
        params.name = tool.to_owned().into();
        without_protocol_keys(&mut params.meta);
        if !self.shared.told.knows(&route.session_id) {
            // What was refused before this call is none of its business.
            self.news(&route.session_id).await;
        }
        let (progress, mut heard) = mpsc::channel(PROGRESS_QUEUE);
        let token = context.meta.get_progress_token();
        let options = CallOptions {
            limit: route.limit,
            cancel: context.ct.clone(),
            progress: token.is_some().then_some(progress),
        };
        let passing_on = async {
            let Some(token) = token else { return };
            while let Some(mut params) = heard.recv().await {
                params.progress_token = token.clone();
                if context.peer.notify_progress(params).await.is_err() {
                    return;
                }
            }
        };
        let (result, ()) = tokio::join!(route.live.call(params, options), passing_on);
        let denials = self.news(&route.session_id).await;
        let mut result = match result {
            Ok(result) => result,
            Err(error) => answer(error)?,
        };
        // A server of an older protocol does not say so; a client of a newer one wants to know.
        result.result_type.get_or_insert(ResultType::COMPLETE);
        for block in &mut result.content {
            readdress(block, &self.scope, server);
        }
        tell(&mut result, &denials);
        Ok(result)
    }

    async fn news(&self, session: &str) -> Vec<sandcrate_protocol::network::Denial> {
        self.shared.told.news(session, self.shared.refusals.refused(session).await)
    }
}

/// What a model can act on is a result; what the client got wrong is an error of the protocol.
fn answer(error: CallError) -> Result<CallToolResult, ErrorData> {
    let message = error.to_string();
    match error {
        CallError::ServerNotFound { .. } | CallError::ToolNotFound { .. } => {
            Err(ErrorData::invalid_params(message, None))
        }
        CallError::Failed { code: Some(code), message } => {
            Err(ErrorData::new(ErrorCode(code), message, None))
        }
        CallError::Denied(denied) => {
            let facts =
                json!({"kind": "denied", "server": denied.server, "tool": denied.tool, "rule": denied.rule});
            Ok(failure(message, facts))
        }
        other => {
            let said = match &other {
                CallError::NotConnected { error: Some(error) } => format!("{message}: {}", error.message),
                _ => message,
            };
            let facts = json!({"kind": other.kind(), "phase": other.phase(), "message": said});
            Ok(failure(said, facts))
        }
    }
}

fn failure(message: String, facts: serde_json::Value) -> CallToolResult {
    let mut result = CallToolResult::error(vec![ContentBlock::text(message)]);
    result.meta.get_or_insert_with(MetaObject::default).insert(FAILURE_KEY.to_owned(), facts);
    result
}

impl ServerHandler for Desk {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder()
            .enable_tools()
            .enable_tool_list_changed()
            .enable_prompts()
            .enable_prompts_list_changed()
            .enable_resources()
            .enable_resources_list_changed()
            .build();
        let ours = Implementation::new("sandcrate", env!("CARGO_PKG_VERSION"));
        let instructions = match &self.scope {
            Scope::All => {
                "Tools, prompts and resources of several MCP servers, each in a sandbox of its own. A tool or \
                 prompt is called SERVER__NAME, a resource box:SERVER/ADDRESS. What a sandbox refused is told \
                 with the result of the call."
                    .to_owned()
            }
            Scope::One(name) => {
                let live = self.shared.manager.live().into_iter().find(|(server, _)| server == name);
                let own = live.and_then(|(_, live)| live.info()).and_then(|info| info.instructions.clone());
                own.unwrap_or_else(|| format!("The MCP server {name}, in a sandbox."))
            }
        };
        ServerConfig::new(capabilities).with_server_info(ours).with_instructions(instructions)
    }

    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        self.shared.welcome(self.scope.clone(), context.peer);
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(self.shared.tools(&self.scope)))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        self.call(request, context).await.map(CallToolResponse::Complete)
    }

    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        Ok(ListPromptsResult::with_all_items(self.prompts().await))
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        self.prompt(request, &context).await.map(GetPromptResponse::Complete)
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        Ok(ListResourcesResult::with_all_items(self.resources().await))
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(ListResourceTemplatesResult::with_all_items(self.resource_templates().await))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        self.read(request, &context).await.map(ReadResourceResponse::Complete)
    }

    /// Clients without sessions subscribe instead.
    fn accepted_subscription_filter(&self, requested: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        Some(requested.clone())
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        let mut changes = self.shared.manager.changes();
        let mut offered = self.shared.fingerprint(&self.scope);
        loop {
            tokio::select! {
                () = context.cancelled() => return Ok(()),
                changed = changes.changed() => if changed.is_err() { return Ok(()) },
            }
            let now = self.shared.fingerprint(&self.scope);
            let sink = context.sink();
            if now.tools != offered.tools && sink.notify_tool_list_changed().await.is_err() {
                return Ok(());
            }
            if now.library != offered.library
                && (sink.notify_prompt_list_changed().await.is_err()
                    || sink.notify_resource_list_changed().await.is_err())
            {
                return Ok(());
            }
            offered = now;
        }
    }
}
