//! What a server has besides tools: prompts and resources, asked for when somebody wants them.

use std::time::Duration;

use rmcp::model::{
    ClientRequest, GetPromptRequest, GetPromptRequestParams, GetPromptResult, PaginatedRequestParams, Prompt,
    ReadResourceRequest, ReadResourceRequestParams, ReadResourceResult, Resource, ResourceTemplate,
    ServerResult,
};
use rmcp::service::ServiceError;

use super::call::{CallOptions, unusable};
use super::connection::Live;
use super::error::CallError;

/// A client is shown fewer; a server that lists more is out of order.
const MAX_LISTED: usize = 2000;
const MAX_PAGES: usize = 200;

/// All of a list, page by page.
///
/// # Errors
/// In words, when the server does not answer in time, refuses, or has no end.
pub(super) async fn pages<T, F>(
    what: &str,
    limit: Duration,
    ask: impl Fn(PaginatedRequestParams) -> F,
) -> Result<Vec<T>, String>
where
    F: Future<Output = Result<(Vec<T>, Option<String>), ServiceError>>,
{
    let listing = async {
        let (mut listed, mut cursor) = (Vec::new(), None);
        for _ in 0..MAX_PAGES {
            let page = PaginatedRequestParams::default().with_cursor(cursor);
            let (page, next) = ask(page).await.map_err(|error| error.to_string())?;
            listed.extend(page);
            if listed.len() > MAX_LISTED {
                return Err(format!("it lists more than {MAX_LISTED} {what}"));
            }
            cursor = next;
            if cursor.is_none() {
                return Ok(listed);
            }
        }
        Err(format!("its list of {what} has more than {MAX_PAGES} pages"))
    };
    let late = || format!("{what}/list was not answered within {} seconds", limit.as_secs());
    tokio::time::timeout(limit, listing).await.unwrap_or_else(|_| Err(late()))
}

impl Live {
    fn has_prompts(&self) -> bool {
        self.info().is_some_and(|info| info.capabilities.prompts.is_some())
    }

    fn has_resources(&self) -> bool {
        self.info().is_some_and(|info| info.capabilities.resources.is_some())
    }

    /// # Errors
    /// In words, when they cannot be listed.
    pub async fn prompts(&self, limit: Duration) -> Result<Vec<Prompt>, String> {
        if !self.has_prompts() {
            return Ok(Vec::new());
        }
        pages("prompts", limit, |page| async move {
            let listed = self.peer.list_prompts(Some(page)).await?;
            Ok((listed.prompts, listed.next_cursor))
        })
        .await
    }

    /// # Errors
    /// In words, when they cannot be listed.
    pub async fn resources(&self, limit: Duration) -> Result<Vec<Resource>, String> {
        if !self.has_resources() {
            return Ok(Vec::new());
        }
        pages("resources", limit, |page| async move {
            let listed = self.peer.list_resources(Some(page)).await?;
            Ok((listed.resources, listed.next_cursor))
        })
        .await
    }

    /// # Errors
    /// In words, when they cannot be listed.
    pub async fn resource_templates(&self, limit: Duration) -> Result<Vec<ResourceTemplate>, String> {
        if !self.has_resources() {
            return Ok(Vec::new());
        }
        pages("resources/templates", limit, |page| async move {
            let listed = self.peer.list_resource_templates(Some(page)).await?;
            Ok((listed.resource_templates, listed.next_cursor))
        })
        .await
    }

    /// # Errors
    /// When there is no answer that can be used.
    pub async fn prompt(
        &self,
        params: GetPromptRequestParams,
        options: CallOptions,
    ) -> Result<GetPromptResult, CallError> {
        let request = ClientRequest::GetPromptRequest(GetPromptRequest::new(params));
        match self.request(request, options).await? {
            ServerResult::GetPromptResult(result) => Ok(result),
            _ => Err(unusable()),
        }
    }

    /// # Errors
    /// When there is no answer that can be used.
    pub async fn read(
        &self,
        params: ReadResourceRequestParams,
        options: CallOptions,
    ) -> Result<ReadResourceResult, CallError> {
        let request = ClientRequest::ReadResourceRequest(ReadResourceRequest::new(params));
        match self.request(request, options).await? {
            ServerResult::ReadResourceResult(result) => Ok(result),
            _ => Err(unusable()),
        }
    }
}
