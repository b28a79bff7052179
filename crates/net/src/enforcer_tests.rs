//! What a policy means for each connection, name and answer.

use std::net::IpAddr;

use proptest::prelude::*;

use super::*;
use crate::sniff::Sniffed;

fn policy(text: &str) -> Policy {
    text.parse().unwrap()
}

fn names(list: &[&str]) -> Vec<HostName> {
    list.iter().map(|name| name.parse().unwrap()).collect()
}

fn grants(allow: &[&str]) -> Grants {
    Grants { allow: allow.iter().map(|rule| rule.parse().unwrap()).collect(), deny: Vec::new() }
}

/// Judges a TCP connection.
fn tcp(enforcer: &Enforcer, address: &str, port: u16, bound: &[&str]) -> Result<Allowed, Refusal> {
    judge(enforcer, Transport::Tcp, address, port, bound, false)
}

fn judge(
    enforcer: &Enforcer,
    transport: Transport,
    address: &str,
    port: u16,
    bound: &[&str],
    own: bool,
) -> Result<Allowed, Refusal> {
    let names = names(bound);
    enforcer.judge(&Attempt { transport, address: address.parse().unwrap(), port, names: &names, own })
}

fn first_bytes(enforcer: &Enforcer, port: u16, bound: &[&str], sniffed: &Sniffed) -> Result<(), Refusal> {
    let names = names(bound);
    let address: IpAddr = "1.2.3.4".parse().unwrap();
    enforcer.judge_first_bytes(
        &Attempt { transport: Transport::Tcp, address, port, names: &names, own: false },
        sniffed,
    )
}

fn tls(name: &str) -> Sniffed {
    Sniffed::Tls { name: Some(name.parse().unwrap()) }
}

#[test]
fn public_is_the_internet_and_nothing_near_the_host() {
    let enforcer = Enforcer::new(Policy::public(), Grants::default());
    assert_eq!(tcp(&enforcer, "1.1.1.1", 443, &[]).unwrap().inspection, Inspection::None);
    assert!(judge(&enforcer, Transport::Udp, "2606:4700::1111", 443, &[], false).is_ok());
    for address in [
        "127.0.0.1",
        "10.0.0.1",
        "169.254.169.254",
        "100.64.0.1",
        "192.168.1.1",
        "224.0.0.1",
        "255.255.255.255",
        "0.0.0.0",
        "::1",
        "fe80::1",
        "fd00::1",
        "::ffff:10.0.0.1",
        "64:ff9b::a00:1",
        "2002:7f00:1::",
    ] {
        assert!(tcp(&enforcer, address, 80, &[]).unwrap_err().rule.starts_with("never: "), "{address}");
    }
    let own = judge(&enforcer, Transport::Tcp, "1.1.1.1", 443, &[], true).unwrap_err();
    assert!(own.hint.contains("the host's own"), "{own:?}");
    assert_eq!(judge(&enforcer, Transport::Udp, "8.8.8.8", 53, &[], false).unwrap_err().rule, "dns");
}

#[test]
fn grants_open_what_public_leaves_out_and_nothing_else() {
    let enforcer = Enforcer::new(Policy::public(), grants(&["10.1.0.0/16:5432", "db.corp:80"]));
    assert!(tcp(&enforcer, "10.1.2.3", 5432, &[]).is_ok());
    assert!(tcp(&enforcer, "10.1.2.3", 22, &[]).is_err());
    assert!(tcp(&enforcer, "10.2.0.1", 5432, &[]).is_err());
    assert_eq!(tcp(&enforcer, "10.9.9.9", 80, &["db.corp"]).unwrap().inspection, Inspection::Name);
    assert!(tcp(&enforcer, "10.9.9.9", 80, &["other.corp"]).is_err());
    let own = |enforcer: &Enforcer| judge(enforcer, Transport::Tcp, "10.1.2.3", 5432, &[], true).is_ok();
    assert!(!own(&enforcer), "a range does not mean the host that stands in it");
    assert!(own(&Enforcer::new(Policy::public(), grants(&["10.1.2.3:5432"]))));
    let multicast = Enforcer::new(Policy::public(), grants(&["224.0.0.0/4"]));
    assert!(tcp(&multicast, "224.0.0.1", 80, &[]).is_err(), "multicast cannot");
    let listed = Enforcer::new(policy("allow example.com"), grants(&["10.0.0.0/8"]));
    assert!(tcp(&listed, "10.0.0.1", 80, &[]).is_err(), "under a list, the list must have it too");
}

#[test]
fn listed_ranges_are_open_and_deny_beats_allow() {
    let enforcer = Enforcer::new(policy("allow 1.2.0.0/16, deny 1.2.3.0/24:80"), Grants::default());
    assert!(tcp(&enforcer, "1.2.4.4", 80, &[]).is_ok());
    assert!(tcp(&enforcer, "1.2.3.4", 443, &[]).is_ok());
    assert_eq!(tcp(&enforcer, "1.2.3.4", 80, &[]).unwrap_err().rule, "deny 1.2.3.0/24:80");
    let refusal = tcp(&enforcer, "1.3.0.1", 443, &[]).unwrap_err();
    assert!(refusal.hint.contains("`1.3.0.1:443`"), "{refusal:?}");
}

#[test]
fn name_rules_need_the_binding_and_the_shown_name() {
    let enforcer = Enforcer::new(policy("allow *.example.com, allow git.example.org:22"), Grants::default());
    assert!(tcp(&enforcer, "1.2.3.4", 443, &[]).unwrap_err().hint.contains("connect by name"));
    assert_eq!(tcp(&enforcer, "1.2.3.4", 443, &["a.example.com"]).unwrap().inspection, Inspection::Name);
    assert!(tcp(&enforcer, "1.2.3.4", 443, &["example.com"]).is_err(), "the apex is not below itself");
    assert!(tcp(&enforcer, "1.2.3.4", 443, &["git.example.org"]).is_err(), "another port");
    assert!(tcp(&enforcer, "10.0.0.1", 443, &["a.example.com"]).is_err(), "rebinding");
    let bound = &["a.example.com"];
    assert!(first_bytes(&enforcer, 443, bound, &tls("b.example.com")).is_ok());
    assert!(first_bytes(&enforcer, 443, bound, &tls("evil.org")).is_err());
    assert!(first_bytes(&enforcer, 443, bound, &tls("git.example.org")).is_err(), "allowed on 22 only");
    assert!(first_bytes(&enforcer, 443, bound, &Sniffed::Tls { name: None }).is_err());
    assert!(first_bytes(&enforcer, 80, bound, &Sniffed::Http { name: None }).is_err());
    assert!(first_bytes(&enforcer, 9000, bound, &Sniffed::Other).is_err(), "the rule states no port");
    assert!(first_bytes(&enforcer, 22, &["git.example.org"], &Sniffed::Other).is_ok());
}

#[test]
fn a_stated_web_port_does_not_excuse_a_missing_name() {
    let enforcer = Enforcer::new(policy("allow example.com:443"), Grants::default());
    assert!(first_bytes(&enforcer, 443, &["example.com"], &Sniffed::Other).is_err());
}

#[test]
fn name_rules_cover_datagrams_only_when_they_say_so() {
    let enforcer =
        Enforcer::new(policy("allow example.com:443, allow udp/ntp.example.com:123"), Grants::default());
    let refusal = judge(&enforcer, Transport::Udp, "1.2.3.4", 443, &["example.com"], false).unwrap_err();
    assert!(refusal.hint.contains("udp/example.com:443"), "{refusal:?}");
    assert!(judge(&enforcer, Transport::Udp, "1.2.3.4", 123, &["ntp.example.com"], false).is_ok());
}

#[test]
fn denied_names_are_neither_resolved_nor_shown() {
    let enforcer = Enforcer::new(policy("public, deny *.evil.org, deny evil.org"), Grants::default());
    assert!(enforcer.judge_name(&"a.evil.org".parse().unwrap()).is_err());
    assert!(enforcer.judge_name(&"good.org".parse().unwrap()).is_ok());
    assert_eq!(tcp(&enforcer, "1.2.3.4", 443, &[]).unwrap().inspection, Inspection::Name);
    assert!(first_bytes(&enforcer, 443, &[], &tls("x.evil.org")).is_err());
    assert!(first_bytes(&enforcer, 443, &[], &tls("good.org")).is_ok());
    assert!(first_bytes(&enforcer, 443, &[], &Sniffed::Other).is_ok());
}

#[test]
fn names_and_answers_are_judged_before_they_are_given() {
    let enforcer = Enforcer::new(policy("allow *.example.com"), grants(&["db.example.com"]));
    let name = |text: &str| text.parse::<HostName>().unwrap();
    assert!(enforcer.judge_name(&name("a.example.com")).is_ok());
    assert!(enforcer.judge_name(&name("exfiltrated.evil.org")).is_err());
    let private: IpAddr = "10.0.0.1".parse().unwrap();
    let public: IpAddr = "1.2.3.4".parse().unwrap();
    assert!(enforcer.judge_answer(&name("a.example.com"), private, false).is_err());
    assert!(enforcer.judge_answer(&name("db.example.com"), private, false).is_ok());
    assert!(enforcer.judge_answer(&name("a.example.com"), public, true).is_err());
    assert!(enforcer.judge_answer(&name("a.example.com"), public, false).is_ok());
}

#[test]
fn off_is_off() {
    let enforcer = Enforcer::new(Policy::off(), grants(&["10.0.0.0/8"]));
    assert_eq!(tcp(&enforcer, "10.0.0.1", 80, &[]).unwrap_err().rule, "off");
    assert!(enforcer.judge_name(&"example.com".parse().unwrap()).is_err());
    assert!(enforcer.judge_echo("1.1.1.1".parse().unwrap(), &[], false).is_err());
}

/// Policies by ranges, wide and narrow: a request can write any of them.
fn any_policy() -> impl Strategy<Value = Policy> {
    let rule = (any::<IpAddr>(), 0..=32_u8).prop_map(|(address, prefix)| format!("{address}/{prefix}"));
    let rules = || proptest::collection::vec(rule.clone(), 0..6);
    (any::<bool>(), rules(), rules()).prop_filter_map(
        "combinations that are refused",
        |(public, allow, deny)| {
            let mut words = Vec::from_iter(public.then(|| "public".to_owned()));
            words.extend(allow.iter().map(|rule| format!("allow {rule}")));
            words.extend(deny.iter().map(|rule| format!("deny {rule}")));
            words.join(", ").parse().ok()
        },
    )
}

proptest! {
    /// Whatever a request asks for, it never reaches what is not public.
    #[test]
    fn no_policy_reaches_a_forbidden_address_without_a_grant(policy in any_policy(), address in any::<IpAddr>(), port in any::<u16>(), own in any::<bool>()) {
        let enforcer = Enforcer::new(policy, Grants::default());
        let attempt = Attempt { transport: Transport::Tcp, address, port, names: &[], own };
        if enforcer.judge(&attempt).is_ok() {
            prop_assert!(!own && classify(address) == AddressClass::Public);
        }
    }
}
