//! The dialects since LangBot 4.10.7, as `langbot-plugin` 0.7.18 and the host 4.11.2 were recorded.

use std::time::Duration;

use sandcrate_protocol::Timestamp;

use super::json::Json;
use super::ledger::Ledger;
use super::normalise;
use super::peer::{Server, Socket};
use crate::skip::{Feature, skip_without};

const INSTANCE: &str = "instance_0f3c2f";
/// Everything of the recording's machine was below it.
const THEIR_PLACE: &str = "/srv/ref07";
const MARKER: &str = ".langbot-box-volume-probe-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
/// Of the first grant that was recorded.
const FIRST_EXPIRY: &str = "2026-11-15T06:27:10.222425+00:00";
/// How the recorder cut long texts.
const CUT: &str = "<<\\u2026";
const CUT_END: &str = " chars elided by recorder\\u2026>>";

fn replay(file: &'static str, first: Option<&str>) {
    let place = tempfile::Builder::new().prefix("sandcrate-test-").tempdir().unwrap();
    let ours = place.path().to_str().unwrap();
    let default = place.path().join("data/box/default");
    std::fs::create_dir_all(&default).unwrap();
    std::fs::write(default.join(MARKER), "x".repeat(64)).unwrap();
    let server = Server::start(&[]);
    let mut socket = Socket::rpc_of(server.port, INSTANCE);
    let mut ledger = Ledger::open(file);
    if let Some(first) = first {
        let reply = socket.call(&first.replace(THEIR_PLACE, ours));
        assert!(reply.contains("\"code\": 0"), "{reply}");
    }
    let began = Timestamp::now();
    for number in ledger.numbers() {
        let vector = ledger.vector(number);
        let request = super::request(&vector, ours).replace(THEIR_PLACE, ours);
        let mut asked = |request: &str| normalise::reply(&socket.call(request), "/nowhere");
        let reply = match expiry(&vector) {
            None => asked(&request),
            // The longest that was granted ended then; its moment is the measure of the others.
            Some(then) => {
                let by = began.0 + Duration::from_secs(60);
                let by = by.duration_since(FIRST_EXPIRY.parse::<Timestamp>().unwrap().0);
                let shifted = |then: &str| python(Timestamp(then.parse::<Timestamp>().unwrap().0 + by));
                let reply = asked(&request.replace(&then, &shifted(&then)));
                // A shorter one is answered with the one that is kept.
                [then.as_str(), FIRST_EXPIRY]
                    .iter()
                    .fold(reply, |reply, then| reply.replace(&shifted(then), then))
            }
        };
        let reply = reply.replace(ours, THEIR_PLACE);
        let theirs = normalise::document(vector.at("response").clone(), "/nowhere").python();
        let reply = cut_alike(&theirs, reply);
        ledger.compare(number, &theirs, &reply);
    }
    ledger.finish();
}

/// When a grant of a request ends.
fn expiry(vector: &Json) -> Option<String> {
    vector.at("request").at("data").get("expires_at").map(|time| time.text().to_owned())
}

/// As Python prints a moment.
fn python(time: Timestamp) -> String {
    format!("{}+00:00", time.to_string().trim_end_matches('Z'))
}

/// A long text that agrees in its ends and its length is shown as the recorder shows it.
fn cut_alike(theirs: &str, ours: String) -> String {
    let Some((head, rest)) = theirs.split_once(CUT) else { return ours };
    let Some((count, tail)) = rest.split_once(CUT_END) else { return ours };
    let count: usize = count.parse().unwrap();
    let between = ours.strip_prefix(head).and_then(|rest| rest.strip_suffix(tail)).map(str::len);
    // A control character is six characters of JSON.
    if between == Some(count) || between == Some(6 * count) { theirs.to_owned() } else { ours }
}

#[test]
fn the_client_0_7_18_is_answered_as_recorded() {
    if skip_without(&[Feature::Box, Feature::Root, Feature::Cgroups]) {
        return;
    }
    replay("current-ws", None);
}

#[test]
fn the_host_4_11_2_is_answered_as_recorded() {
    if skip_without(&[Feature::Box, Feature::Root, Feature::Cgroups]) {
        return;
    }
    replay("current-host", None);
}

#[test]
fn grants_are_answered_as_recorded() {
    if skip_without(&[Feature::Box, Feature::Root, Feature::Cgroups]) {
        return;
    }
    let first = format!(
        r#"{{"seq_id": 0, "action": "box_init", "data": {{"local": {{"host_root": "{THEIR_PLACE}/data/box"}}, "admission": {{"required": true}}}}}}"#
    );
    replay("current-admission", Some(&first));
}

#[test]
fn cut_texts_agree_by_their_ends_and_their_length() {
    let theirs = format!("ab{CUT}3{CUT_END}yz");
    assert_eq!(cut_alike(&theirs, "abXXXyz".to_owned()), theirs);
    assert_eq!(cut_alike(&theirs, "abXXXXyz".to_owned()), "abXXXXyz");
}
