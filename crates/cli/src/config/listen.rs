//! Where a server listens, as people write it: `127.0.0.1:5410`, `[::1]:5410`, `tls:0.0.0.0:8443`,
//! `unix:/run/sandcrate.sock`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The kernel's `sun_path` without the closing NUL.
pub(crate) const MAX_SOCKET_PATH: usize = 107;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Listen {
    Tcp(SocketAddr),
    /// With the certificate of `server.tls`.
    Tls(SocketAddr),
    Unix(PathBuf),
}

impl Listen {
    /// Whether only this machine can reach it.
    pub(crate) fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) | Self::Tls(address) => address.ip().to_canonical().is_loopback(),
            Self::Unix(_) => true,
        }
    }
}

/// An address, or `localhost`. Other names are not looked up: a resolver must not decide who reaches us.
pub(crate) fn parse_host(text: &str) -> Result<IpAddr, String> {
    let bare = text.strip_prefix('[').and_then(|inner| inner.strip_suffix(']')).unwrap_or(text);
    match bare {
        "localhost" => Ok(Ipv4Addr::LOCALHOST.into()),
        _ => bare.parse().map_err(|_| format!("`{text}` is not an IP address or `localhost`")),
    }
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let forms = "expected ADDRESS:PORT such as `127.0.0.1:5410`, `tls:ADDRESS:PORT`, or `unix:/PATH`";
        if let Some(path) = text.strip_prefix("unix:") {
            if !path.starts_with('/') {
                return Err(format!("`{text}` needs an absolute path; {forms}"));
            }
            if path.len() > MAX_SOCKET_PATH {
                return Err(format!(
                    "`{text}` is longer than the {MAX_SOCKET_PATH} bytes of a socket's path"
                ));
            }
            return Ok(Self::Unix(path.into()));
        }
        if let Some(address) = text.strip_prefix("tls:") {
            return match address.parse().map_err(|problem| format!("`{text}`: {problem}"))? {
                Self::Tcp(address) => Ok(Self::Tls(address)),
                Self::Tls(_) | Self::Unix(_) => Err(format!("`{text}` is no address; {forms}")),
            };
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(|| format!("`{text}` has no port; {forms}"))?;
        // An IPv6 address without brackets would lose its last group to the port.
        if host.contains(':') && !host.starts_with('[') {
            return Err(format!("`{text}` needs brackets such as `[::1]:5410`"));
        }
        let port = port.parse().map_err(|_| format!("`{port}` in `{text}` is not a port; {forms}"))?;
        let host = parse_host(host).map_err(|problem| format!("`{text}`: {problem}; {forms}"))?;
        Ok(Self::Tcp(SocketAddr::new(host, port)))
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Tls(address) => write!(f, "tls:{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Serialize for Listen {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Listen {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_accepted_form() {
        for (text, shown) in [
            ("127.0.0.1:5410", "127.0.0.1:5410"),
            ("localhost:0", "127.0.0.1:0"),
            ("[::1]:5410", "[::1]:5410"),
            ("0.0.0.0:80", "0.0.0.0:80"),
            ("tls:0.0.0.0:8443", "tls:0.0.0.0:8443"),
            ("tls:[::1]:443", "tls:[::1]:443"),
            ("unix:/run/x.sock", "unix:/run/x.sock"),
        ] {
            assert_eq!(text.parse::<Listen>().unwrap().to_string(), shown);
        }
        assert!("unix:/x".parse::<Listen>().unwrap().is_local());
        assert!("[::1]:1".parse::<Listen>().unwrap().is_local());
        assert!(!"0.0.0.0:1".parse::<Listen>().unwrap().is_local());
        assert!(!"tls:0.0.0.0:1".parse::<Listen>().unwrap().is_local());
    }

    #[test]
    fn refusals_show_the_text_and_the_form() {
        let long = format!("unix:/{}", "x".repeat(MAX_SOCKET_PATH));
        for bad in [
            "",
            "5410",
            ":5410",
            "host:5410",
            "127.0.0.1:http",
            "::1:5410",
            "unix:relative",
            "tls:unix:/x",
            "tls:1",
            &long,
        ] {
            let problem = bad.parse::<Listen>().unwrap_err();
            assert!(problem.contains(bad), "{problem}");
        }
    }
}
