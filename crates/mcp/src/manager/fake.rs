//! Servers by script for the tests of the manager and the gateway: what a start does is told beforehand, what was asked
//! of it can be read afterwards.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream};
use tokio::sync::watch;

use crate::{Identity, Life, Phase, PhaseError, Progress, ServerConfig, Start, Started};

/// What one start does.
#[derive(Debug, Clone)]
pub(crate) enum Script {
    Fail(Phase, &'static str),
    /// Gets nowhere.
    Hang,
    /// Closes its streams without a word.
    Mute,
    /// Speaks MCP with these tools.
    Serve(&'static [&'static str]),
}

#[derive(Debug)]
pub(crate) struct Fake {
    scripts: Mutex<VecDeque<Script>>,
    pub(crate) calls: Mutex<Vec<String>>,
    pub(crate) available: Mutex<Result<(), PhaseError>>,
    pub(crate) life: Mutex<Result<Life, PhaseError>>,
    pub(crate) clean_up: Mutex<Result<(), PhaseError>>,
    /// Lines that every server says to its client as soon as they are put here.
    pub(crate) words: watch::Sender<Vec<String>>,
    /// Streams are held open until this many ends were asked for.
    pub(crate) hang_ups: watch::Sender<u64>,
}

impl Fake {
    /// The last script is that of all later starts too.
    pub(crate) fn new(scripts: impl IntoIterator<Item = Script>) -> Arc<Self> {
        Arc::new(Self {
            scripts: Mutex::new(scripts.into_iter().collect()),
            calls: Mutex::default(),
            available: Mutex::new(Ok(())),
            life: Mutex::new(Ok(Life::Running)),
            clean_up: Mutex::new(Ok(())),
            words: watch::Sender::new(Vec::new()),
            hang_ups: watch::Sender::new(0),
        })
    }

    fn note(&self, what: String) {
        self.calls.lock().unwrap().push(what);
    }

    pub(crate) fn count(&self, what: &str) -> usize {
        self.calls.lock().unwrap().iter().filter(|call| call.starts_with(what)).count()
    }

    fn script(&self) -> Script {
        let mut scripts = self.scripts.lock().unwrap();
        if scripts.len() > 1 { scripts.pop_front().unwrap() } else { scripts.front().unwrap().clone() }
    }
}

#[async_trait]
impl Start for Fake {
    async fn availability(&self) -> Result<(), PhaseError> {
        self.available.lock().unwrap().clone()
    }

    async fn start(
        &self,
        server: &ServerConfig,
        identity: &Identity,
        progress: &dyn Progress,
    ) -> Result<Started, PhaseError> {
        self.note(format!("start {}", identity.session_id));
        progress.say(&format!("starting {}", server.command));
        if server.command == "noted" {
            progress.note("/data is not in the box");
        }
        match self.script() {
            Script::Fail(phase, text) => Err(PhaseError::new(phase, text)),
            Script::Hang => std::future::pending().await,
            Script::Mute => {
                let (ours, theirs) = tokio::io::duplex(64);
                drop(theirs);
                Ok(started(ours))
            }
            Script::Serve(tools) => {
                let (ours, theirs) = tokio::io::duplex(64 << 10);
                tokio::spawn(serve(theirs, tools, self.words.subscribe(), self.hang_ups.subscribe()));
                Ok(started(ours))
            }
        }
    }

    async fn look(&self, _: &Identity) -> Result<Life, PhaseError> {
        self.note("look".to_owned());
        self.life.lock().unwrap().clone()
    }

    async fn log(&self, identity: &Identity) -> Result<String, PhaseError> {
        Ok(format!("last words of {}\n", identity.process_id))
    }

    async fn clean_up(&self, identity: &Identity) -> Result<(), PhaseError> {
        self.note(format!("clean_up {}", identity.session_id));
        self.clean_up.lock().unwrap().clone()
    }
}

fn started(stream: DuplexStream) -> Started {
    let (reader, writer) = tokio::io::split(stream);
    Started { reader: Box::pin(reader), writer: Box::pin(writer) }
}

/// A server of the given tools, two to a page. `echo` gives its arguments back, `fail` an error result, `slow` waits
/// for a minute, `steps` reports progress, `picture` has an image, `link` names a resource.
async fn serve(
    stream: DuplexStream,
    tools: &'static [&'static str],
    mut words: watch::Receiver<Vec<String>>,
    mut hang_ups: watch::Receiver<u64>,
) {
    let (reader, mut writer) = tokio::io::split(stream);
    let mut lines = BufReader::new(reader).lines();
    let (send, mut answers) = tokio::sync::mpsc::channel::<Value>(64);
    let mut slow = tokio::task::JoinSet::new();
    loop {
        let line = tokio::select! {
            line = lines.next_line() => line,
            Some(answer) = answers.recv() => {
                let _ = writer.write_all(format!("{answer}\n").as_bytes()).await;
                continue;
            }
            _ = hang_ups.changed() => return,
            _ = words.changed() => {
                let said = words.borrow_and_update().join("\n");
                let _ = writer.write_all(format!("{said}\n").as_bytes()).await;
                continue;
            }
        };
        let Ok(Some(line)) = line else { return };
        let request: Value = serde_json::from_str(&line).unwrap();
        let Some(id) = request.get("id").cloned() else { continue };
        let params = request["params"].clone();
        let result = match request["method"].as_str().unwrap_or_default() {
            "initialize" => json!({"protocolVersion": params["protocolVersion"],
                "capabilities": {"tools": {"listChanged": true}, "prompts": {}, "resources": {}}, "serverInfo": {"name": "fake", "version": "1"}}),
            "tools/list" => page(tools, params["cursor"].as_str()),
            "prompts/list" => json!({"prompts": [{"name": "greet"}]}),
            "prompts/get" => json!({"messages": [
                {"role": "user", "content": {"type": "text", "text": format!("hello {}", params["arguments"])}},
                {"role": "user", "content": {"type": "resource", "resource": {"uri": "note:1", "text": "one"}}}]}),
            "resources/list" => json!({"resources": [{"uri": "note:1", "name": "one"}]}),
            "resources/templates/list" => {
                json!({"resourceTemplates": [{"uriTemplate": "note:{n}", "name": "note"}]})
            }
            "resources/read" if params["uri"] == "note:1" => {
                json!({"contents": [{"uri": "note:1", "text": "one"}]})
            }
            "resources/read" => {
                let error = json!({"code": -32002, "message": format!("no {}", params["uri"])});
                let answer = json!({"jsonrpc": "2.0", "id": id, "error": error});
                let _ = writer.write_all(format!("{answer}\n").as_bytes()).await;
                continue;
            }
            "tools/call" => {
                let send = send.clone();
                slow.spawn(async move {
                    if params["name"] == "steps" {
                        let token = &params["_meta"]["progressToken"];
                        let note = json!({"jsonrpc": "2.0", "method": "notifications/progress",
                            "params": {"progressToken": token, "progress": 0.5, "message": "half"}});
                        let _ = send.send(note).await;
                    }
                    let result = call(&params).await;
                    let _ = send.send(json!({"jsonrpc": "2.0", "id": id, "result": result})).await;
                });
                continue;
            }
            _ => json!({}),
        };
        let answer = json!({"jsonrpc": "2.0", "id": id, "result": result});
        let _ = writer.write_all(format!("{answer}\n").as_bytes()).await;
    }
}

fn page(tools: &[&str], cursor: Option<&str>) -> Value {
    let from: usize = cursor.map_or(0, |cursor| cursor.parse().unwrap());
    let listed: Vec<_> = tools
        .iter()
        .skip(from)
        .take(2)
        .map(|name| json!({"name": name, "inputSchema": {"type": "object", "required": ["x"]}}))
        .collect();
    let mut page = json!({"tools": listed});
    if from + 2 < tools.len() {
        page["nextCursor"] = (from + 2).to_string().into();
    }
    page
}

async fn call(params: &Value) -> Value {
    let text = |text: String| json!({"type": "text", "text": text});
    match params["name"].as_str().unwrap_or_default() {
        "fail" => json!({"isError": true, "content": [text("no such thing".to_owned())]}),
        "slow" => {
            tokio::time::sleep(Duration::from_secs(60)).await;
            json!({"content": [text("late".to_owned())]})
        }
        "link" => json!({"content": [{"type": "resource_link", "uri": "note:1", "name": "one"}]}),
        "picture" => json!({"content": [{"type": "image", "data": "aGk=", "mimeType": "image/png"}]}),
        _ => json!({"content": [text(params["arguments"].to_string())]}),
    }
}
