//! What parses, what it means, and what the errors say.

use proptest::prelude::*;

use super::*;

#[test]
fn rules_parse_and_print_as_written() {
    for text in [
        "example.com",
        "*.example.com",
        "example.com:443",
        "tcp/example.com:8000-8080",
        "udp/example.com:443",
        "192.0.2.0/24",
        "192.0.2.1",
        "192.0.2.0/24:80",
        "udp/192.0.2.1:53",
        "2001:db8::/32",
        "2001:db8::1",
        "[2001:db8::/32]:443",
        "tcp/[2001:db8::1]:443",
        "0.0.0.0/0",
    ] {
        assert_eq!(text.parse::<Rule>().unwrap().to_string(), text);
    }
    assert_eq!("TCP/Example.COM.:443".parse::<Rule>().unwrap().to_string(), "tcp/example.com:443");
    assert_eq!("[2001:DB8::1]".parse::<Rule>().unwrap().to_string(), "2001:db8::1");
    assert_eq!("192.0.2.1/32".parse::<Rule>().unwrap().to_string(), "192.0.2.1");
}

#[test]
fn errors_name_the_rule_and_the_fix() {
    for (text, part) in [
        ("", "empty rule"),
        ("*", "write `public`"),
        ("*:443", "write `public`"),
        ("foo.*", "write `*.example.com`"),
        ("a*.example.com", "write `*.example.com`"),
        ("https://example.com:8443/x?y", "write `example.com:8443`"),
        ("exa mple.com", "`exa mple.com` is not a host name because it has a character"),
        ("example.com:0", "`0` is not a port"),
        ("example.com:99999", "`99999` is not a port"),
        ("example.com:9-8", "`9-8` is not a port"),
        ("example.com:+80", "`+80` is not a port"),
        ("icmp/example.com", "unknown protocol `icmp`"),
        ("10.0.0.0/33", "`33` is not a prefix length from 0 to 32"),
        ("10.1.2.3/8", "write `10.0.0.0/8`"),
        ("2001:db8::/129", "from 0 to 128"),
        ("[2001:db8::1", "stands in brackets"),
        ("2001:db8::zz", "stands in brackets"),
        ("::ffff:10.0.0.1", "write `10.0.0.1`"),
        ("127.1", "ends in a number"),
        ("bücher.de", "xn--"),
    ] {
        let message = text.parse::<Rule>().unwrap_err().to_string();
        assert!(message.contains(part), "{text}: {message}");
    }
}

#[test]
fn a_rule_covers_its_ports_and_protocol() {
    let rule: Rule = "tcp/example.com:80-90".parse().unwrap();
    assert!(rule.covers(Transport::Tcp, 80) && rule.covers(Transport::Tcp, 90));
    assert!(!rule.covers(Transport::Tcp, 91) && !rule.covers(Transport::Udp, 80));
    let any: Rule = "example.com".parse().unwrap();
    assert!(any.covers(Transport::Udp, 1));
}

/// Rules of every shape.
pub(crate) fn any_rule() -> impl Strategy<Value = Rule> {
    let name = "[a-z][a-z0-9-]{0,10}(\\.[a-z][a-z0-9_-]{0,10}){0,3}"
        .prop_map(|text| text.parse::<HostName>().unwrap());
    let pattern = (name, any::<bool>()).prop_map(|(name, below)| {
        Target::Name(if below { NamePattern::Below(name) } else { NamePattern::Exact(name) })
    });
    let v4 = (any::<[u8; 4]>(), 0_u8..=32).prop_map(|(a, p)| Cidr::containing(IpAddr::from(a), p).unwrap());
    let v6 = (any::<[u8; 16]>(), 0_u8..=128)
        .prop_map(|(a, p)| Cidr::containing(IpAddr::from(a), p).unwrap())
        .prop_filter("mapped ranges are refused", |range| match range.base() {
            IpAddr::V6(v6) => v6.to_ipv4_mapped().is_none(),
            IpAddr::V4(_) => true,
        });
    let target = prop_oneof![pattern, v4.prop_map(Target::Range), v6.prop_map(Target::Range)];
    let ports =
        proptest::option::of((1_u16.., 1_u16..).prop_map(|(a, b)| Ports::new(a.min(b)..=a.max(b)).unwrap()));
    let transport = proptest::option::of(prop_oneof![Just(Transport::Tcp), Just(Transport::Udp)]);
    (target, ports, transport).prop_filter_map("words for everything", |(target, ports, transport)| {
        let everything = matches!(target.to_string().as_str(), "any" | "all");
        (!everything).then_some(Rule { target, ports, transport })
    })
}

proptest! {
    #[test]
    fn every_rule_survives_being_printed(rule in any_rule()) {
        prop_assert_eq!(rule.to_string().parse::<Rule>().unwrap(), rule.clone());
        let json = serde_json::to_string(&rule).unwrap();
        prop_assert_eq!(serde_json::from_str::<Rule>(&json).unwrap(), rule);
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in "\\PC{0,40}") {
        if let Ok(rule) = text.parse::<Rule>() {
            prop_assert_eq!(rule.to_string().parse::<Rule>().unwrap(), rule);
        }
    }
}
