//! Boxes of nsjail's behind the same faces: chosen by LangBot's configuration or the operator's.

use rustix::process::Signal;
use serde_json::json;

use crate::driver::StateDir;
use crate::server::{Server, serve};
use crate::skip::{Feature, skip_without};

#[test]
fn langbots_nsjail_is_chosen_and_leaves_nothing() {
    if skip_without(&[Feature::Root, Feature::Program("nsjail")]) {
        return;
    }
    let state = StateDir::new();
    let chosen = json!({"backend": "nsjail"}).to_string();
    let server = Server::start(serve(&[], state.path()).env("LANGBOT_BOX_CONFIG", chosen));
    let result = server.exec("demo", "id -un; cat; echo kept > file");
    assert_eq!(result["stdout"], "box\n", "{result}");
    assert_eq!(server.exec("demo", "cat file")["stdout"], "kept\n");
    assert_eq!(result["backend_name"], "nsjail", "{result}");
    let (status, refused) = server.exec_with("online", &json!({"cmd": "true", "network": "on"}));
    assert!(status >= 400 && refused.to_string().contains("nsjail"), "{status} {refused}");
    server.running.signal(Signal::TERM);
    let output = server.running.finish();
    assert_eq!(output.code, 0, "{output:?}");
    assert_eq!(std::fs::read_dir(state.path().join("nsjail")).unwrap().count(), 0);
}

#[test]
fn the_operators_nsjail_is_the_only_backend() {
    if skip_without(&[Feature::Root, Feature::Program("nsjail")]) {
        return;
    }
    let state = StateDir::new();
    let server = Server::start(serve(&[], state.path()).env("SANDCRATE__RUNTIME__BACKEND", "nsjail"));
    let result = server.exec("demo", "echo x");
    assert_eq!((&result["stdout"], &result["backend_name"]), (&json!("x\n"), &json!("nsjail")), "{result}");
    assert!(!state.path().join("instances").exists(), "the native backend was opened");
    // A killed one would leave its cgroups to the next start.
    server.running.signal(Signal::TERM);
    assert_eq!(server.running.finish().code, 0);
}
