//! Questions that are asked, answers that are given.

use super::*;
use sandcrate_protocol::network::{Grants, Policy};

fn enforcer(policy: &str) -> Enforcer {
    Enforcer::new(policy.parse::<Policy>().unwrap(), Grants::default())
}

fn question(name: &str, kind: u16) -> Vec<u8> {
    Message::query(5, Question { name: name.to_owned(), kind }).encode(512)
}

fn reply_of(step: Step) -> (Message, Option<Denial>) {
    match step {
        Step::Reply(reply) => (Message::parse(&reply.bytes).unwrap(), reply.denial),
        other => panic!("{other:?}"),
    }
}

/// Asks and answers with these records.
fn resolve(
    forwarder: &mut Forwarder,
    policy: &str,
    name: &str,
    kind: u16,
    answers: Vec<(&str, Data)>,
) -> (Message, Option<Denial>) {
    let enforcer = enforcer(policy);
    let Step::Ask { query, upstream } = forwarder.question(&enforcer, &question(name, kind), 77) else {
        panic!("not asked");
    };
    let mut answer = Message::parse(&upstream).unwrap();
    assert_eq!((answer.id, answer.question.name.as_str()), (77, name));
    answer.response = true;
    answer.answers = answers
        .into_iter()
        .map(|(name, data)| Record { name: name.to_owned(), ttl_seconds: 1 << 20, data })
        .collect();
    let own: IpAddr = "1.9.9.9".parse().unwrap();
    let reply = forwarder
        .answer(&enforcer, &query, 77, &answer.encode(4096), &mut |address| address == own, Instant::now())
        .unwrap();
    (Message::parse(&reply.bytes).unwrap(), reply.denial)
}

fn address(text: &str) -> Data {
    Data::Address(text.parse().unwrap())
}

fn alias(text: &str) -> Data {
    Data::Alias(text.to_owned())
}

#[test]
fn allowed_names_are_asked_answered_and_bound() {
    let mut forwarder = Forwarder::default();
    let (message, denial) = resolve(
        &mut forwarder,
        "allow *.example.com",
        "www.example.com",
        kind::A,
        vec![
            ("www.example.com", alias("edge.example.net")),
            ("edge.example.net", address("1.2.3.4")),
            ("other.example", address("1.2.3.5")),
        ],
    );
    assert_eq!((message.id, message.code, denial), (5, ResponseCode::NoError, None));
    assert_eq!(message.answers.len(), 2, "what is beside the chain is not handed on");
    assert_eq!(message.answers[1].ttl_seconds, 3600);
    let names = forwarder.bindings.names("1.2.3.4".parse().unwrap(), Instant::now());
    assert_eq!(names, ["www.example.com".parse().unwrap()], "the name that was asked for, not its alias");
    assert!(forwarder.bindings.names("1.2.3.5".parse().unwrap(), Instant::now()).is_empty());
}

#[test]
fn other_names_are_refused_with_a_record_and_nothing_is_asked() {
    let forwarder = Forwarder::default();
    let step =
        forwarder.question(&enforcer("allow *.example.com"), &question("secret.evil.org", kind::TXT), 1);
    let (message, denial) = reply_of(step);
    assert_eq!(message.code, ResponseCode::NameError);
    let denial = denial.unwrap();
    assert_eq!((denial.kind, denial.target.as_str()), (DenialKind::Resolve, "secret.evil.org"));
}

#[test]
fn rebinding_is_refused() {
    for forbidden in ["10.0.0.1", "127.0.0.1", "169.254.169.254", "0.0.0.0", "1.9.9.9"] {
        let mut forwarder = Forwarder::default();
        let (message, denial) =
            resolve(&mut forwarder, "public", "a.example", kind::A, vec![("a.example", address(forbidden))]);
        assert!(message.answers.is_empty(), "{forbidden}");
        assert!(denial.unwrap().hint.contains(forbidden));
        assert!(forwarder.bindings.names(forbidden.parse().unwrap(), Instant::now()).is_empty());
    }
    let (message, _) = resolve(
        &mut Forwarder::default(),
        "public",
        "a.example",
        kind::AAAA,
        vec![
            ("a.example", address("::ffff:10.0.0.1")),
            ("a.example", address("2606:4700::1")),
            ("a.example", address("1.2.3.4")),
        ],
    );
    assert_eq!(message.answers.len(), 1, "good addresses stay, those of the other family go");
}

#[test]
fn an_alias_to_a_denied_name_gives_nothing() {
    let (message, denial) = resolve(
        &mut Forwarder::default(),
        "public, deny evil.org",
        "a.example",
        kind::A,
        vec![("a.example", alias("evil.org")), ("evil.org", address("1.2.3.4"))],
    );
    assert!(message.answers.is_empty() && denial.is_some());
}

#[test]
fn kinds_that_hide_names_are_empty() {
    for kind in [kind::HTTPS, kind::SVCB, 255] {
        let step = Forwarder::default().question(&enforcer("public"), &question("a.example", kind), 1);
        let (message, denial) = reply_of(step);
        assert_eq!((message.code, message.answers.len(), denial), (ResponseCode::NoError, 0, None));
    }
}

#[test]
fn answers_to_other_questions_are_not_taken() {
    let mut forwarder = Forwarder::default();
    let enforcer = enforcer("public");
    let Step::Ask { query, upstream } = forwarder.question(&enforcer, &question("a.example", kind::A), 9)
    else {
        panic!("not asked");
    };
    let good = Message { response: true, ..Message::parse(&upstream).unwrap() };
    let mut take = |message: &Message| {
        forwarder.answer(&enforcer, &query, 9, &message.encode(512), &mut |_| false, Instant::now()).is_some()
    };
    assert!(take(&good));
    assert!(!take(&Message { id: 8, ..good.clone() }));
    assert!(!take(&Message { response: false, ..good.clone() }));
    assert!(!take(&Message { question: Question { name: "b.example".into(), kind: kind::A }, ..good }));
}

#[test]
fn garbage_is_answered_or_ignored_at_once() {
    let forwarder = Forwarder::default();
    assert!(matches!(forwarder.question(&enforcer("public"), b"xyz", 1), Step::Ignore));
    let mut bytes = question("a.example", kind::A);
    bytes[5] = 9;
    assert!(matches!(forwarder.question(&enforcer("public"), &bytes, 1), Step::Reply(_)));
    bytes[2] |= 0x80;
    assert!(matches!(forwarder.question(&enforcer("public"), &bytes, 1), Step::Ignore));
}
