//! What LangBot's own runtime asked of E2B's SDK in the recorded cases, and what we ask of the API for the same. Where
//! we do otherwise, the table says why.

use std::path::Path;

use sandcrate_backend::{Backend, ExecRequest, ExitStatus, Mount, MountAccess, SessionId, SessionSpec};
use sandcrate_backend_e2b::{E2bBackend, E2bConfig, E2bSettings};
use serde_json::Value;

use crate::mock::{Mock, Play};

const CASES: &str = include_str!("e2b-calls.jsonl");

/// The number of a recorded case, and where we differ from it on purpose.
const DEVIATIONS: [(u64, &str); 9] = [
    (
        2,
        "the command is not rewritten: /workspace is made in the sandbox, and /workspace2 is none of our business",
    ),
    (3, "a code other than 0 is a result"),
    (4, "the command is killed at its deadline; whether the session goes with it is the runtime's to say"),
    (5, "an error with the word timeout in it is no timeout"),
    (6, "output is not cut by the backend, and the notice is the runtime's"),
    (9, "nothing is left out without a word: .git travels, and larger files are said"),
    (11, "what is up to date does not travel again"),
    (12, "managed processes are commands without a deadline"),
    (14, "the sandbox of every session is ended once"),
];

fn case(name: &str) -> Value {
    let found = CASES.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    found.into_iter().find(|case| case["case"] == name).unwrap_or_else(|| panic!("no case {name}"))
}

/// The first call of that name in a recorded case.
fn call(case: &Value, name: &str) -> Value {
    let calls = case["calls"].as_array().unwrap();
    calls.iter().find(|call| call[0] == name).unwrap_or_else(|| panic!("no {name} in {case}"))[1].clone()
}

pub(crate) async fn open(mock: &Mock, state: &Path) -> E2bBackend {
    let operator = E2bSettings {
        api_key: Some("cfgkey".to_owned()),
        api_url: Some(mock.url.clone()),
        template: Some("tpl".to_owned()),
        ..E2bSettings::default()
    };
    let config = E2bConfig { environment: E2bSettings::default(), operator, ..E2bConfig::new(state) };
    E2bBackend::open(config).await.unwrap()
}

pub(crate) fn spec(id: &str) -> SessionSpec {
    let env = vec![("A".to_owned(), "1".to_owned())];
    SessionSpec { env, ..SessionSpec::new(SessionId::new(id).unwrap()) }
}

/// A case that is not in the table is held as it was recorded.
pub(crate) async fn every_deviation_is_of_a_recorded_case() {
    let numbers: Vec<u64> = CASES
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["n"].as_u64().unwrap())
        .collect();
    for (number, why) in DEVIATIONS {
        assert!(numbers.contains(&number) && !why.is_empty(), "{number}");
    }
}

pub(crate) async fn a_sandbox_is_asked_for_as_the_reference_does() {
    let state = tempfile::tempdir().unwrap();
    let mock = Mock::start().await;
    let backend = open(&mock, state.path()).await;
    let golden = call(&case("create-default-image"), "create");
    let mut asked = spec("e");
    asked.image = Some("rockchin/langbot-sandbox:latest".to_owned());
    let info = backend.start(asked).await.unwrap();
    assert_eq!(info.backend_id, "sbx-1");
    let made = mock.calls("POST", "/v2/sandboxes").pop().unwrap();
    assert_eq!(made["templateID"], golden["template"]);
    assert_eq!(made["envVars"], golden["envs"]);
    assert_eq!(mock.last_key().as_deref(), golden["api_key"].as_str());
    assert_eq!(made["allow_internet_access"], false, "network off is passed on");
    backend.stop(&info.id).await.unwrap();
    assert_eq!(
        mock.calls("DELETE", "/sandboxes/sbx-1").len(),
        case("delete")["calls"].as_array().unwrap().len()
    );
}

pub(crate) async fn a_command_gets_what_the_reference_gives_it_and_its_end_is_a_result() {
    let state = tempfile::tempdir().unwrap();
    let mock = Mock::start().await;
    let backend = open(&mock, state.path()).await;
    let id = backend.start(spec("e")).await.unwrap().id;
    mock.play(|start| {
        let script = start.process.args[1].clone();
        let ends = |stderr: &str, code| {
            Some(Play::Ends { stdout: b" out \n".to_vec(), stderr: stderr.as_bytes().to_vec(), code })
        };
        match script.as_str() {
            "boom" => ends("boom", 3),
            "timeout" => ends("connection timed out: timeout", 1),
            _ => ends("", 0),
        }
    });
    let golden = call(&case("exec-default"), "commands.run");
    let text = "ls /workspace && cat /workspace2/x";
    let done = backend.exec(&id, ExecRequest::shell(text)).await.unwrap().collect(1 << 20).await.unwrap();
    assert_eq!((&done.stdout[..], done.exit.status), (&b" out \n"[..], ExitStatus::Code(0)));
    let asked = mock.commands().pop().unwrap();
    assert_eq!(asked["process"]["args"][1], text, "nothing is rewritten");
    // Given to the sandbox once, and not again with every command.
    assert_eq!(mock.calls("POST", "/v2/sandboxes")[0]["envVars"]["A"], golden["envs"]["A"]);
    assert!(asked["process"]["envs"].get("A").is_none());
    assert_eq!(asked["process"]["cwd"], "/workspace");
    assert_eq!(asked["stdin"], false);
    for (text, code) in [("boom", 3), ("timeout", 1)] {
        let done = backend.exec(&id, ExecRequest::shell(text)).await.unwrap().collect(1 << 20).await.unwrap();
        assert_eq!(done.exit.status, ExitStatus::Code(code), "{text}");
        assert!(!done.exit.timed_out && !done.stderr.is_empty(), "{text}");
    }
    assert!(mock.calls("DELETE", "/sandboxes/sbx-1").is_empty(), "no command ends the sandbox");
    backend.shutdown().await;
    assert_eq!(mock.calls("DELETE", "/sandboxes/sbx-1").len(), 1);
}

pub(crate) async fn host_directories_travel_as_the_reference_has_them() {
    let (state, host) = (tempfile::tempdir().unwrap(), tempfile::tempdir_in("/var/tmp").unwrap());
    for (name, text) in [("a.txt", "1"), ("sub/b.txt", "2"), (".skills/s/b.txt", "3"), (".git/config", "4")] {
        let path = host.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let large = std::fs::File::create(host.path().join("big.bin")).unwrap();
    large.set_len(11 << 20).unwrap();
    let mock = Mock::start().await;
    let backend = open(&mock, state.path()).await;
    let mut asked = spec("h");
    asked.image = Some("my-template".to_owned());
    asked.mounts = vec![Mount::new(host.path(), "/workspace", MountAccess::ReadWrite)];
    let id = backend.start(asked).await.unwrap().id;
    // Made as the reference makes it, and told as the reference tells it.
    let golden = call(&case("create-custom-image-hostpath"), "create");
    let made = mock.calls("POST", "/v2/sandboxes").pop().unwrap();
    assert_eq!(made["templateID"], golden["template"]);
    let mounts = |text: &Value| serde_json::from_str::<Value>(text.as_str().unwrap()).unwrap();
    let (told, recorded) =
        (mounts(&made["metadata"]["host-mount"]), mounts(&golden["metadata"]["host-mount"]));
    assert_eq!(told[0]["mountPath"], recorded[0]["mountPath"]);
    assert_eq!(told[0]["readOnly"], recorded[0]["readOnly"]);
    assert_eq!(told[0]["hostPath"], host.path().to_str().unwrap());
    // Every file that the reference writes is written, and those that it leaves out too.
    let written: Vec<String> = mock.endpoint.files.lock().unwrap().keys().cloned().collect();
    let golden = case("exec-hostpath-sync");
    for call in golden["calls"].as_array().unwrap().iter().filter(|call| call[0] == "files.write") {
        let path = call[1]["path"].as_str().unwrap().replace("/home/user/workspace", "/workspace");
        assert!(written.contains(&path), "{path} is not among {written:?}");
    }
    assert!(written.contains(&"/workspace/.git/config".to_owned()), "{written:?}");
    // What comes back is written on the host, and what went is gone.
    let endpoint = std::sync::Arc::clone(&mock.endpoint);
    mock.play(move |_| {
        let mut files = endpoint.files.lock().unwrap();
        files.insert("/workspace/new.txt".to_owned(), "new".into());
        files.remove("/workspace/a.txt");
        None
    });
    let done = backend.exec(&id, ExecRequest::shell("true")).await.unwrap().collect(1 << 20).await.unwrap();
    assert_eq!(std::fs::read_to_string(host.path().join("new.txt")).unwrap(), "new");
    assert!(!host.path().join("a.txt").exists(), "a removal does not travel");
    assert!(host.path().join("big.bin").exists(), "what did not travel was removed");
    drop(done);
    backend.shutdown().await;
}

pub(crate) async fn a_read_only_directory_never_comes_back() {
    let (state, host) = (tempfile::tempdir().unwrap(), tempfile::tempdir_in("/var/tmp").unwrap());
    std::fs::write(host.path().join("a.txt"), "1").unwrap();
    let mock = Mock::start().await;
    let backend = open(&mock, state.path()).await;
    let mut asked = spec("hr");
    asked.mounts = vec![Mount::new(host.path(), "/workspace", MountAccess::ReadOnly)];
    let id = backend.start(asked).await.unwrap().id;
    let golden = call(&case("exec-hostpath-ro"), "create");
    let told = mock.calls("POST", "/v2/sandboxes").pop().unwrap();
    let read_only =
        |text: &Value| serde_json::from_str::<Value>(text.as_str().unwrap()).unwrap()[0]["readOnly"].clone();
    assert_eq!(read_only(&told["metadata"]["host-mount"]), read_only(&golden["metadata"]["host-mount"]));
    let endpoint = std::sync::Arc::clone(&mock.endpoint);
    mock.play(move |_| {
        let mut files = endpoint.files.lock().unwrap();
        files.insert("/workspace/a.txt".to_owned(), "changed".into());
        files.insert("/workspace/new.txt".to_owned(), "new".into());
        None
    });
    backend.exec(&id, ExecRequest::shell("true")).await.unwrap().collect(1 << 20).await.unwrap();
    assert_eq!(std::fs::read_to_string(host.path().join("a.txt")).unwrap(), "1");
    assert!(!host.path().join("new.txt").exists());
    backend.shutdown().await;
}
