//! A sandbox's own service: processes, files, and whether it is there.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use reqwest::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, RANGE};
use reqwest::{Client, Method, RequestBuilder, StatusCode};
use sandcrate_e2b_wire::connect;
use sandcrate_e2b_wire::control::Sandbox;
use sandcrate_e2b_wire::process::{self, ProcessEvent, SelectRequest, Selector, StartRequest};
use sandcrate_e2b_wire::{ENVD_PORT, header};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::http::{ANSWER_BYTES, EndpointError, REQUEST_LIMIT, accepted, ask};
use crate::stream::EventStream;

/// For a sandbox to say that it lives.
const HEALTH_LIMIT: Duration = Duration::from_secs(5);
/// For a whole file either way.
pub(crate) const TRANSFER_LIMIT: Duration = Duration::from_secs(300);
/// Between two signs of life on a stream, as we ask for them.
const KEEPALIVE_SECONDS: &str = "20";
/// What an endpoint of our own kind says of itself.
const SANDCRATE: &str = "sandcrate";
/// Since then a service takes a file as the body itself.
const PLAIN_UPLOAD: [u32; 3] = [0, 5, 7];
/// Since then a service knows its default user.
const DEFAULT_USER: [u32; 3] = [0, 4, 0];

/// Who serves the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Peer {
    /// A kill ends a whole tree, any signal can be sent, and an end comes with what was used.
    Sandcrate,
    Other,
}

/// Whether a sandbox is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Health {
    Running,
    Gone,
    /// No answer, or one that says neither.
    Unknown,
}

/// As whom something is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum User {
    Default,
    Root,
}

/// One sandbox, and the way to it.
#[derive(Clone)]
pub(crate) struct Envd {
    http: Client,
    base: String,
    sandbox: String,
    token: Option<String>,
    traffic_token: Option<String>,
    version: [u32; 3],
    pub(crate) peer: Peer,
}

impl std::fmt::Debug for Envd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Envd")
            .field("base", &self.base)
            .field("sandbox", &self.sandbox)
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}

/// A part of a file, and the size of the whole.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) data: Bytes,
    pub(crate) file_bytes: u64,
}

impl Envd {
    pub(crate) fn new(http: Client, made: &Sandbox, base: impl FnOnce(Peer) -> String) -> Self {
        let peer = if made.client_id == SANDCRATE { Peer::Sandcrate } else { Peer::Other };
        Self {
            http,
            base: base(peer),
            sandbox: made.sandbox_id.clone(),
            token: made.envd_access_token.clone(),
            traffic_token: made.traffic_access_token.clone(),
            version: version(&made.envd_version),
            peer,
        }
    }

    fn request(&self, method: Method, path: &str, user: User) -> RequestBuilder {
        let mut request = self
            .http
            .request(method, format!("{}{path}", self.base))
            .header(header::SANDBOX_ID, &self.sandbox)
            .header(header::SANDBOX_PORT, ENVD_PORT.to_string());
        if let Some(token) = &self.token {
            request = request.header(header::ACCESS_TOKEN, token);
        }
        if let Some(token) = &self.traffic_token {
            request = request.header(header::TRAFFIC_TOKEN, token);
        }
        let named = match user {
            User::Root => Some("root"),
            User::Default if self.version < DEFAULT_USER => Some("user"),
            User::Default => None,
        };
        match named {
            Some(name) => {
                request.header(AUTHORIZATION, format!("Basic {}", STANDARD.encode(format!("{name}:"))))
            }
            None => request,
        }
    }

    /// A call with one message each way.
    pub(crate) async fn call<Q: Serialize, A: DeserializeOwned>(
        &self,
        what: &'static str,
        method: &str,
        message: &Q,
    ) -> Result<A, EndpointError> {
        self.call_within(what, method, message, REQUEST_LIMIT).await
    }

    pub(crate) async fn call_within<Q: Serialize, A: DeserializeOwned>(
        &self,
        what: &'static str,
        method: &str,
        message: &Q,
        limit: Duration,
    ) -> Result<A, EndpointError> {
        let request = self
            .request(Method::POST, method, User::Default)
            .header(connect::VERSION_HEADER, "1")
            .header(connect::TIMEOUT_HEADER, limit.as_millis().to_string())
            .json(message);
        ask(what, request, limit, ANSWER_BYTES).await?.json(what)
    }

    /// Starts a program; its events come until its end.
    pub(crate) async fn start(
        &self,
        request: &StartRequest,
        user: User,
    ) -> Result<EventStream, EndpointError> {
        self.stream("starting a command", "Start", request, user).await
    }

    /// The events of a running program, from now on.
    pub(crate) async fn reattach(&self, pid: u32) -> Result<EventStream, EndpointError> {
        const WHAT: &str = "going back to a command";
        let request = SelectRequest { process: Selector::Pid(pid) };
        let mut stream = self.stream(WHAT, "Connect", &request, User::Default).await?;
        // One that is not there may be told in the stream.
        match stream.next().await? {
            Some(ProcessEvent::Start(_) | ProcessEvent::Keepalive(_)) => Ok(stream),
            _ => {
                let problem = "the stream does not begin with the program's start".to_owned();
                Err(EndpointError::Malformed { what: WHAT, problem })
            }
        }
    }

    async fn stream<Q: Serialize>(
        &self,
        what: &'static str,
        method: &str,
        message: &Q,
        user: User,
    ) -> Result<EventStream, EndpointError> {
        let body = connect::message(message)
            .map_err(|error| EndpointError::Malformed { what, problem: error.to_string() })?;
        let request = self
            .request(Method::POST, &format!("{}{method}", process::SERVICE), user)
            .header(CONTENT_TYPE, connect::STREAM)
            .header(connect::VERSION_HEADER, "1")
            .header(header::KEEPALIVE, KEEPALIVE_SECONDS)
            .header(header::COUNT_LOST, "1")
            .body(body);
        // Only the head of the answer has a limit: the rest comes while the command runs.
        let response = tokio::time::timeout(REQUEST_LIMIT, request.send()).await;
        let response = response
            .map_err(|_| EndpointError::TimedOut { what, limit: REQUEST_LIMIT })?
            .map_err(|error| EndpointError::transport(what, REQUEST_LIMIT, error))?;
        Ok(EventStream::new(what, accepted(what, REQUEST_LIMIT, response).await?))
    }

    /// At most `limit` bytes of a file from `offset`.
    pub(crate) async fn read(&self, path: &str, offset: u64, limit: u64) -> Result<Part, EndpointError> {
        const WHAT: &str = "reading a file";
        let last = offset.saturating_add(limit.max(1) - 1);
        let request = self
            .request(Method::GET, "/files", User::Default)
            .query(&[("path", path)])
            .header(RANGE, format!("bytes={offset}-{last}"))
            .timeout(TRANSFER_LIMIT);
        let response = request.send().await;
        let mut response = response.map_err(|error| EndpointError::transport(WHAT, TRANSFER_LIMIT, error))?;
        let whole = response.headers().get(CONTENT_RANGE).and_then(|range| range.to_str().ok());
        let whole = whole.and_then(|range| range.rsplit_once('/')?.1.parse::<u64>().ok());
        let (mut skip, file_bytes) = match response.status() {
            // Beyond its end.
            StatusCode::RANGE_NOT_SATISFIABLE => {
                let problem = "the size of the file is not told".to_owned();
                let file_bytes = whole.ok_or(EndpointError::Malformed { what: WHAT, problem })?;
                return Ok(Part { data: Bytes::new(), file_bytes });
            }
            StatusCode::PARTIAL_CONTENT => (0, whole),
            StatusCode::OK => {
                // Content-Length by hand: reqwest's own is what is left of the body.
                let length = response.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok());
                (offset, length.and_then(|length| length.parse().ok()))
            }
            _ => {
                accepted(WHAT, TRANSFER_LIMIT, response).await?;
                return Err(EndpointError::Malformed { what: WHAT, problem: "it has no body".to_owned() });
            }
        };
        let mut data = bytes::BytesMut::new();
        let mut seen = 0_u64;
        loop {
            let piece = response.chunk().await;
            let piece = piece.map_err(|error| EndpointError::transport(WHAT, TRANSFER_LIMIT, error))?;
            let Some(piece) = piece else { break };
            seen += piece.len() as u64;
            let skipped = skip.min(piece.len() as u64);
            skip -= skipped;
            let room = limit.saturating_sub(data.len() as u64);
            let wanted = piece.slice(usize::try_from(skipped).unwrap_or(usize::MAX)..);
            let taken = usize::try_from(room.min(wanted.len() as u64)).unwrap_or(usize::MAX);
            data.extend_from_slice(&wanted[..taken]);
            if data.len() as u64 >= limit && file_bytes.is_some() {
                break;
            }
        }
        Ok(Part { data: data.freeze(), file_bytes: file_bytes.unwrap_or(seen) })
    }

    /// Makes a file, or replaces its content; missing parents are made.
    pub(crate) async fn write(&self, path: &str, data: Bytes) -> Result<(), EndpointError> {
        const WHAT: &str = "writing a file";
        let request = self.request(Method::POST, "/files", User::Default).query(&[("path", path)]);
        let request = if self.version >= PLAIN_UPLOAD {
            request.header(CONTENT_TYPE, "application/octet-stream").body(data)
        } else {
            let (kind, body) = multipart(path, &data);
            request.header(CONTENT_TYPE, kind).body(body)
        };
        ask(WHAT, request, TRANSFER_LIMIT, ANSWER_BYTES).await.map(drop)
    }

    pub(crate) async fn health(&self) -> Health {
        let request = self.request(Method::GET, "/health", User::Default).timeout(HEALTH_LIMIT);
        match request.send().await.map(|response| response.status()) {
            Ok(status) if status.is_success() => Health::Running,
            // Whoever stands before the sandboxes says that there is none.
            Ok(StatusCode::BAD_GATEWAY | StatusCode::NOT_FOUND) => Health::Gone,
            _ => Health::Unknown,
        }
    }
}

/// The one file as a form, for services that take no other.
fn multipart(path: &str, data: &[u8]) -> (String, Bytes) {
    // The boundary is no part of the data.
    let mut boundary = "sandcrate-file".to_owned();
    while data.windows(boundary.len()).any(|window| window == boundary.as_bytes()) {
        boundary.push('-');
    }
    let name: String =
        path.chars().map(|letter| if "\"\\\r\n".contains(letter) { '_' } else { letter }).collect();
    let head = format!(
        "--{boundary}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\
         Content-Type: application/octet-stream\r\n\r\n"
    );
    let body = [head.as_bytes(), data, format!("\r\n--{boundary}--\r\n").as_bytes()].concat();
    (format!("multipart/form-data; boundary={boundary}"), body.into())
}

/// What cannot be read is taken for the newest.
fn version(text: &str) -> [u32; 3] {
    let mut parts = text.trim_start_matches('v').split(['.', '-']).map(|part| part.parse::<u32>().ok());
    let mut part = || parts.next().flatten().unwrap_or(u32::MAX);
    [part(), part(), part()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_their_numbers() {
        assert!(version("0.5.10") > version("0.5.7"));
        assert!(version("0.3.0") < DEFAULT_USER);
        assert!(version("0.6.6") >= PLAIN_UPLOAD);
        assert!(version("someday") > version("99.0.0"));
    }

    #[test]
    fn the_boundary_of_a_form_is_not_in_its_file() {
        let (kind, body) = multipart("/a\"b", b"x sandcrate-file y");
        assert_eq!(kind, "multipart/form-data; boundary=sandcrate-file-");
        let text = String::from_utf8(body.to_vec()).unwrap();
        assert!(text.starts_with("--sandcrate-file-\r\n") && text.ends_with("\r\n--sandcrate-file---\r\n"));
        assert!(text.contains("filename=\"/a_b\""));
    }
}
