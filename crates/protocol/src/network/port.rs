//! A port of the box that is reached from outside: `[ADDRESS:]HOST:BOX`, as container engines have it, but on
//! 127.0.0.1 unless it says otherwise.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A port to publish.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PortRequest {
    pub address: IpAddr,
    /// 0: any that is free.
    pub host_port: u16,
    pub box_port: u16,
}

/// Why a port was not understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PortError {
    #[error("port `{text}`: the form is [ADDRESS:]HOST:BOX, such as `8080:80` or `0:80` for any free port")]
    Form { text: String },
    #[error("port `{text}`: `{port}` is not a port of the box from 1 to 65535")]
    BoxPort { text: String, port: String },
    #[error("port `{text}`: `{port}` is not a port of the host from 0 (any free one) to 65535")]
    HostPort { text: String, port: String },
    #[error("port `{text}`: `{address}` is not an IP address; an IPv6 one stands in brackets")]
    Address { text: String, address: String },
}

const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

impl FromStr for PortRequest {
    type Err = PortError;

    fn from_str(text: &str) -> Result<Self, PortError> {
        let whole = || text.chars().take(80).collect::<String>();
        let digits = |port: &str| {
            if port.bytes().all(|byte| byte.is_ascii_digit()) { port.parse::<u16>().ok() } else { None }
        };
        let (front, inside) = match text.rsplit_once(':') {
            Some((front, inside)) => (front, inside),
            // One number is both; what has a letter is none of it.
            None if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) => (text, text),
            None => return Err(PortError::Form { text: whole() }),
        };
        let (address, outside) = match front.rsplit_once(':') {
            Some((address, outside)) => (Some(address), outside),
            None => (None, front),
        };
        let box_port = digits(inside)
            .filter(|port| *port > 0)
            .ok_or_else(|| PortError::BoxPort { text: whole(), port: inside.to_owned() })?;
        let host_port = digits(outside)
            .filter(|_| !outside.is_empty())
            .ok_or_else(|| PortError::HostPort { text: whole(), port: outside.to_owned() })?;
        let address = match address {
            None => LOCALHOST,
            Some(address) => {
                let bare = address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
                let parsed = match bare {
                    Some(v6) => v6.parse().map(IpAddr::V6).ok(),
                    None => address.parse().map(IpAddr::V4).ok(),
                };
                parsed.ok_or_else(|| PortError::Address { text: whole(), address: address.to_owned() })?
            }
        };
        Ok(Self { address, host_port, box_port })
    }
}

impl fmt::Display for PortRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", std::net::SocketAddr::new(self.address, self.host_port), self.box_port)
    }
}

impl Serialize for PortRequest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The long form, for JSON.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LongForm {
    #[serde(default)]
    address: Option<IpAddr>,
    #[serde(default)]
    host_port: u16,
    box_port: std::num::NonZeroU16,
}

impl<'de> Deserialize<'de> for PortRequest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Forms;
        impl<'de> Visitor<'de> for Forms {
            type Value = PortRequest;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"[ADDRESS:]HOST:BOX\", or an object with `box_port`, `host_port` and `address`")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<PortRequest, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<PortRequest, A::Error> {
                let long = LongForm::deserialize(de::value::MapAccessDeserializer::new(map))?;
                let address = long.address.unwrap_or(LOCALHOST);
                Ok(PortRequest { address, host_port: long.host_port, box_port: long.box_port.get() })
            }
        }
        deserializer.deserialize_any(Forms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_read_as_people_write_them() {
        for (text, shown) in [
            ("8080:80", "127.0.0.1:8080:80"),
            ("80", "127.0.0.1:80:80"),
            ("0:80", "127.0.0.1:0:80"),
            ("0.0.0.0:8080:80", "0.0.0.0:8080:80"),
            ("[::1]:8080:80", "[::1]:8080:80"),
        ] {
            let port: PortRequest = text.parse().unwrap();
            assert_eq!(port.to_string(), shown);
            assert_eq!(port.to_string().parse::<PortRequest>().unwrap(), port);
        }
        let long: PortRequest = serde_json::from_str(r#"{"box_port": 80}"#).unwrap();
        assert_eq!(long.to_string(), "127.0.0.1:0:80");
        assert!(serde_json::from_str::<PortRequest>(r#"{"box_port": 0}"#).is_err());
        assert!(serde_json::from_str::<PortRequest>(r#"{"port": 80}"#).is_err());
    }

    #[test]
    fn errors_name_what_is_wrong() {
        for (text, part) in [
            ("", "the form is"),
            ("web", "the form is"),
            ("8080:", "`` is not a port of the box"),
            ("8080:0", "`0` is not a port of the box"),
            (":80", "`` is not a port of the host"),
            ("70000:80", "`70000` is not a port of the host"),
            ("+1:80", "`+1`"),
            ("localhost:8080:80", "`localhost` is not an IP address"),
            ("::1:8080:80", "in brackets"),
            ("[1.2.3.4]:8080:80", "`[1.2.3.4]` is not an IP address"),
        ] {
            let error = text.parse::<PortRequest>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
