use std::time::Duration;

use super::*;

const MOST: usize = 2;

fn at(seconds: i64) -> Timestamp {
    Timestamp(jiff::Timestamp::from_second(seconds).unwrap())
}

/// Revision, generation, expiry, sessions.
fn grant(revision: u64, generation: u64, expires: i64, sessions: u64) -> AdmissionGrant {
    AdmissionGrant {
        instance_uuid: "i".to_owned(),
        workspace_uuid: "w".to_owned(),
        execution_generation: generation,
        entitlement_revision: revision,
        expires_at: at(expires),
        max_sessions: sessions,
        max_managed_processes: 0,
    }
}

fn policy() -> AdmissionPolicy {
    AdmissionPolicy { required: true, max_grant_ttl: Duration::from_secs(300), ..AdmissionPolicy::default() }
}

fn placement(generation: u64) -> Placement {
    Placement::new("i", "w", generation)
}

impl Book {
    fn add(&mut self, grant: &AdmissionGrant) -> Result<Installed, String> {
        let name = placement(1).workspace().to_owned();
        self.install(&name, grant, &policy(), at(1000), MOST).map_err(|error| error.to_string())
    }

    fn end(&mut self, revision: u64) -> Result<Ending, String> {
        let name = placement(1).workspace().to_owned();
        self.revoke(&name, revision, MOST).map_err(|error| error.to_string())
    }

    fn asked(&self, generation: u64, now: i64) -> Result<Calls, String> {
        self.calls(&placement(generation), &policy(), at(now)).map_err(|error| error.to_string())
    }
}

#[test]
fn grants_are_refused_by_their_own_figures() {
    let mut book = Book::default();
    let mut processes = grant(1, 1, 1100, 1);
    processes.max_managed_processes = 1;
    for (grant, why) in [
        (grant(1, 1, 1000, 1), "Cannot install an expired sandbox admission grant"),
        (grant(1, 1, 1301, 1), "Sandbox admission grant lifetime exceeds the configured maximum"),
        (grant(1, 1, 1100, 2), "Sandbox admission grant exceeds the session cap"),
        (processes, "Sandbox admission grant exceeds the managed-process cap"),
    ] {
        assert_eq!(book.add(&grant).unwrap_err(), why);
    }
    assert_eq!(book.asked(1, 1000).unwrap_err(), "Sandbox admission grant is missing");
}

#[test]
fn what_was_replaced_or_taken_back_never_comes_back() {
    let mut book = Book::default();
    assert!(book.add(&grant(2, 2, 1300, 1)).unwrap().ended.is_some(), "whatever was there has no grant");
    let kept = book.add(&grant(2, 2, 1200, 1)).unwrap();
    assert_eq!((kept.grant.expires_at, kept.ended.is_none()), (at(1300), true), "the longer one is kept");
    for (grant, why) in [
        (grant(1, 2, 1300, 1), "Sandbox admission grant revision is stale"),
        (grant(2, 1, 1300, 1), "Sandbox admission execution generation is stale"),
        (grant(2, 2, 1300, 0), "Sandbox admission limits changed without a new entitlement revision"),
    ] {
        assert_eq!(book.add(&grant).unwrap_err(), why);
    }
    assert!(book.add(&grant(3, 2, 1250, 1)).unwrap().ended.is_none(), "renewed: its calls go on");
    assert!(book.add(&grant(3, 3, 1250, 1)).unwrap().ended.is_some(), "another generation");
    assert_eq!(book.end(2).unwrap_err(), "Sandbox admission revocation is stale");
    book.end(5).unwrap();
    assert_eq!(book.asked(3, 1000).unwrap_err(), "Sandbox admission grant is missing");
    assert_eq!(book.add(&grant(5, 3, 1250, 1)).unwrap_err(), "Sandbox admission grant revision was revoked");
    book.add(&grant(6, 3, 1250, 1)).unwrap();
    assert_eq!(book.expiries.len(), 1, "one grant, one end");
}

#[test]
fn a_call_needs_the_grant_of_its_generation_while_it_lasts() {
    let mut book = Book::default();
    book.add(&grant(1, 2, 1200, 1)).unwrap();
    assert!(book.asked(2, 1199).is_ok());
    assert_eq!(book.asked(2, 1200).unwrap_err(), "Sandbox admission grant has expired");
    let other = "Sandbox admission grant belongs to another execution generation";
    assert_eq!(book.asked(3, 1000).unwrap_err(), other);
    assert_eq!(book.sessions(&placement(2), at(1000)), 1);
    assert_eq!(book.sessions(&placement(2), at(1200)), 0);
    assert!(book.add(&grant(2, 2, 1200, 0)).unwrap().ended.is_some(), "no sessions: what it has is ended");
    assert_eq!(book.asked(2, 1000).unwrap_err(), "Sandbox admission grant does not permit sessions");
    let narrower = AdmissionPolicy { max_sessions: 0, ..policy() };
    book.add(&grant(3, 2, 1200, 1)).unwrap();
    let refused = book.calls(&placement(2), &narrower, at(1000)).unwrap_err();
    assert_eq!(refused.to_string(), "Sandbox admission grant exceeds the active runtime policy");
}

#[test]
fn grants_expire_in_their_order_and_records_stay() {
    let mut book = Book::default();
    let other = Placement::new("i", "w2", 1);
    book.add(&grant(1, 1, 1100, 1)).unwrap();
    book.install(other.workspace(), &grant(1, 1, 1050, 1), &policy(), at(1000), MOST).unwrap();
    assert_eq!(book.next_expiry(), Some(at(1050)));
    let expired = book.expire(at(1060));
    assert_eq!(expired.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), [other.workspace()]);
    assert_eq!(book.next_expiry(), Some(at(1100)));
    let third = Placement::new("i", "w3", 1);
    let full = book.install(third.workspace(), &grant(1, 1, 1100, 1), &policy(), at(1000), MOST);
    assert!(full.unwrap_err().to_string().contains("record capacity reached (2)"));
    assert!(book.revoke(third.workspace(), 1, MOST).is_err(), "a tombstone is a record too");
    assert_eq!(
        book.add(&grant(1, 1, 1100, 0)).unwrap_err(),
        "Sandbox admission limits changed without a new entitlement revision"
    );
}
