//! Prompts and resources of the servers behind the gateway: lists are asked for when a client asks, and merged.

use std::time::Duration;

use rmcp::model::{
    ContentBlock, ErrorCode, ErrorData, GetPromptRequestParams, GetPromptResult, Prompt,
    ReadResourceRequestParams, ReadResourceResult, Resource, ResourceContents, ResourceTemplate, ResultType,
};
use rmcp::service::{RequestContext, RoleServer};

use super::Scope;
use super::handler::{Desk, without_protocol_keys};
use crate::manager::{CallError, CallOptions, Live};

/// For all servers to list what they have: a client waits for the slowest.
const LIST_LIMIT: Duration = Duration::from_secs(10);

impl Desk {
    pub(super) async fn prompts(&self) -> Vec<Prompt> {
        let rename = |server: &str, prompt: &mut Prompt| {
            prompt.name = self.scope.full_name(server, &prompt.name);
        };
        self.merged(async |live| live.prompts(LIST_LIMIT).await, rename).await
    }

    pub(super) async fn resources(&self) -> Vec<Resource> {
        let rename = |server: &str, resource: &mut Resource| {
            resource.uri = self.scope.full_uri(server, &resource.uri);
        };
        self.merged(async |live| live.resources(LIST_LIMIT).await, rename).await
    }

    pub(super) async fn resource_templates(&self) -> Vec<ResourceTemplate> {
        let rename = |server: &str, template: &mut ResourceTemplate| {
            template.uri_template = self.scope.full_uri(server, &template.uri_template);
        };
        self.merged(async |live| live.resource_templates(LIST_LIMIT).await, rename).await
    }

    /// What all servers of the scope list. One that cannot is left out, as one that is away would be.
    async fn merged<T>(
        &self,
        list: impl AsyncFn(&Live) -> Result<Vec<T>, String>,
        rename: impl Fn(&str, &mut T),
    ) -> Vec<T> {
        let servers = self.shared.manager.libraries().into_iter().filter(|(name, _)| self.scope.has(name));
        let asked = servers.map(async |(name, live)| {
            let mut listed = list(&live).await.unwrap_or_else(|error| {
                tracing::warn!(server = name, error, "an MCP server cannot list what it has");
                Vec::new()
            });
            listed.iter_mut().for_each(|item| rename(&name, item));
            listed
        });
        futures_util::future::join_all(asked).await.into_iter().flatten().collect()
    }

    pub(super) async fn prompt(
        &self,
        mut params: GetPromptRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Result<GetPromptResult, ErrorData> {
        let name = params.name.clone();
        let Some((server, own)) = self.scope.split(&name) else {
            return Err(ErrorData::invalid_params(format!("Prompt not found: {name}"), None));
        };
        let route = self.shared.manager.library(server).map_err(|error| refused(&error))?;
        params.name = own.to_owned();
        without_protocol_keys(&mut params.meta);
        let options = CallOptions { limit: route.limit, cancel: context.ct.clone(), progress: None };
        let mut result = route.live.prompt(params, options).await.map_err(|error| refused(&error))?;
        for message in &mut result.messages {
            readdress(&mut message.content, &self.scope, server);
        }
        result.result_type.get_or_insert(ResultType::COMPLETE);
        Ok(result)
    }

    pub(super) async fn read(
        &self,
        mut params: ReadResourceRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Result<ReadResourceResult, ErrorData> {
        let uri = params.uri.clone();
        let Some((server, own)) = self.scope.split_uri(&uri) else {
            return Err(ErrorData::resource_not_found(format!("Resource not found: {uri}"), None));
        };
        let route = self.shared.manager.library(server).map_err(|error| refused(&error))?;
        params.uri = own.to_owned();
        without_protocol_keys(&mut params.meta);
        let options = CallOptions { limit: route.limit, cancel: context.ct.clone(), progress: None };
        let mut result = route.live.read(params, options).await.map_err(|error| refused(&error))?;
        for contents in &mut result.contents {
            readdress_contents(contents, &self.scope, server);
        }
        result.result_type.get_or_insert(ResultType::COMPLETE);
        Ok(result)
    }
}

/// A resource in a result is addressed so that this client can ask for it.
pub(super) fn readdress(block: &mut ContentBlock, scope: &Scope, server: &str) {
    match block {
        ContentBlock::Resource(embedded) => readdress_contents(&mut embedded.resource, scope, server),
        ContentBlock::ResourceLink(link) => link.uri = scope.full_uri(server, &link.uri),
        _ => {}
    }
}

fn readdress_contents(contents: &mut ResourceContents, scope: &Scope, server: &str) {
    if let ResourceContents::TextResourceContents { uri, .. }
    | ResourceContents::BlobResourceContents { uri, .. } = contents
    {
        *uri = scope.full_uri(server, uri);
    }
}

/// There is no result in which a prompt or a resource could say what went wrong.
fn refused(error: &CallError) -> ErrorData {
    let message = match error {
        CallError::NotConnected { error: Some(why) } => format!("{error}: {}", why.message),
        _ => error.to_string(),
    };
    match error {
        CallError::ServerNotFound { .. } | CallError::ToolNotFound { .. } | CallError::Denied(_) => {
            ErrorData::invalid_params(message, None)
        }
        CallError::Failed { code: Some(code), .. } => ErrorData::new(ErrorCode(*code), message, None),
        _ => ErrorData::internal_error(message, None),
    }
}
