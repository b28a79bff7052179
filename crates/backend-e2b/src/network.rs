//! What a sandbox may reach, as far as E2B can be asked for it: everything public, nothing, or a list.

use sandcrate_backend::{BackendError, Isolation, Network};
use sandcrate_e2b_wire::control::NetworkConfig;
use sandcrate_protocol::network::{Base, Rule};

use crate::NAME;

/// Every address there is.
const EVERYTHING: [&str; 2] = ["0.0.0.0/0", "::/0"];

/// What a request for a sandbox says of its network.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Traffic {
    pub(crate) internet: bool,
    pub(crate) rules: Option<NetworkConfig>,
}

pub(crate) fn traffic(network: &Network) -> Result<Traffic, BackendError> {
    match network {
        Network::Off => Ok(Traffic::default()),
        Network::Host => Err(unsupported("the host's network", "a sandbox is on another machine")),
        Network::Isolated(isolation) => isolated(isolation),
    }
}

pub(crate) fn isolated(isolation: &Isolation) -> Result<Traffic, BackendError> {
    let Isolation { policy, grants, .. } = isolation;
    policy.check_against(grants)?;
    if policy.is_off() {
        return Ok(Traffic::default());
    }
    let denied: Vec<&Rule> = policy.deny().iter().chain(&grants.deny).collect();
    if policy.base() == Base::Public {
        let deny_out = denied.into_iter().map(range).collect::<Result<Vec<_>, _>>()?;
        let rules = (!deny_out.is_empty())
            .then(|| NetworkConfig { deny_out: Some(deny_out), ..NetworkConfig::default() });
        return Ok(Traffic { internet: true, rules });
    }
    if let Some(rule) = denied.first() {
        // There, what is allowed is allowed whatever is denied besides.
        return Err(unsupported(
            &format!("`deny {rule}` beside rules that allow"),
            "leave out one or the other",
        ));
    }
    let allow_out = policy.allow().iter().map(target).collect::<Result<Vec<_>, _>>()?;
    let deny_out = EVERYTHING.map(str::to_owned).to_vec();
    let rules =
        NetworkConfig { allow_out: Some(allow_out), deny_out: Some(deny_out), ..NetworkConfig::default() };
    Ok(Traffic { internet: true, rules: Some(rules) })
}

/// A name or a range, of all ports.
fn target(rule: &Rule) -> Result<String, BackendError> {
    if rule.ports.is_some() || rule.transport.is_some() {
        return Err(unsupported(
            &format!("the port in `{rule}`"),
            "E2B's rules are for all ports of a name or address",
        ));
    }
    Ok(rule.target.to_string())
}

fn range(rule: &Rule) -> Result<String, BackendError> {
    match rule.range() {
        Some(_) => target(rule),
        None => Err(unsupported(&format!("`deny {rule}`"), "E2B denies addresses and ranges, not names")),
    }
}

fn unsupported(what: &str, hint: &str) -> BackendError {
    BackendError::Unsupported { backend: NAME, what: what.to_owned(), hint: hint.to_owned() }
}

#[cfg(test)]
mod tests {
    use sandcrate_protocol::ErrorKind;

    use super::*;

    fn asked(policy: &str) -> Result<Traffic, BackendError> {
        isolated(&Isolation { policy: policy.parse().unwrap(), ..Isolation::default() })
    }

    #[test]
    fn what_can_be_asked_for_is_and_the_rest_is_refused() {
        assert_eq!(asked("public").unwrap(), Traffic { internet: true, rules: None });
        assert_eq!(asked("off").unwrap(), Traffic::default());
        let some = asked("allow example.com, allow *.example.org").unwrap().rules.unwrap();
        assert_eq!(some.allow_out.unwrap(), ["example.com", "*.example.org"]);
        assert_eq!(some.deny_out.unwrap(), EVERYTHING);
        let fewer = asked("public, deny 1.2.3.0/24").unwrap().rules.unwrap();
        assert_eq!(fewer.deny_out.unwrap(), ["1.2.3.0/24"]);
        for refused in
            ["allow example.com:443", "public, deny example.com", "allow example.com, deny 1.2.3.4"]
        {
            assert_eq!(asked(refused).unwrap_err().kind(), ErrorKind::Unsupported, "{refused}");
        }
        assert_eq!(asked("allow 10.0.0.0/8").unwrap_err().kind(), ErrorKind::Denied);
        assert_eq!(traffic(&Network::Host).unwrap_err().kind(), ErrorKind::Unsupported);
    }
}
