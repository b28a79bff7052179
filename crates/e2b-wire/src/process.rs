//! `process.Process`: programs in a sandbox.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::json::{Base64, null_is_default};
pub use crate::signal::{Details, LimitHit, Signal, signal_of, status_of_code, status_of_signal};

/// Before the name of a method.
pub const SERVICE: &str = "/process.Process/";

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PtySize {
    pub cols: u32,
    pub rows: u32,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pty {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<PtySize>,
}

/// A program and what it gets.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessConfig {
    pub cmd: String,
    #[serde(deserialize_with = "null_is_default")]
    pub args: Vec<String>,
    #[serde(deserialize_with = "null_is_default")]
    pub envs: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
}

/// Which process is meant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Selector {
    Pid(u32),
    Tag(String),
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StartRequest {
    pub process: ProcessConfig,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pty: Option<Pty>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Absent: it has one, as before there was this field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdin: Option<bool>,
}

/// Of `Connect` and `CloseStdin`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SelectRequest {
    pub process: Selector,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpdateRequest {
    pub process: Selector,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pty: Option<Pty>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Input {
    Stdin(Base64),
    Pty(Base64),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendInputRequest {
    pub process: Selector,
    pub input: Input,
}

/// A message of the stream that `StreamInput` takes; the first is a `Start`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StreamInputRequest {
    Start(SelectRequest),
    Data(StreamedInput),
    Keepalive(Empty),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamedInput {
    pub input: Input,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SendSignalRequest {
    pub process: Selector,
    #[serde(default)]
    pub signal: Signal,
    /// With a signal to terminate, between two of our own kind: what is left of the program's tree is killed when
    /// the program has ended, or this time is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_ms: Option<u64>,
}

/// A message without fields.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Empty {}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessInfo {
    #[serde(default)]
    pub config: ProcessConfig,
    #[serde(default)]
    pub pid: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListResponse {
    #[serde(default)]
    pub processes: Vec<ProcessInfo>,
}

/// What a stream of `Start` or `Connect` tells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ProcessEvent {
    /// The first.
    Start(Started),
    Data(Output),
    /// The last.
    End(Ended),
    Keepalive(Empty),
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Started {
    pub pid: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Output {
    Stdout(Base64),
    Stderr(Base64),
    Pty(Base64),
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Ended {
    pub exit_code: i32,
    /// By itself, not by a signal.
    pub exited: bool,
    /// For people: `exit status 1`, `signal: killed`.
    pub status: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Between two of our own kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandcrate: Option<Box<Details>>,
}

/// A message of the streams of `Start` and `Connect`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventResponse {
    pub event: ProcessEvent,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_start_is_read_as_the_sdks_send_it() {
        let sent = json!({
            "process": {"cmd": "/bin/bash", "args": ["-l", "-c", "echo hi"], "envs": {"A": "b"}, "cwd": "/tmp"},
            "pty": {"size": {"cols": 80, "rows": 24}}, "stdin": false, "someday": 1,
        });
        let read: StartRequest = serde_json::from_value(sent).unwrap();
        assert_eq!(read.process.args, ["-l", "-c", "echo hi"]);
        assert_eq!(read.pty, Some(Pty { size: Some(PtySize { cols: 80, rows: 24 }) }));
        assert_eq!((read.stdin, read.tag), (Some(false), None));
        // protobuf leaves defaults out.
        assert_eq!(serde_json::from_value::<StartRequest>(json!({})).unwrap(), StartRequest::default());
    }

    #[test]
    fn one_of_several_is_one_key() {
        let events = [
            (ProcessEvent::Start(Started { pid: 7 }), json!({"start": {"pid": 7}})),
            (ProcessEvent::Data(Output::Stdout("hi".into())), json!({"data": {"stdout": "aGk="}})),
            (ProcessEvent::Keepalive(Empty {}), json!({"keepalive": {}})),
            (
                ProcessEvent::End(Ended {
                    exit_code: 1,
                    exited: true,
                    status: "exit status 1".into(),
                    ..Ended::default()
                }),
                json!({"end": {"exitCode": 1, "exited": true, "status": "exit status 1"}}),
            ),
        ];
        for (event, json) in events {
            assert_eq!(serde_json::to_value(&event).unwrap(), json);
            assert_eq!(serde_json::from_value::<ProcessEvent>(json).unwrap(), event);
        }
        let ended: ProcessEvent = serde_json::from_value(json!({"end": {"exited": true}})).unwrap();
        assert_eq!(ended, ProcessEvent::End(Ended { exited: true, ..Ended::default() }));
    }

    #[test]
    fn a_signal_is_told_by_its_name() {
        let sent = json!({"process": {"pid": 3}, "signal": "SIGNAL_SIGKILL"});
        let read: SendSignalRequest = serde_json::from_value(sent).unwrap();
        assert_eq!(
            read,
            SendSignalRequest { process: Selector::Pid(3), signal: Signal::Kill, grace_ms: None }
        );
        assert!(serde_json::from_value::<SendSignalRequest>(json!({"signal": "SIGNAL_SIGKILL"})).is_err());
    }

    #[test]
    fn streamed_input_names_its_process_first() {
        for (message, json) in [
            (
                StreamInputRequest::Start(SelectRequest { process: Selector::Tag("t".into()) }),
                json!({"start": {"process": {"tag": "t"}}}),
            ),
            (
                StreamInputRequest::Data(StreamedInput { input: Input::Pty("a".into()) }),
                json!({"data": {"input": {"pty": "YQ=="}}}),
            ),
        ] {
            assert_eq!(serde_json::to_value(&message).unwrap(), json);
            assert_eq!(serde_json::from_value::<StreamInputRequest>(json).unwrap(), message);
        }
    }
}
