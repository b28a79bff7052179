//! Decides connections. Pure: whoever calls says which names DNS bound to the address, whether the address is
//! one of the host's own, and later what name the first bytes carried.
//!
//! Order, for every attempt: addresses that are never a peer; foreign DNS servers; deny rules; the class of the
//! address, which only a grant lifts; then the base and the allow rules. A name rule holds by three things at
//! once: our DNS answered this address for the name, the rule covers the port, and the first bytes name it.

use std::net::IpAddr;

use sandcrate_protocol::network::{
    AddressClass, Base, Cidr, Grants, HostName, Policy, Rule, Transport, classify,
};

use crate::sniff::Sniffed;

/// Ports of name servers: a box asks our forwarder, or names would not be bound.
const DNS_PORTS: [u16; 2] = [53, 853];
/// On these ports a protocol without a name in its first bytes is no excuse: servers there host many names.
const WEB_PORTS: [u16; 6] = [80, 443, 8000, 8008, 8080, 8443];

/// One connection that a box wants to make.
#[derive(Debug, Clone)]
pub struct Attempt<'a> {
    pub transport: Transport,
    pub address: IpAddr,
    pub port: u16,
    /// Names for which our DNS gave this address, as far as they live.
    pub names: &'a [HostName],
    /// The address belongs to the host itself.
    pub own: bool,
}

/// An attempt may go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allowed {
    pub inspection: Inspection,
}

/// What the first bytes of the box have to show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inspection {
    /// They are not looked at.
    None,
    /// A name in them must be allowed; none is fine where the protocol has none.
    Name,
}

/// An attempt that must fail, and what to tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub rule: String,
    pub hint: String,
}

impl Refusal {
    fn new(rule: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { rule: rule.into(), hint: hint.into() }
    }
}

/// A policy and what the operator adds to it.
#[derive(Debug, Clone, Default)]
pub struct Enforcer {
    policy: Policy,
    grants: Grants,
}

impl Enforcer {
    pub fn new(policy: Policy, grants: Grants) -> Self {
        Self { policy, grants }
    }

    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    fn deny_rules(&self) -> impl Iterator<Item = &Rule> {
        self.grants.deny.iter().chain(self.policy.deny())
    }

    /// Rules that let something pass, whatever the base.
    fn allow_rules(&self) -> impl Iterator<Item = &Rule> {
        // Under `public` a grant is usable as it stands; under a list, the list must have it too.
        let grants = if self.policy.base() == Base::Public { self.grants.allow.as_slice() } else { &[] };
        self.policy.allow().iter().chain(grants)
    }

    /// Whether a connection may be opened, before a byte of it is seen.
    pub fn judge(&self, attempt: &Attempt<'_>) -> Result<Allowed, Refusal> {
        let class = classify(attempt.address);
        if class.is_never_a_peer() {
            return Err(Refusal::new(
                format!("never: {class}"),
                format!("{class} addresses are not reachable from a box"),
            ));
        }
        if self.policy.is_off() {
            return Err(Refusal::new("off", "the network of this session is off"));
        }
        if DNS_PORTS.contains(&attempt.port) && !self.range_granted(attempt) {
            return Err(Refusal::new(
                "dns",
                "names are resolved by the box's own resolver only (see /etc/resolv.conf)",
            ));
        }
        if let Some(rule) = self.deny_rules().find(|rule| denies(rule, attempt)) {
            return Err(Refusal::new(format!("deny {rule}"), "the policy denies this; do not retry"));
        }
        if let Some(what) = self.ungranted(class, attempt) {
            let hint = format!(
                "{what} addresses are closed to boxes; the operator can open this one with network.allow = [\"{}\"]",
                as_rule(attempt)
            );
            return Err(Refusal::new(format!("never: {what}"), hint));
        }
        self.judge_lists(attempt)
    }

    fn judge_lists(&self, attempt: &Attempt<'_>) -> Result<Allowed, Refusal> {
        let denied_names = self.deny_rules().any(|rule| rule.name().is_some());
        let by_address = if denied_names { Inspection::Name } else { Inspection::None };
        let public = self.policy.base() == Base::Public
            && classify(attempt.address) == AddressClass::Public
            && !attempt.own;
        if public || self.allow_rules().any(|rule| range_matches(rule, attempt)) {
            return Ok(Allowed { inspection: by_address });
        }
        if self.allow_rules().any(|rule| name_matches(rule, attempt)) {
            return Ok(Allowed { inspection: Inspection::Name });
        }
        Err(self.unlisted(attempt))
    }

    fn unlisted(&self, attempt: &Attempt<'_>) -> Refusal {
        let wanted = as_rule(attempt);
        let known = attempt
            .names
            .iter()
            .any(|name| self.allow_rules().filter_map(Rule::name).any(|pattern| pattern.matches(name)));
        let hint = match (attempt.names.first(), attempt.transport) {
            (Some(_), Transport::Udp) if known => {
                format!("datagrams carry no readable name, so a name rule covers them only as `{wanted}`")
            }
            (Some(_), _) if known => format!("the name is allowed on other ports; this needs `{wanted}`"),
            (Some(_), _) => format!("not on the allow list; it would need `{wanted}`"),
            (None, _) if self.allow_rules().any(|rule| rule.name().is_some()) => {
                format!(
                    "name rules do not cover addresses used directly: connect by name, or allow `{wanted}`"
                )
            }
            (None, _) => format!("not on the allow list; it would need `{wanted}`"),
        };
        Refusal::new("not on the allow list", hint)
    }

    /// Whether a connection that was opened under [`Inspection::Name`] may send what it wants to send.
    pub fn judge_first_bytes(&self, attempt: &Attempt<'_>, sniffed: &Sniffed) -> Result<(), Refusal> {
        let name = sniffed.name();
        if let Some(name) = name
            && let Some(rule) = self.deny_rules().find(|rule| {
                rule.covers(attempt.transport, attempt.port)
                    && rule.name().is_some_and(|pattern| pattern.matches(name))
            })
        {
            return Err(Refusal::new(
                format!("deny {rule}"),
                format!("the policy denies `{name}`; do not retry"),
            ));
        }
        if self.judge_lists(&Attempt { names: &[], ..attempt.clone() }).is_ok() {
            return Ok(());
        }
        let mut rules = self.allow_rules().filter(|rule| rule.covers(attempt.transport, attempt.port));
        match (sniffed, name) {
            (_, Some(name)) if rules.any(|rule| rule.name().is_some_and(|pattern| pattern.matches(name))) => {
                Ok(())
            }
            (_, Some(name)) => Err(Refusal::new(
                "not on the allow list",
                format!(
                    "the connection says it is for `{name}`, which no rule allows on port {}",
                    attempt.port
                ),
            )),
            (Sniffed::Other, None) => {
                // Only a rule that states the port vouches for a protocol that names nobody.
                let stated = rules.any(|rule| rule.ports.is_some() && name_matches(rule, attempt));
                if stated && !WEB_PORTS.contains(&attempt.port) {
                    return Ok(());
                }
                Err(Refusal::new(
                    "name not shown",
                    format!(
                        "neither TLS nor HTTP: a rule that states the port is needed, such as `{}`",
                        as_rule(attempt)
                    ),
                ))
            }
            (Sniffed::Tls { .. } | Sniffed::Http { .. }, None) => Err(Refusal::new(
                "name not shown",
                "under name rules TLS must carry a server name (SNI) and HTTP exactly one Host header",
            )),
        }
    }

    /// Whether a name may be resolved.
    pub fn judge_name(&self, name: &HostName) -> Result<(), Refusal> {
        if self.policy.is_off() {
            return Err(Refusal::new("off", "the network of this session is off"));
        }
        self.judge_alias(name)?;
        let listed = self.allow_rules().filter_map(Rule::name).any(|pattern| pattern.matches(name));
        if self.policy.base() == Base::Public || listed {
            return Ok(());
        }
        Err(Refusal::new("not on the allow list", format!("the name is not allowed; it would need `{name}`")))
    }

    /// Whether a name may stand in the chain of aliases behind another.
    pub fn judge_alias(&self, name: &HostName) -> Result<(), Refusal> {
        // A deny rule with a port forbids connections, not the name.
        match self.deny_rules().find(|rule| {
            rule.ports.is_none()
                && rule.transport.is_none()
                && rule.name().is_some_and(|pattern| pattern.matches(name))
        }) {
            Some(rule) => {
                Err(Refusal::new(format!("deny {rule}"), "the policy denies this name; do not retry"))
            }
            None => Ok(()),
        }
    }

    /// Whether an answer may give this address for this name. Ports are not known yet, so a grant of any port
    /// will do; the connection is judged again.
    pub fn judge_answer(&self, name: &HostName, address: IpAddr, own: bool) -> Result<(), Refusal> {
        let class = classify(address);
        let granted = self.grants.allow.iter().any(|rule| match (rule.name(), rule.range()) {
            (Some(pattern), _) => pattern.matches(name),
            (_, Some(range)) => range.contains(address) && speaks_of_own(rule, own),
            _ => false,
        });
        if class.is_never_a_peer() || (!granted && (own || class != AddressClass::Public)) {
            let what = if own { "the host's own" } else { class.name() };
            return Err(Refusal::new(
                format!("never: {what}"),
                format!(
                    "`{name}` resolves to {address}; {what} addresses are closed to boxes unless the operator allows the name"
                ),
            ));
        }
        Ok(())
    }

    /// Whether an echo request may be sent. Rules that state a port or protocol do not speak of it.
    pub fn judge_echo(&self, address: IpAddr, names: &[HostName], own: bool) -> Result<(), Refusal> {
        let attempt = Attempt { transport: Transport::Tcp, address, port: 0, names, own };
        let plain = |rule: &Rule| rule.ports.is_none() && rule.transport.is_none();
        let named = self.allow_rules().any(|rule| plain(rule) && name_matches(rule, &attempt));
        match self.judge(&attempt) {
            Ok(Allowed { inspection: Inspection::None }) => Ok(()),
            Ok(_) if self.policy.base() == Base::Public || named => Ok(()),
            Ok(_) => Err(self.unlisted(&attempt)),
            Err(refusal) => Err(refusal),
        }
    }

    fn range_granted(&self, attempt: &Attempt<'_>) -> bool {
        self.grants.allow.iter().any(|rule| rule.ports.is_some() && range_matches(rule, attempt))
    }

    /// The name of what this address is, when only a grant could open it and there is none.
    fn ungranted(&self, class: AddressClass, attempt: &Attempt<'_>) -> Option<&'static str> {
        if class == AddressClass::Public && !attempt.own {
            return None;
        }
        let granted = self.grants.allow.iter().any(|rule| {
            (range_matches(rule, attempt) && speaks_of_own(rule, attempt.own)) || name_matches(rule, attempt)
        });
        let what = if attempt.own { "the host's own" } else { class.name() };
        (!granted).then_some(what)
    }
}

fn range_matches(rule: &Rule, attempt: &Attempt<'_>) -> bool {
    rule.covers(attempt.transport, attempt.port)
        && rule.range().is_some_and(|range| range.contains(attempt.address))
}

/// A host that stands in a granted range is not meant by it: its own addresses must be granted one by one.
fn speaks_of_own(rule: &Rule, own: bool) -> bool {
    !own || rule.range().is_some_and(Cidr::is_single)
}

/// A name rule lets datagrams pass only when it says `udp/`: they carry no name that could be checked.
fn name_matches(rule: &Rule, attempt: &Attempt<'_>) -> bool {
    let explicit = attempt.transport == Transport::Tcp || rule.transport == Some(Transport::Udp);
    explicit
        && rule.covers(attempt.transport, attempt.port)
        && rule.name().is_some_and(|pattern| attempt.names.iter().any(|name| pattern.matches(name)))
}

/// A denied name among several at one address denies only when no other is left: shared front ends carry
/// thousands of names, and the first bytes say which one is meant.
fn denies(rule: &Rule, attempt: &Attempt<'_>) -> bool {
    rule.covers(attempt.transport, attempt.port)
        && match (rule.range(), rule.name()) {
            (Some(range), _) => range.contains(attempt.address),
            (None, Some(pattern)) => {
                !attempt.names.is_empty() && attempt.names.iter().all(|name| pattern.matches(name))
            }
            (None, None) => false,
        }
}

/// The narrowest rule that would cover the attempt.
fn as_rule(attempt: &Attempt<'_>) -> String {
    let target = match (attempt.names.first(), attempt.address) {
        (Some(name), _) => name.to_string(),
        (None, IpAddr::V6(v6)) => format!("[{v6}]"),
        (None, IpAddr::V4(v4)) => v4.to_string(),
    };
    let transport = if attempt.transport == Transport::Udp { "udp/" } else { "" };
    if attempt.port == 0 { target } else { format!("{transport}{target}:{}", attempt.port) }
}

#[cfg(test)]
#[path = "enforcer_tests.rs"]
mod tests;
