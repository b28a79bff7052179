//! What E2B's words about the network mean in ours. What ours cannot say is refused.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use sandcrate_e2b_wire::control::NetworkConfig;
use sandcrate_protocol::ErrorKind;
use sandcrate_protocol::network::{Base, NetworkRequest, Policy, Rule};
use serde_json::Value;

use super::super::error::Refused;
use super::{Body, to_the_end};
use crate::App;

/// E2B's names of everything.
const EVERYTHING: [&str; 2] = ["0.0.0.0/0", "::/0"];

/// `PUT /sandboxes/{id}/network`: in force when the answer comes.
pub(super) async fn change(
    State(app): State<App>,
    Path(id): Path<String>,
    Body(wanted): Body<NetworkConfig>,
) -> Result<StatusCode, Refused> {
    let sandbox = app.e2b.expect(&app.runtime, &id)?;
    if wanted.allow_public_traffic.is_some() {
        return Err(Refused::invalid("allowPublicTraffic is said when a sandbox is made"));
    }
    let internet = wanted.allow_internet_access;
    let network = wanted_network(internet, Some(&wanted))?.unwrap_or_else(|| app.config.e2b.network.clone());
    let changing = {
        let app = app.clone();
        async move {
            let _turn = sandbox.turn.lock().await;
            if !sandbox.is_running() {
                return Err(Refused::no_sandbox(&id));
            }
            app.runtime.set_network(&id, network).await.map_err(|error| match error.kind() {
                ErrorKind::SessionNotFound => Refused::no_sandbox(&id),
                _ => error.into(),
            })?;
            sandbox.set_network(internet, Some(NetworkConfig { allow_internet_access: None, ..wanted }));
            Ok(())
        }
    };
    to_the_end(&app, changing).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// `None` when nothing is said, and the operator's default holds.
///
/// E2B's rule: everything may be reached but what is denied, and of that again what is allowed. So what is allowed
/// limits nothing by itself; with everything denied, it is all there is.
pub(super) fn wanted_network(
    internet: Option<bool>,
    rules: Option<&NetworkConfig>,
) -> Result<Option<NetworkRequest>, Refused> {
    let none = NetworkConfig::default();
    let rules = rules.unwrap_or(&none);
    refuse_absent(rules)?;
    let allow = rules.allow_out.as_deref().unwrap_or_default();
    let deny = rules.deny_out.as_deref().unwrap_or_default();
    let is_everything = |entry: &String| EVERYTHING.contains(&entry.as_str());
    let denied = internet == Some(false) || deny.iter().any(is_everything);
    if denied {
        if allow.iter().any(is_everything) {
            return Ok(Some(NetworkRequest::on()));
        }
        let allow = read(allow, "allowOut")?;
        let policy = Policy::new(Base::Nothing, allow, Vec::new());
        return Ok(Some(policy.map_err(|error| Refused::invalid(format!("allowOut: {error}")))?.into()));
    }
    if !deny.is_empty() {
        if !allow.is_empty() {
            return Err(Refused::unsupported(
                "allowOut beside a denyOut that leaves something open: here what is denied stays denied. Deny \
                 0.0.0.0/0 and list what may be reached, or leave allowOut out",
            ));
        }
        return Ok(Some(NetworkRequest::On { deny: read(deny, "denyOut")? }));
    }
    Ok((internet == Some(true) || !allow.is_empty()).then(NetworkRequest::on))
}

fn refuse_absent(rules: &NetworkConfig) -> Result<(), Refused> {
    let said = |value: &Option<Value>| {
        value.as_ref().is_some_and(|value| {
            !value.is_null() && value.as_object().is_none_or(|object| !object.is_empty())
        })
    };
    let why = if said(&rules.egress_proxy) {
        "network.egressProxy: boxes here reach the network without a proxy in between"
    } else if said(&rules.rules) {
        "network.rules: requests of sandboxes are not rewritten here"
    } else if rules.dns_servers.as_ref().is_some_and(|servers| !servers.is_empty()) {
        "network.dnsServers: names are resolved by this server's own resolver, which holds the policy"
    } else if rules.https_ports.as_ref().is_some_and(|ports| !ports.is_empty()) {
        "network.httpsPorts: ports of sandboxes are reached by plain HTTP"
    } else if rules.mask_request_host.is_some() {
        "network.maskRequestHost: a sandbox is always shown `localhost:PORT` as its host"
    } else {
        return Ok(());
    };
    Err(Refused::unsupported(why))
}

fn read(entries: &[String], field: &str) -> Result<Vec<Rule>, Refused> {
    let rules = entries.iter().map(|entry| entry.parse::<Rule>());
    rules.collect::<Result<_, _>>().map_err(|error| Refused::invalid(format!("network.{field}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meant(internet: Option<bool>, allow: &[&str], deny: &[&str]) -> Result<String, Refused> {
        let list = |entries: &[&str]| Some(entries.iter().map(|entry| (*entry).to_owned()).collect());
        let rules =
            NetworkConfig { allow_out: list(allow), deny_out: list(deny), ..NetworkConfig::default() };
        let wanted = wanted_network(internet, Some(&rules))?;
        Ok(wanted.map_or_else(|| "the operator's".to_owned(), |wanted| wanted.to_string()))
    }

    #[test]
    fn e2bs_words_mean_what_they_mean_there() {
        for (internet, allow, deny, policy) in [
            (None, &[][..], &[][..], "the operator's"),
            (Some(true), &[], &[], "on"),
            (Some(false), &[], &[], "off"),
            (None, &[], &["0.0.0.0/0"], "off"),
            (None, &["example.com", "1.1.1.1"], &["0.0.0.0/0"], "allow example.com, allow 1.1.1.1"),
            (Some(false), &["*.example.com"], &[], "allow *.example.com"),
            (None, &["1.1.1.1"], &[], "on"),
            (None, &["0.0.0.0/0"], &["0.0.0.0/0"], "on"),
            (None, &[], &["192.0.2.0/24"], "on, deny 192.0.2.0/24"),
        ] {
            assert_eq!(meant(internet, allow, deny).unwrap(), policy, "{internet:?} {allow:?} {deny:?}");
        }
    }

    #[test]
    fn what_cannot_be_said_is_refused_and_named() {
        let text = |refused: Refused| format!("{refused:?}");
        assert!(text(meant(None, &["1.1.1.1"], &["192.0.2.0/24"]).unwrap_err()).contains("allowOut"));
        assert!(text(meant(None, &["https://x"], &["0.0.0.0/0"]).unwrap_err()).contains("network.allowOut"));
        let proxy =
            NetworkConfig { egress_proxy: Some(serde_json::json!({"address": "x:1"})), ..Default::default() };
        assert!(text(wanted_network(None, Some(&proxy)).unwrap_err()).contains("egressProxy"));
        let empty = NetworkConfig { rules: Some(serde_json::json!({})), ..Default::default() };
        assert_eq!(wanted_network(None, Some(&empty)).unwrap(), None);
    }
}
