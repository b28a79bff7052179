//! What may differ between two runs, or between docker's machine and ours, without meaning anything.
//!
//! The whole list is here. Everything else has to be equal to the letter.

use super::json::Json;

/// The directory that the reference's machine shared.
pub(super) const THEIR_ROOT: &str = "/srv/ref/hostroot";

/// Keys whose value changes per run: it must be of the right form, then it counts as equal.
const TIMES: [&str; 5] = ["created_at", "last_used_at", "started_at", "exited_at", "updated_at"];

/// One reply of ours or theirs, as text that can be compared. `our_root` stands for their shared directory.
pub(super) fn reply(text: &str, our_root: &str) -> String {
    let text = text.trim_end_matches('\n');
    let Some(parsed) = Json::try_parse(text) else { return format!("not JSON: {text}") };
    // A reply that is not formatted as the reference's is a difference of its own.
    let formatted = if parsed.python() == text { "" } else { "formatted otherwise: " };
    format!("{formatted}{}", document(parsed, our_root).python())
}

/// The same for a document that has been read already.
pub(super) fn document(value: Json, our_root: &str) -> Json {
    walk("", value, our_root)
}

/// A plain answer: the spaces of a JSON body and the name of the only character set mean nothing.
pub(super) fn answer(status: &str, kind: &str, body: &str) -> String {
    let body = Json::try_parse(body).map_or_else(|| body.to_owned(), |parsed| parsed.python());
    format!("{status} {} {body}", kind.trim_end_matches("; charset=utf-8"))
}

fn walk(key: &str, value: Json, our_root: &str) -> Json {
    match value {
        Json::Object(pairs) => {
            let pairs = pairs.into_iter().map(|(key, value)| (key.clone(), walk(&key, value, our_root)));
            Json::Object(pairs.collect())
        }
        Json::List(items) => Json::List(items.into_iter().map(|item| walk(key, item, our_root)).collect()),
        Json::Number(_) if key == "duration_ms" => Json::Number("0".to_owned()),
        Json::Text(text) => Json::Text(match key {
            key if TIMES.contains(&key) => time(&text),
            "backend_session_id" => "<id>".to_owned(),
            // The backend's name: theirs was docker.
            "backend_name" | "name" | "backend" if text == "native" => "docker".to_owned(),
            _ => without_link(&text.replace(our_root, THEIR_ROOT)),
        }),
        other => other,
    }
}

/// RFC 3339 in UTC with microseconds, as Python prints it.
fn time(text: &str) -> String {
    let shape: String = text.chars().map(|char| if char.is_ascii_digit() { '0' } else { char }).collect();
    match shape.as_str() {
        "0000-00-00T00:00:00.000000Z" => "<time>".to_owned(),
        // Those of skills.
        "0000-00-00T00:00:00.000000+00:00" => "<time +00:00>".to_owned(),
        _ => format!("no time: {text}"),
    }
}

/// Each message of validation ends in a link to pydantic's pages, which hold its version. Ours have none.
fn without_link(text: &str) -> String {
    const LINK: &str = "\n    For further information visit https://errors.pydantic.dev/";
    let mut parts = text.split(LINK);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        out.push_str(part.find('\n').map_or("", |end| &part[end..]));
    }
    out
}

#[test]
fn only_what_is_listed_is_forgiven() {
    let ours = r#"{"backend_name": "native", "created_at": "2026-01-01T00:00:00.123456Z", "duration_ms": 7, "x": "/our/f"}"#;
    let theirs = r#"{"backend_name": "docker", "created_at": "2025-11-15T01:02:03.000000Z", "duration_ms": 80, "x": "/srv/ref/hostroot/f"}"#;
    assert_eq!(reply(ours, "/our"), reply(theirs, "/our"));
    assert_eq!(
        without_link("a\n    For further information visit https://errors.pydantic.dev/2.14/v/x\nb"),
        "a\nb"
    );
    assert!(reply(r#"{"a":1}"#, "/our").starts_with("formatted otherwise"));
    assert!(reply(r#"{"created_at": "2026-01-01T00:00:00Z"}"#, "/our").contains("no time"));
}
