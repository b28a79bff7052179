use std::net::IpAddr;

use super::*;

const SECRET: &str = "0123456789abcdef0123456789abcdef";
const OWN: u32 = 500;
const FRIEND: u32 = 501;
const STRANGER: u32 = 1001;

#[derive(Clone, Copy)]
struct Set {
    token: bool,
    legacy: Option<&'static str>,
    insecure: bool,
    stdio: bool,
}

const PLAIN: Set = Set { token: false, legacy: None, insecure: false, stdio: false };

fn admission(set: Set) -> Admission {
    let legacy = set.legacy.map(|text| match text {
        "off" => Legacy::Off,
        "loopback" => Legacy::Loopback,
        cidr => Legacy::Cidrs(vec![cidr.parse().unwrap()]),
    });
    let config = ServerConfig {
        token: set.token.then(|| SECRET.parse().unwrap()),
        legacy,
        insecure_no_auth: set.insecure,
        stdio: set.stdio,
        ..ServerConfig::default()
    };
    let mut admission = Admission::new(&config);
    admission.uids = if set.stdio { vec![OWN] } else { vec![OWN, 0, FRIEND] };
    admission.machine = "box1".to_owned();
    admission
}

fn unix(uid: u32) -> Standing {
    Standing::Unix { uid }
}

fn loopback(uid: impl Into<Option<u32>>) -> Standing {
    Standing::Loopback { address: IpAddr::from([127, 0, 0, 1]), uid: uid.into() }
}

fn remote(last: u8) -> Standing {
    Standing::Remote { address: IpAddr::from([10, 0, 0, last]) }
}

/// What comes of a request: a status, or how well its sender is known.
fn outcome(set: Set, face: Face, standing: Standing, token: Option<&str>) -> &'static str {
    let admission = admission(set);
    let mut headers = HeaderMap::new();
    headers.insert(header::HOST, "127.0.0.1:5410".parse().unwrap());
    if let Some(token) = token {
        headers.insert("x-api-key", token.parse().unwrap());
    }
    let decided = admission.by_token(face, admission.presented(&headers)).and_then(|known| match known {
        Some(known) => Ok(known),
        None => admission.by_peer(face, &standing, &headers),
    });
    match decided {
        Ok(true) => "known",
        Ok(false) => "admitted",
        Err(refusal) if refusal.status == StatusCode::UNAUTHORIZED => "401",
        Err(_) => "403",
    }
}

const FACES: [Face; 3] = [Face::Rpc, Face::Relay, Face::Api];

#[test]
fn without_a_token_local_peers_are_admitted_by_uid() {
    for face in FACES {
        for (standing, expected) in [
            (unix(OWN), "known"),
            (unix(0), "known"),
            (unix(FRIEND), "known"),
            (unix(STRANGER), "403"),
            (loopback(OWN), "known"),
            (loopback(0), "known"),
            (loopback(FRIEND), "known"),
            (loopback(STRANGER), "403"),
            (loopback(None), "403"),
            (remote(1), "401"),
        ] {
            assert_eq!(outcome(PLAIN, face, standing, None), expected, "{face:?} {standing:?}");
            assert_eq!(outcome(PLAIN, face, standing, Some(SECRET)), expected, "a token nobody asked for");
        }
    }
}

#[test]
fn with_a_token_only_the_token_counts() {
    let set = Set { token: true, ..PLAIN };
    for face in FACES {
        for standing in [unix(OWN), unix(STRANGER), loopback(OWN), loopback(None), remote(1)] {
            assert_eq!(outcome(set, face, standing, None), "401", "{face:?} {standing:?}");
            assert_eq!(outcome(set, face, standing, Some("wrong")), "401", "{face:?} {standing:?}");
            assert_eq!(outcome(set, face, standing, Some(SECRET)), "known", "{face:?} {standing:?}");
        }
    }
}

#[test]
fn legacy_opens_the_first_dialect_and_nothing_else() {
    let set = Set { token: true, legacy: Some("loopback"), ..PLAIN };
    for face in [Face::Rpc, Face::Relay] {
        assert_eq!(outcome(set, face, loopback(OWN), None), "known");
        assert_eq!(outcome(set, face, unix(OWN), None), "known");
        assert_eq!(outcome(set, face, loopback(STRANGER), None), "403");
        assert_eq!(outcome(set, face, remote(1), None), "401");
        assert_eq!(
            outcome(set, face, loopback(OWN), Some("wrong")),
            "401",
            "a wrong token is never overlooked"
        );
    }
    assert_eq!(outcome(set, Face::Api, loopback(OWN), None), "401");
}

#[test]
fn a_legacy_network_is_admitted_but_not_known() {
    for token in [false, true] {
        let set = Set { token, legacy: Some("10.0.0.0/31"), ..PLAIN };
        for face in [Face::Rpc, Face::Relay] {
            assert_eq!(outcome(set, face, remote(1), None), "admitted");
            assert_eq!(outcome(set, face, remote(2), None), "401");
            assert_eq!(outcome(set, face, loopback(OWN), None), "known");
            assert_eq!(outcome(set, face, loopback(STRANGER), None), "403");
        }
        assert_eq!(outcome(set, Face::Api, remote(1), None), "401");
    }
}

#[test]
fn legacy_off_without_a_token_closes_the_rpc() {
    let set = Set { legacy: Some("off"), ..PLAIN };
    assert_eq!(outcome(set, Face::Rpc, unix(OWN), None), "403");
    assert_eq!(outcome(set, Face::Api, unix(OWN), None), "known");
}

#[test]
fn insecure_admits_everybody_and_knows_only_local_users() {
    let set = Set { insecure: true, ..PLAIN };
    for face in FACES {
        assert_eq!(outcome(set, face, remote(1), None), "admitted");
        assert_eq!(outcome(set, face, loopback(STRANGER), None), "admitted");
        assert_eq!(outcome(set, face, loopback(OWN), None), "known");
    }
}

/// S1: the reference's port was open to everybody in stdio mode too.
#[test]
fn in_stdio_mode_only_the_parent_is_admitted_and_not_to_the_rpc() {
    let set = Set { stdio: true, ..PLAIN };
    assert_eq!(outcome(set, Face::Rpc, loopback(OWN), None), "403");
    assert_eq!(outcome(set, Face::Relay, loopback(OWN), None), "known");
    assert_eq!(outcome(set, Face::Relay, loopback(0), None), "403", "not even root: only the parent");
    assert_eq!(outcome(set, Face::Relay, loopback(FRIEND), None), "403");
    let set = Set { token: true, ..set };
    assert_eq!(outcome(set, Face::Rpc, loopback(OWN), Some(SECRET)), "known");
    assert_eq!(outcome(set, Face::Rpc, loopback(OWN), None), "401");
}

#[test]
fn a_foreign_host_name_is_refused_where_no_token_is_asked_for() {
    let mut headers = HeaderMap::new();
    headers.insert(header::HOST, "evil.example:5410".parse().unwrap());
    assert!(admission(PLAIN).by_peer(Face::Api, &loopback(OWN), &headers).is_err());
    assert!(
        admission(PLAIN).by_peer(Face::Api, &unix(OWN), &headers).is_ok(),
        "browsers speak no unix sockets"
    );
    let open = admission(Set { legacy: Some("10.0.0.0/8"), ..PLAIN });
    assert_eq!(open.by_peer(Face::Rpc, &remote(1), &headers), Ok(false), "not a browser");
    headers.insert(header::ORIGIN, "http://evil.example:5410".parse().unwrap());
    assert!(open.by_peer(Face::Rpc, &remote(1), &headers).is_err());
}

#[test]
fn refusals_name_the_setting_to_change() {
    let refusals = [
        (PLAIN, Face::Api, loopback(STRANGER), "`allow_uids`"),
        (PLAIN, Face::Api, remote(1), "`token`"),
        (PLAIN, Face::Rpc, remote(1), "`legacy`"),
        (Set { token: true, ..PLAIN }, Face::Rpc, loopback(OWN), "`legacy`"),
        (Set { token: true, ..PLAIN }, Face::Api, loopback(OWN), "`Authorization: Bearer`"),
        (Set { stdio: true, ..PLAIN }, Face::Rpc, loopback(OWN), "`token`"),
    ];
    for (set, face, standing, setting) in refusals {
        let admission = admission(set);
        let headers = HeaderMap::from_iter([(header::HOST, "localhost".parse().unwrap())]);
        let refusal = admission
            .by_token(face, Presented::Nothing)
            .and_then(|_| admission.by_peer(face, &standing, &headers))
            .unwrap_err();
        assert!(refusal.message.contains(setting), "{}", refusal.message);
    }
}
