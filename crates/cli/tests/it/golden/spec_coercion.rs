//! What pydantic makes of unusual fields, as far as a reply shows it.

use super::json::Json;
use super::ledger::Ledger;
use super::normalise;
use super::peer::{Server, Socket};
use crate::skip::{Feature, skip_without};

/// The fields of a spec that a session's description repeats.
const SHOWN: [&str; 11] = [
    "image",
    "network",
    "host_path",
    "host_path_mode",
    "mount_path",
    "persistent",
    "cpus",
    "memory_mb",
    "pids_limit",
    "read_only_rootfs",
    "workspace_quota_mb",
];

#[test]
fn unusual_fields_are_read_as_recorded() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let server = Server::start(&[]);
    let mut socket = Socket::rpc(server.port);
    let mut ledger = Ledger::open("spec-coercion");
    socket.call(r#"{"seq_id": 0, "action": "box_create_session", "data": {"session_id": "processes"}}"#);
    for number in ledger.numbers() {
        let vector = ledger.vector(number);
        let process = vector.at("model").text() == "BoxManagedProcessSpec";
        // Python writes the infinite as a bare word.
        let input = vector.at("input").python().replace(r#""<Infinity>""#, "Infinity");
        let request = if process {
            format!(
                r#"{{"seq_id": 1, "action": "box_start_managed_process", "data": {{"session_id": "processes", "spec": {input}}}}}"#
            )
        } else {
            format!(r#"{{"seq_id": 1, "action": "box_create_session", "data": {input}}}"#)
        };
        let reply = Json::parse(&socket.call(&request));
        let ours = match reply.at("code").python().as_str() {
            "0" => shown(reply.at("data"), process),
            _ => reply.at("message").text().to_owned(),
        };
        let theirs = match vector.get("ok") {
            Some(ok) => shown(ok, process),
            None => format!("BoxValidationError: {}", vector.at("error").text()),
        };
        let level = |text: String| normalise::document(Json::Text(text), "/nowhere").python();
        ledger.compare(number, &level(theirs), &level(ours));
        socket.call(r#"{"seq_id": 2, "action": "box_delete_session", "data": {"session_id": "s"}}"#);
    }
    ledger.finish();
}

fn shown(fields: &Json, process: bool) -> String {
    if process {
        // A description has the names of the variables, sorted.
        let env = match (fields.get("env_keys"), fields.get("env")) {
            (Some(keys), _) => keys.python(),
            (None, Some(Json::Object(pairs))) => {
                Json::List(pairs.iter().map(|(key, _)| Json::Text(key.clone())).collect()).python()
            }
            _ => String::new(),
        };
        let field = |key: &str| fields.at(key).python();
        return ["process_id", "command", "args", "cwd"].map(field).join(" ") + " " + &env;
    }
    SHOWN.map(|key| format!("{key}={}", fields.at(key).python())).join(" ")
}
