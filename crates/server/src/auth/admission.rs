//! The rules: who may use which face. Pure, so that the whole table is tested.
//!
//! With a token configured, whoever sends it is admitted and nobody else, but for what `legacy` opens to
//! LangBot 4.10.0 to 4.10.6. Without one, peers on this machine are admitted by uid. `insecure_no_auth`
//! admits everybody.

use axum::http::{HeaderMap, StatusCode, header};

use super::peer::Standing;
use super::{origin, proc_net, token};
use crate::tenancy::INSTANCE_HEADER;
use crate::{Legacy, Refusal, ServerConfig, Token};

/// The faces, as far as the rules tell them apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Face {
    /// `/rpc/ws`.
    Rpc,
    /// The process relay.
    Relay,
    /// `/rpc/ws` in the dialects of LangBot 4.10.7 and later, which can send a token.
    TenantRpc,
    /// The relay in those.
    TenantRelay,
    /// Everything else that is not open.
    Api,
}

impl Face {
    /// The face as this request means it.
    pub(crate) fn spoken(self, headers: &HeaderMap) -> Self {
        match self {
            Self::Rpc if headers.contains_key(INSTANCE_HEADER) => Self::TenantRpc,
            Self::Relay if headers.contains_key(INSTANCE_HEADER) => Self::TenantRelay,
            other => other,
        }
    }

    fn is_langbot(self) -> bool {
        self != Self::Api
    }

    fn is_rpc(self) -> bool {
        matches!(self, Self::Rpc | Self::TenantRpc)
    }

    /// Whether LangBot's first dialect is spoken there.
    fn is_legacy(self) -> bool {
        matches!(self, Self::Rpc | Self::Relay)
    }
}

/// What a request shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presented {
    Nothing,
    Right,
    Wrong,
}

/// The configured rules.
#[derive(Debug)]
pub(crate) struct Admission {
    token: Option<Token>,
    legacy: Legacy,
    uids: Vec<u32>,
    insecure: bool,
    stdio: bool,
    /// This machine's name, which may stand in a Host header.
    machine: String,
}

impl Admission {
    pub(crate) fn new(config: &ServerConfig) -> Self {
        let own = rustix::process::getuid().as_raw();
        let uids = if config.stdio {
            // Our parent is the one user of this server. Where it cannot be told, nobody but ourselves.
            let parent = rustix::process::getppid()
                .and_then(|pid| proc_net::uid_of_process(pid.as_raw_nonzero().get().unsigned_abs()));
            vec![parent.unwrap_or(own)]
        } else {
            [own, 0].into_iter().chain(config.allow_uids.iter().copied()).collect()
        };
        Self {
            token: config.token.clone(),
            legacy: config.legacy(),
            uids,
            insecure: config.insecure_no_auth,
            stdio: config.stdio,
            machine: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        }
    }

    pub(crate) fn presented(&self, headers: &HeaderMap) -> Presented {
        // A token that nobody asked for proves nothing and harms nothing.
        let Some(ours) = &self.token else { return Presented::Nothing };
        let mut found = Presented::Nothing;
        for text in token::presented(headers) {
            if ours.matches(text) {
                return Presented::Right;
            }
            found = Presented::Wrong;
        }
        found
    }

    /// `Some(known)` when the token, or that there is none to ask for, decides alone.
    pub(crate) fn by_token(&self, face: Face, presented: Presented) -> Result<Option<bool>, Refusal> {
        match presented {
            Presented::Right => return Ok(Some(true)),
            Presented::Wrong => return Err(unauthorized("the token is wrong")),
            Presented::Nothing => {}
        }
        if self.token.is_some() && !(face.is_legacy() && self.legacy != Legacy::Off) {
            let hint = if face.is_legacy() {
                ", or set `legacy` to admit clients that cannot (LangBot 4.10.0 to 4.10.6)"
            } else {
                ""
            };
            return Err(unauthorized(&format!(
                "send the token as `Authorization: Bearer`, `X-API-Key` or `X-LangBot-Box-Control-Token`{hint}"
            )));
        }
        if self.stdio && self.token.is_none() && face.is_rpc() {
            return Err(forbidden("the RPC is spoken over stdio; set `token` to open `/rpc/ws` as well"));
        }
        if !self.insecure && face == Face::Rpc && self.legacy == Legacy::Off {
            return Err(forbidden(
                "`legacy` is off: clients must name their instance (X-LangBot-Instance-Id), as LangBot does since \
                 4.10.7; set `legacy` to admit older ones",
            ));
        }
        Ok(None)
    }

    /// Whether a peer that shows no token is admitted, and if so, whether it is a known one.
    pub(crate) fn by_peer(
        &self,
        face: Face,
        standing: &Standing,
        headers: &HeaderMap,
    ) -> Result<bool, Refusal> {
        let (uid, address) = match *standing {
            Standing::Unix { uid } => (Some(uid), None),
            Standing::Loopback { address, uid } => (uid, Some(address)),
            Standing::Remote { address } => (None, Some(address)),
        };
        if uid.is_some_and(|uid| self.uids.contains(&uid)) {
            if matches!(standing, Standing::Loopback { .. }) && !self.insecure {
                origin::check_host(headers, &self.machine)?;
            }
            return Ok(true);
        }
        if self.insecure {
            return Ok(false);
        }
        if let (Legacy::Cidrs(cidrs), Some(address)) = (&self.legacy, address)
            && face.is_langbot()
            && cidrs.iter().any(|cidr| cidr.contains(address))
        {
            // Only a browser sends an Origin, and only a browser follows a stranger's DNS.
            if headers.contains_key(header::ORIGIN) {
                origin::check_host(headers, &self.machine)?;
            }
            return Ok(false);
        }
        Err(match (standing, uid) {
            (Standing::Remote { address }, _) if face.is_langbot() => unauthorized(&format!(
                "peers on other machines need a token: set `token`, or add {address} to `legacy`"
            )),
            (Standing::Remote { .. }, _) => unauthorized("peers on other machines need a token: set `token`"),
            (_, Some(_)) if self.stdio => forbidden("only the process that started this server may use it"),
            (_, Some(uid)) => {
                forbidden(&format!("uid {uid} is not admitted: add it to `allow_uids`, or set `token`"))
            }
            (_, None) => forbidden("the peer's uid cannot be told: use the unix socket, or set `token`"),
        })
    }
}

fn unauthorized(message: &str) -> Refusal {
    Refusal::new(StatusCode::UNAUTHORIZED, "unauthorized", message)
}

fn forbidden(message: &str) -> Refusal {
    Refusal::new(StatusCode::FORBIDDEN, "forbidden", message)
}

#[cfg(test)]
#[path = "admission_tests.rs"]
mod tests;
