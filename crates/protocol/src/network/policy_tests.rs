//! What a policy text parses to, prints as, and which texts are refused.

use proptest::prelude::*;

use super::*;

fn policy(text: &str) -> Policy {
    text.parse().unwrap()
}

fn grants(allow: &[&str]) -> Grants {
    Grants { allow: allow.iter().map(|rule| rule.parse().unwrap()).collect(), deny: Vec::new() }
}

#[test]
fn policies_print_as_they_are_written() {
    for text in [
        "off",
        "public",
        "public, deny ads.example, deny 192.0.2.0/24",
        "allow *.example.com:443, allow [2001:db8::1]:22, deny x.example.com",
    ] {
        assert_eq!(policy(text).to_string(), text);
    }
    assert_eq!(policy("on"), Policy::public());
    assert!(policy("off").is_off());
}

#[test]
fn errors_of_policies_say_what_to_write() {
    for (text, part) in [
        ("", "write `off`"),
        ("example.com", "`example.com` is not understood"),
        ("allow *", "write `public`"),
        ("off, allow example.com", "drop the rules"),
        ("public, allow example.com", "without `public`"),
        ("deny example.com", "write `public, deny"),
        ("allow a.example, public", "stands alone in front"),
    ] {
        let message = text.parse::<Policy>().unwrap_err().to_string();
        assert!(message.contains(part), "{text}: {message}");
    }
}

#[test]
fn json_has_a_text_and_a_long_form() {
    let long: Policy =
        serde_json::from_str(r#"{"allow":["example.com:443"],"deny":["x.example.com"]}"#).unwrap();
    assert_eq!(long, policy("allow example.com:443, deny x.example.com"));
    assert_eq!(serde_json::from_str::<Policy>("\"on\"").unwrap(), Policy::public());
    let error = serde_json::from_str::<Policy>(r#"{"allow":["*"]}"#).unwrap_err().to_string();
    assert!(error.contains("write `public`"), "{error}");
    assert!(serde_json::from_str::<Policy>(r#"{"allowed":[]}"#).is_err());
}

#[test]
fn rules_that_could_never_hold_are_refused_early() {
    let check = |text: &str, allow: &[&str]| policy(text).check_against(&grants(allow));
    assert!(check("allow 10.1.0.0/16", &[]).unwrap_err().to_string().contains("network.allow"));
    assert!(check("allow 10.1.0.0/16", &["10.0.0.0/8"]).is_ok());
    assert!(check("allow 1.2.3.4, allow 0.0.0.0/0, allow name.corp", &[]).is_ok());
}

fn any_policy() -> impl Strategy<Value = Policy> {
    let rules = || proptest::collection::vec(crate::network::rule::tests::any_rule(), 0..6);
    (any::<bool>(), rules(), rules()).prop_filter_map(
        "combinations that are refused",
        |(public, allow, deny)| {
            Policy::new(if public { Base::Public } else { Base::Nothing }, allow, deny).ok()
        },
    )
}

proptest! {
    #[test]
    fn every_policy_survives_text_json_and_postcard(policy in any_policy()) {
        prop_assert_eq!(&policy.to_string().parse::<Policy>().unwrap(), &policy);
        let json = serde_json::to_string(&policy).unwrap();
        prop_assert_eq!(&serde_json::from_str::<Policy>(&json).unwrap(), &policy);
        let packed = postcard::to_stdvec(&policy).unwrap();
        prop_assert_eq!(&postcard::from_bytes::<Policy>(&packed).unwrap(), &policy);
    }
}
