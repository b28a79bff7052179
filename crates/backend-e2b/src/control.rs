//! The control plane: sandboxes made, kept, listed and ended.

use std::collections::BTreeMap;
use std::sync::Arc;

use reqwest::{Client, Method, RequestBuilder};
use sandcrate_e2b_wire::control::{
    ListedSandbox, NetworkConfig, NewSandbox, Sandbox, SandboxDetail, Timeout,
};
use sandcrate_e2b_wire::header;

use crate::config::Access;
use crate::http::{ANSWER_BYTES, Answer, EndpointError, REQUEST_LIMIT, ask};
use crate::network::Traffic;

/// Sandboxes of one page.
const PAGE: usize = 100;
/// More sandboxes than one key may have.
const MAX_PAGES: usize = 100;
/// Making a sandbox may mean that a template is fetched.
const CREATE_LIMIT: std::time::Duration = std::time::Duration::from_secs(120);

/// One key at one endpoint.
#[derive(Debug, Clone)]
pub(crate) struct Control {
    pub(crate) http: Client,
    pub(crate) access: Arc<Access>,
}

impl Control {
    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.http
            .request(method, format!("{}{path}", self.access.api))
            .header(header::API_KEY, &self.access.key)
    }

    async fn ask(&self, what: &'static str, request: RequestBuilder) -> Result<Answer, EndpointError> {
        ask(what, request, REQUEST_LIMIT, ANSWER_BYTES).await
    }

    /// By the newer address, and by the older where an endpoint has no other.
    pub(crate) async fn create(&self, wanted: &NewSandbox) -> Result<Sandbox, EndpointError> {
        const WHAT: &str = "making a sandbox";
        let post = async |path: &str| {
            ask(WHAT, self.request(Method::POST, path).json(wanted), CREATE_LIMIT, ANSWER_BYTES).await
        };
        let made = match post("/v2/sandboxes").await {
            // An endpoint without the address; one without the template says so again.
            Err(error) if matches!(error.status(), Some(404 | 405)) => post("/sandboxes").await?,
            made => made?,
        };
        let made: Sandbox = made.json(WHAT)?;
        check_id(WHAT, &made.sandbox_id)?;
        Ok(made)
    }

    pub(crate) async fn detail(&self, sandbox: &str) -> Result<SandboxDetail, EndpointError> {
        const WHAT: &str = "looking at a sandbox";
        self.ask(WHAT, self.request(Method::GET, &format!("/sandboxes/{sandbox}"))).await?.json(WHAT)
    }

    /// The sandbox lives for so many seconds from now.
    pub(crate) async fn keep(&self, sandbox: &str, seconds: u64) -> Result<(), EndpointError> {
        let request = self.request(Method::POST, &format!("/sandboxes/{sandbox}/timeout"));
        self.ask("keeping a sandbox", request.json(&Timeout { timeout: seconds })).await.map(drop)
    }

    /// Ends a sandbox; whether there was one.
    pub(crate) async fn kill(&self, sandbox: &str) -> Result<bool, EndpointError> {
        let request = self.request(Method::DELETE, &format!("/sandboxes/{sandbox}"));
        match self.ask("ending a sandbox", request).await {
            Ok(_) => Ok(true),
            Err(error) if error.status() == Some(404) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Holds a sandbox to other rules.
    pub(crate) async fn set_network(&self, sandbox: &str, traffic: &Traffic) -> Result<(), EndpointError> {
        let rules = NetworkConfig {
            allow_internet_access: Some(traffic.internet),
            ..traffic.rules.clone().unwrap_or_default()
        };
        let request = self.request(Method::PUT, &format!("/sandboxes/{sandbox}/network"));
        self.ask("changing a sandbox's network", request.json(&rules)).await.map(drop)
    }

    /// All sandboxes with this metadata, paused ones too. An endpoint that does not filter is filtered here.
    pub(crate) async fn list(
        &self,
        metadata: &BTreeMap<String, String>,
    ) -> Result<Vec<ListedSandbox>, EndpointError> {
        const WHAT: &str = "listing sandboxes";
        let filter = metadata.iter().map(|(key, value)| format!("{}={}", escaped(key), escaped(value)));
        let filter = filter.collect::<Vec<_>>().join("&");
        let mut found = Vec::new();
        let mut next: Option<String> = None;
        for _ in 0..MAX_PAGES {
            let mut query = vec![
                ("metadata", filter.clone()),
                ("state", "running,paused".to_owned()),
                ("limit", PAGE.to_string()),
            ];
            query.extend(next.take().map(|token| ("nextToken", token)));
            let request = self.request(Method::GET, "/v2/sandboxes").query(&query);
            let page = self.ask(WHAT, request).await?;
            let listed: Vec<ListedSandbox> = page.json(WHAT)?;
            let ours = |sandbox: &ListedSandbox| {
                metadata.iter().all(|(key, value)| sandbox.metadata.get(key) == Some(value))
            };
            found.extend(listed.into_iter().filter(ours));
            next =
                page.headers.get(header::NEXT_TOKEN).and_then(|token| token.to_str().ok()).map(str::to_owned);
            if next.as_deref().is_none_or(str::is_empty) {
                return Ok(found);
            }
        }
        Err(EndpointError::Malformed { what: WHAT, problem: format!("it has more than {MAX_PAGES} pages") })
    }

    /// Whether the endpoint is there and takes the key.
    pub(crate) async fn greet(&self, limit: std::time::Duration) -> Result<(), EndpointError> {
        let request = self.request(Method::GET, "/v2/sandboxes").query(&[("limit", "1")]);
        ask("greeting the endpoint", request, limit, ANSWER_BYTES).await.map(drop)
    }
}

/// An id becomes part of addresses and host names.
fn check_id(what: &'static str, id: &str) -> Result<(), EndpointError> {
    let fine = |letter: char| letter.is_ascii_alphanumeric() || letter == '-' || letter == '_';
    match !id.is_empty() && id.len() <= 200 && id.chars().all(fine) {
        true => Ok(()),
        false => Err(EndpointError::Malformed { what, problem: "the sandbox's id is not a word".to_owned() }),
    }
}

/// For a query inside a query.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => escaped.push(char::from(byte)),
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_that_is_no_word_is_refused() {
        assert!(check_id("x", "ix2a-b_9").is_ok());
        for bad in ["", "a/b", "a.b", "..", "a b", &"x".repeat(300)] {
            assert!(check_id("x", bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn metadata_is_escaped_for_its_query() {
        assert_eq!(escaped("a b&c=d/ü"), "a%20b%26c%3Dd%2F%C3%BC");
    }
}
