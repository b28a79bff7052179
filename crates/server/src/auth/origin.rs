//! Keeps web pages out.
//!
//! A browser sends requests with its user's rights to any address a page names, and lets the page choose a
//! host name that points at this machine. Two rules answer that: what changes state or upgrades must come
//! from our own origin, and where no token is asked for, the host name must be one that no stranger can own.

use axum::http::{HeaderMap, Method, StatusCode, header};

use crate::Refusal;

/// Refuses a foreign `Origin` on upgrades and on requests that change state.
pub(super) fn check(method: &Method, headers: &HeaderMap) -> Result<(), Refusal> {
    let harmless = matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
    if harmless && !headers.contains_key(header::UPGRADE) {
        return Ok(());
    }
    let mut origins = headers.get_all(header::ORIGIN).iter();
    let Some(origin) = origins.next() else { return Ok(()) };
    let host = host(headers);
    let own = origins.next().is_none()
        && matches!((origin.to_str(), host), (Ok(origin), Some(host)) if same(origin, host));
    if own {
        return Ok(());
    }
    let message = "the Origin header names another site; a page may only use the server it came from";
    Err(Refusal::new(StatusCode::FORBIDDEN, "foreign_origin", message))
}

/// Refuses a host name that a stranger's DNS could have pointed here, for peers that are let in without a
/// token.
pub(super) fn check_host(headers: &HeaderMap, machine: &str) -> Result<(), Refusal> {
    if host(headers).is_some_and(|host| is_local_name(host, machine)) {
        return Ok(());
    }
    let message = "the Host header is not an address, `localhost` or a name of this machine; \
                   use one of those, or set `token`";
    Err(Refusal::new(StatusCode::FORBIDDEN, "foreign_host", message))
}

fn host(headers: &HeaderMap) -> Option<&str> {
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = hosts.next()?.to_str().ok()?;
    hosts.next().is_none().then_some(host)
}

/// Whether a serialised origin is that of `host`, a `Host` header; the scheme may be a proxy's.
fn same(origin: &str, host: &str) -> bool {
    let Some((scheme, authority)) = origin.split_once("://") else { return false };
    let default_port = match scheme {
        "http" | "ws" => ":80",
        "https" | "wss" => ":443",
        _ => return false,
    };
    let bare = |text: &str| text.strip_suffix(default_port).unwrap_or(text).to_ascii_lowercase();
    !authority.is_empty() && bare(authority) == bare(host)
}

/// An address, a single word (no registrar sells one), `*.localhost`, or the machine's own name.
fn is_local_name(host: &str, machine: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => {
            return rest.split_once(']').is_some_and(|(v6, _)| v6.parse::<std::net::Ipv6Addr>().is_ok());
        }
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    if name.is_empty() {
        return false;
    }
    name.parse::<std::net::Ipv4Addr>().is_ok()
        || !name.contains('.')
        || name.ends_with(".localhost")
        || name == machine.to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (name.parse::<header::HeaderName>().unwrap(), value.parse().unwrap()))
            .collect()
    }

    #[test]
    fn an_origin_is_own_or_foreign() {
        for (origin, host, own) in [
            ("http://localhost:5410", "localhost:5410", true),
            ("http://LOCALHOST:5410", "localhost:5410", true),
            ("http://box.example", "box.example:80", true),
            ("https://box.example", "box.example", true),
            ("https://box.example:443", "box.example", true),
            ("http://localhost:3000", "localhost:5410", false),
            ("http://evil.example", "localhost:5410", false),
            ("http://localhost.evil.example:5410", "localhost:5410", false),
            ("null", "localhost:5410", false),
            ("file://", "localhost:5410", false),
            ("", "localhost:5410", false),
            ("http://", "", false),
        ] {
            let sent = headers(&[("origin", origin), ("host", host), ("upgrade", "websocket")]);
            assert_eq!(check(&Method::GET, &sent).is_ok(), own, "{origin} at {host}");
        }
    }

    #[test]
    fn origins_matter_on_upgrades_and_changes_only() {
        let foreign = [("origin", "http://evil.example"), ("host", "localhost")];
        assert!(check(&Method::GET, &headers(&foreign)).is_ok());
        assert!(check(&Method::HEAD, &headers(&foreign)).is_ok());
        for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
            let refused = check(&method, &headers(&foreign)).unwrap_err();
            assert_eq!(refused.status, StatusCode::FORBIDDEN, "{method}");
        }
        assert!(check(&Method::POST, &headers(&[("host", "localhost")])).is_ok(), "not a browser");
        let mut twice = headers(&[("origin", "http://localhost"), ("host", "localhost")]);
        assert!(check(&Method::POST, &twice).is_ok());
        twice.append("origin", "http://evil.example".parse().unwrap());
        assert!(check(&Method::POST, &twice).is_err(), "two origins");
    }

    /// DNS rebinding: the page's own name points at 127.0.0.1, so Origin and Host agree.
    #[test]
    fn a_name_that_a_stranger_can_own_is_refused() {
        for (host, local) in [
            ("localhost:5410", true),
            ("127.0.0.1:5410", true),
            ("[::1]:5410", true),
            ("langbot_box:5410", true),
            ("app.localhost", true),
            ("box1.corp.example:5410", true),
            ("evil.example:5410", false),
            ("localhost.evil.example", false),
            ("127.0.0.1.evil.example", false),
            ("[evil.example]", false),
            ("", false),
            (":5410", false),
        ] {
            let sent = headers(&[("host", host)]);
            assert_eq!(check_host(&sent, "box1.corp.example").is_ok(), local, "{host:?}");
        }
        assert!(check_host(&HeaderMap::new(), "box1").is_err(), "no Host at all");
    }
}
