//! `…/proxy/{port}/…`: HTTP and WebSockets to a port of a box, behind the server's own authentication.
//!
//! A box is not trusted with what its visitor shows us, nor with our origin: credentials and cookies do not pass
//! in either direction, and pages are sandboxed by the browser, so that their scripts are not ours. A box that is
//! reached under a host name of its own ([`Site::Own`]) has an origin of its own, and keeps its cookies.

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{self, HeaderName, HeaderValue};
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use hyper::client::conn::http1;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::error::ApiError;
use super::extract::Segments;
use crate::App;

/// For one hop only (RFC 9110, 7.6.1), whether `Connection` names them or not.
const HOP: [&str; 8] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "transfer-encoding",
    "upgrade",
];
/// What a visitor shows to us, and what we say anew.
const OURS: [&str; 9] = [
    "authorization",
    "cookie",
    "x-api-key",
    "x-langbot-box-control-token",
    "host",
    "expect",
    "x-forwarded-host",
    "x-forwarded-prefix",
    "x-forwarded-proto",
];
/// The same where the box has a host name of its own: what opens a sandbox, and not what opens its application.
const OURS_ON_ITS_SITE: [&str; 11] = [
    "x-api-key",
    "x-access-token",
    "x-langbot-box-control-token",
    "e2b-traffic-access-token",
    "e2b-sandbox-id",
    "e2b-sandbox-port",
    "host",
    "expect",
    "x-forwarded-host",
    "x-forwarded-prefix",
    "x-forwarded-proto",
];
/// What would outlast the box on its host name, or reach beyond it.
const BEYOND_ITS_SITE: [&str; 2] = ["strict-transport-security", "alt-svc"];
/// What would act on our whole origin.
const ORIGIN_WIDE: [&str; 6] = [
    "set-cookie",
    "clear-site-data",
    "service-worker-allowed",
    "strict-transport-security",
    "alt-svc",
    "content-security-policy-report-only",
];
/// An origin of its own: scripts run, but not as pages of this server.
const SANDBOX: &str = "sandbox allow-downloads allow-forms allow-modals allow-popups allow-scripts";
/// As many segments stand before the box's own path: `/v1/sessions/ID/proxy/PORT`.
const PREFIX_SEGMENTS: usize = 5;

/// Whose origin the pages of a box become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Site {
    /// This server's, below a path.
    Ours,
    /// That of a host name of the box's own.
    Own,
}

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default().routes(routes!(proxy_root)).routes(routes!(proxy))
}

/// Reach a port of a session
///
/// The root of what a server in the box serves on that port; see the same with a path.
#[utoipa::path(method(get, post, put, delete, head, patch, options), path = "/v1/sessions/{id}/proxy/{port}/",
    tag = "network", operation_id = "proxy_root",
    params(("id" = String, Path, description = "Name of the session", example = "demo"),
        ("port" = u16, Path, description = "TCP port of the box", example = 8080)),
    responses((status = 200, description = "What the server in the box answers", content_type = "*/*")))]
async fn proxy_root(
    State(app): State<App>,
    Segments((id, port)): Segments<(String, u16)>,
    request: Request,
) -> Result<Response, ApiError> {
    forward(&app, &id, port, request).await
}

/// Reach a path at a port of a session
///
/// Any method, bodies as streams, WebSockets. The box needs an isolated network. `Authorization`, `X-API-Key` and
/// cookies are the server's and are not passed on; answers carry `Content-Security-Policy: sandbox`, and set no
/// cookies. An application that needs those is published by `POST …/ports`.
#[utoipa::path(method(get, post, put, delete, head, patch, options), path = "/v1/sessions/{id}/proxy/{port}/{*path}",
    tag = "network", operation_id = "proxy",
    params(("id" = String, Path, description = "Name of the session", example = "demo"),
        ("port" = u16, Path, description = "TCP port of the box", example = 8080),
        ("path" = String, Path, description = "Path at that server", example = "index.html")),
    responses((status = 200, description = "What the server in the box answers", content_type = "*/*")))]
async fn proxy(
    State(app): State<App>,
    Segments((id, port, _)): Segments<(String, u16, String)>,
    request: Request,
) -> Result<Response, ApiError> {
    forward(&app, &id, port, request).await
}

async fn forward(app: &App, id: &str, port: u16, request: Request) -> Result<Response, ApiError> {
    let (prefix, target) = split_target(request.uri())?;
    carry(app, id, port, Outgoing { prefix, target, site: Site::Ours }, request).await
}

/// How a request goes on to the box.
#[derive(Debug)]
pub(crate) struct Outgoing {
    /// What stood before the box's own path.
    pub(crate) prefix: String,
    pub(crate) target: PathAndQuery,
    pub(crate) site: Site,
}

/// One request to a port of a box, and what comes of it.
pub(crate) async fn carry(
    app: &App,
    id: &str,
    port: u16,
    outgoing: Outgoing,
    mut request: Request,
) -> Result<Response, ApiError> {
    let site = outgoing.site;
    let upgraded = wants_websocket(request.headers()).then(|| hyper::upgrade::on(&mut request));
    let (stream, in_use) = app.runtime.connect_port(id, port).await?;
    let nothing = |error: hyper::Error| {
        let message =
            format!("port {port} of session {id} does not answer: {error}; does a server listen there?");
        ApiError::new(StatusCode::BAD_GATEWAY, "bad_gateway", message)
    };
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(nothing)?;
    let abort = app.abort.clone();
    app.tasks.spawn(async move {
        // To the end of the answer, or of what it was upgraded to.
        let _in_use = in_use;
        let _ = abort.run_until_cancelled(connection.with_upgrades()).await;
    });
    let outgoing = rewrite(request, outgoing, port, upgraded.is_some());
    let mut answer = sender.send_request(outgoing).await.map_err(nothing)?;
    if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
        let Some(visitor) = upgraded else {
            let message = format!("port {port} of session {id} switched protocols without being asked to");
            return Err(ApiError::new(StatusCode::BAD_GATEWAY, "bad_gateway", message));
        };
        let server = hyper::upgrade::on(&mut answer);
        app.tasks.spawn(app.abort.clone().run_until_cancelled_owned(join(visitor, server)));
    }
    Ok(give_back(answer.map(Body::new), site))
}

/// What comes before the box's path, and the path with its query, byte for byte.
fn split_target(uri: &Uri) -> Result<(String, PathAndQuery), ApiError> {
    let path = uri.path();
    let end = path.match_indices('/').nth(PREFIX_SEGMENTS).map_or(path.len(), |(at, _)| at);
    let (prefix, rest) = path.split_at(end);
    let rest = if rest.is_empty() { "/" } else { rest };
    let target = match uri.query() {
        Some(query) => format!("{rest}?{query}"),
        None => rest.to_owned(),
    };
    let target = target.parse().map_err(|_| ApiError::invalid("path", "is not one that can be passed on"))?;
    Ok((prefix.to_owned(), target))
}

fn wants_websocket(headers: &HeaderMap) -> bool {
    let says = |name: HeaderName, word: &str| {
        let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split(',')).any(|value| value.trim().eq_ignore_ascii_case(word))
    };
    says(header::CONNECTION, "upgrade") && says(header::UPGRADE, "websocket")
}

/// Drops what is for one hop, by rule or by the message's own word.
fn strip(headers: &mut HeaderMap, more: &[&str]) {
    let named: Vec<String> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|name| name.trim().to_ascii_lowercase())
        .collect();
    for name in named.iter().map(String::as_str).chain(HOP).chain(more.iter().copied()) {
        headers.remove(name);
    }
}

fn rewrite(request: Request, outgoing: Outgoing, port: u16, websocket: bool) -> hyper::Request<Body> {
    let Outgoing { prefix, target, site } = outgoing;
    let (mut parts, body) = request.into_parts();
    let host = parts.headers.get(header::HOST).cloned();
    match site {
        Site::Ours => strip(&mut parts.headers, &OURS),
        Site::Own => strip(&mut parts.headers, &OURS_ON_ITS_SITE),
    }
    let text = |text: String| HeaderValue::try_from(text).ok();
    let ours = [
        // What servers in development let in.
        ("host", text(format!("localhost:{port}"))),
        ("x-forwarded-host", host),
        ("x-forwarded-proto", Some(HeaderValue::from_static("http"))),
        ("x-forwarded-prefix", Some(prefix).filter(|prefix| !prefix.is_empty()).and_then(text)),
        ("connection", websocket.then(|| HeaderValue::from_static("upgrade"))),
        ("upgrade", websocket.then(|| HeaderValue::from_static("websocket"))),
    ];
    for (name, value) in ours {
        if let Some(value) = value {
            parts.headers.insert(name, value);
        }
    }
    parts.uri = Uri::from(target);
    parts.version = hyper::Version::HTTP_11;
    // What our own layers left there is not the box's.
    parts.extensions.clear();
    hyper::Request::from_parts(parts, if websocket { Body::empty() } else { body })
}

fn give_back(mut answer: Response, site: Site) -> Response {
    let switching = answer.status() == StatusCode::SWITCHING_PROTOCOLS;
    let headers = answer.headers_mut();
    match site {
        Site::Ours => {
            strip(headers, &ORIGIN_WIDE);
            // Beside what the box says itself: several policies hold together.
            headers.append(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(SANDBOX));
        }
        Site::Own => {
            strip(headers, &BEYOND_ITS_SITE);
            keep_own_cookies(headers);
        }
    }
    if switching {
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    }
    answer.into_response()
}

/// Drops cookies for a whole domain: other boxes have host names in it.
fn keep_own_cookies(headers: &mut HeaderMap) {
    let is_wide = |cookie: &HeaderValue| {
        let text = cookie.as_bytes().to_ascii_lowercase();
        text.split(|byte| *byte == b';').skip(1).any(|part| part.trim_ascii_start().starts_with(b"domain"))
    };
    let kept: Vec<_> =
        headers.get_all(header::SET_COOKIE).iter().filter(|cookie| !is_wide(cookie)).cloned().collect();
    headers.remove(header::SET_COOKIE);
    for cookie in kept {
        headers.append(header::SET_COOKIE, cookie);
    }
}

/// Both ways until either side ends.
async fn join(visitor: OnUpgrade, server: OnUpgrade) {
    let (visitor, server) = match tokio::join!(visitor, server) {
        (Ok(visitor), Ok(server)) => (visitor, server),
        (Err(error), _) | (_, Err(error)) => {
            tracing::debug!(%error, "an upgrade through the proxy did not come about");
            return;
        }
    };
    // An end without goodbye is the peers' own business.
    let _ = tokio::io::copy_bidirectional(&mut TokioIo::new(visitor), &mut TokioIo::new(server)).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_box_sees_its_own_path_byte_for_byte() {
        for (uri, prefix, target) in [
            ("/v1/sessions/a%2Fb/proxy/80/", "/v1/sessions/a%2Fb/proxy/80", "/"),
            ("/v1/sessions/s/proxy/80/x%2Fy//z?q=%20&r", "/v1/sessions/s/proxy/80", "/x%2Fy//z?q=%20&r"),
            ("/v1/sessions/s/proxy/80?q", "/v1/sessions/s/proxy/80", "/?q"),
        ] {
            let (found, rest) = split_target(&uri.parse().unwrap()).unwrap();
            assert_eq!((found.as_str(), rest.as_str()), (prefix, target), "{uri}");
        }
    }

    #[test]
    fn what_is_for_one_hop_or_for_us_goes_no_further() {
        let request = Request::builder()
            .header("host", "box.example:5410")
            .header("authorization", "Bearer secret")
            .header("cookie", "a=b")
            .header("x-api-key", "secret")
            .header("connection", "close, X-Mine")
            .header("x-mine", "1")
            .header("x-kept", "2")
            .body(Body::empty())
            .unwrap();
        let outgoing = Outgoing { prefix: "/p".to_owned(), target: "/".parse().unwrap(), site: Site::Ours };
        let sent = rewrite(request, outgoing, 80, false);
        let names: Vec<_> = sent.headers().keys().map(HeaderName::as_str).collect();
        for gone in ["authorization", "cookie", "x-api-key", "connection", "x-mine"] {
            assert!(!names.contains(&gone), "{names:?}");
        }
        assert_eq!(
            (&sent.headers()["host"], &sent.headers()["x-kept"]),
            (&"localhost:80".parse().unwrap(), &"2".parse().unwrap())
        );
        assert_eq!(sent.headers()["x-forwarded-host"], "box.example:5410");
        let answer =
            Response::builder().header("set-cookie", "a=b").header("keep-alive", "1").body(Body::empty());
        let given = give_back(answer.unwrap(), Site::Ours);
        assert!(!given.headers().contains_key("set-cookie") && !given.headers().contains_key("keep-alive"));
        assert_eq!(given.headers()["content-security-policy"], SANDBOX);
    }

    #[test]
    fn a_box_on_its_own_site_keeps_what_is_its_own() {
        let request = Request::builder()
            .header("authorization", "Bearer of the application")
            .header("cookie", "a=b")
            .header("x-access-token", "secret")
            .header("e2b-sandbox-id", "i")
            .body(Body::empty())
            .unwrap();
        let outgoing = Outgoing { prefix: String::new(), target: "/".parse().unwrap(), site: Site::Own };
        let sent = rewrite(request, outgoing, 80, false);
        let names: Vec<_> = sent.headers().keys().map(HeaderName::as_str).collect();
        assert!(names.contains(&"authorization") && names.contains(&"cookie"), "{names:?}");
        for gone in ["x-access-token", "e2b-sandbox-id", "x-forwarded-prefix"] {
            assert!(!names.contains(&gone), "{names:?}");
        }
        let answer = Response::builder()
            .header("set-cookie", "own=1; Path=/")
            .header("set-cookie", "wide=1; Domain=box.example")
            .header("strict-transport-security", "max-age=1")
            .body(Body::empty());
        let given = give_back(answer.unwrap(), Site::Own);
        let cookies: Vec<_> = given.headers().get_all("set-cookie").iter().collect();
        assert_eq!(cookies, ["own=1; Path=/"]);
        assert!(!given.headers().contains_key("strict-transport-security"));
        assert!(!given.headers().contains_key("content-security-policy"));
    }
}
