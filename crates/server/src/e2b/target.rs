//! Which requests are for a sandbox: those that name one in a header, or by the host they are sent to.

use axum::http::{HeaderMap, Uri, header};
use sandcrate_e2b_wire::{ENVD_PORT, header as names};

/// A port of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) sandbox: String,
    pub(crate) port: u16,
    /// It was reached under a host name of its own, so a browser keeps it apart from everything else.
    pub(crate) own_host: bool,
}

/// What a request's marks say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Marked {
    /// No business of E2B's data plane.
    Not,
    For(Target),
    /// There are marks, and they make no sense.
    Badly(&'static str),
}

pub(crate) fn marked(uri: &Uri, headers: &HeaderMap, domain: Option<&str>) -> Marked {
    if let Some(id) = headers.get(names::SANDBOX_ID) {
        let Some(id) = id.to_str().ok().filter(|id| is_id(id)) else {
            return Marked::Badly("E2b-Sandbox-Id is no sandbox's id");
        };
        let port = match headers.get(names::SANDBOX_PORT).map(|port| port.to_str().map(str::parse)) {
            None => ENVD_PORT,
            Some(Ok(Ok(port @ 1..))) => port,
            Some(_) => return Marked::Badly("E2b-Sandbox-Port is no port from 1 to 65535"),
        };
        return Marked::For(Target { sandbox: id.to_owned(), port, own_host: false });
    }
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    match host.or(uri.authority().map(|authority| authority.as_str())).and_then(|host| of_host(host, domain))
    {
        Some(target) => Marked::For(target),
        None => Marked::Not,
    }
}

/// `PORT-ID.DOMAIN`, perhaps with a port of ours.
fn of_host(host: &str, domain: Option<&str>) -> Option<Target> {
    let host = without_port(host);
    let (label, rest) = host.split_once('.')?;
    if domain.is_some_and(|domain| !without_port(domain).eq_ignore_ascii_case(rest.trim_end_matches('.'))) {
        return None;
    }
    let (port, id) = label.split_once('-')?;
    // Old SDKs put the client's id behind the sandbox's.
    let id = id.split_once('-').map_or(id, |(id, _)| id).to_ascii_lowercase();
    let port = port.parse().ok().filter(|port| *port > 0)?;
    is_id(&id).then_some(Target { sandbox: id, port, own_host: true })
}

fn without_port(host: &str) -> &str {
    host.rsplit_once(':').map_or(host, |(name, _)| name)
}

/// The form of the ids that we make; see `super::sandbox`.
pub(crate) fn is_id(text: &str) -> bool {
    text.len() == super::sandbox::ID_CHARS
        && text.starts_with('i')
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "i0123456789abcdefghij";

    fn look(headers: &[(&str, &str)], domain: Option<&str>) -> Marked {
        let headers = headers
            .iter()
            .map(|(name, value)| (name.parse::<header::HeaderName>().unwrap(), value.parse().unwrap()))
            .collect();
        marked(&"/health".parse().unwrap(), &headers, domain)
    }

    fn target(port: u16, own_host: bool) -> Marked {
        Marked::For(Target { sandbox: ID.to_owned(), port, own_host })
    }

    #[test]
    fn a_sandbox_is_named_by_a_header() {
        assert_eq!(look(&[("e2b-sandbox-id", ID)], None), target(ENVD_PORT, false));
        assert_eq!(look(&[("e2b-sandbox-id", ID), ("e2b-sandbox-port", "80")], None), target(80, false));
        for headers in [
            &[("e2b-sandbox-id", "../x")][..],
            &[("e2b-sandbox-id", ID), ("e2b-sandbox-port", "0")],
            &[("e2b-sandbox-id", ID), ("e2b-sandbox-port", "65536")],
        ] {
            assert!(matches!(look(headers, None), Marked::Badly(_)), "{headers:?}");
        }
    }

    #[test]
    fn a_sandbox_is_named_by_its_host() {
        let host = |host: &str, domain| look(&[("host", host)], domain);
        for (name, domain) in [
            (format!("8080-{ID}.box.example"), Some("box.example")),
            (format!("8080-{ID}.box.example:8443"), Some("box.example:8443")),
            (format!("8080-{ID}.BOX.example."), Some("box.example")),
            (format!("8080-{ID}-client.box.example"), Some("box.example")),
            (format!("8080-{ID}.localhost"), None),
        ] {
            assert_eq!(host(&name, domain), target(8080, true), "{name}");
        }
        for (name, domain) in [
            (format!("8080-{ID}.other.example"), Some("box.example")),
            (format!("0-{ID}.box.example"), None),
            (format!("x-{ID}.box.example"), None),
            (format!("8080-{ID}"), None),
            ("api.box.example".to_owned(), Some("box.example")),
            ("8080-demo.box.example".to_owned(), None),
            ("127.0.0.1:5410".to_owned(), None),
        ] {
            assert_eq!(host(&name, domain), Marked::Not, "{name}");
        }
        assert_eq!(look(&[], None), Marked::Not);
    }
}
