//! Conversations with the server, line by line, as a client on pipes has them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, Lines, ReadHalf, WriteHalf, split};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::fake::FakeBoxes;
use super::{BoxServer, LinesError, serve_lines};

struct Client {
    lines: Lines<BufReader<ReadHalf<DuplexStream>>>,
    writer: WriteHalf<DuplexStream>,
    serving: JoinHandle<Result<(), LinesError>>,
}

impl Client {
    fn connect(boxes: &Arc<FakeBoxes>) -> Self {
        let (ours, theirs) = tokio::io::duplex(1 << 20);
        let (reader, writer) = split(theirs);
        let server = BoxServer::new(Arc::clone(boxes) as _, "s");
        let serving = tokio::spawn(serve_lines(server, reader, writer, CancellationToken::new()));
        let (reader, writer) = split(ours);
        Self { lines: BufReader::new(reader).lines(), writer, serving }
    }

    async fn open(boxes: &Arc<FakeBoxes>) -> (Self, Value) {
        let mut client = Self::connect(boxes);
        let params = json!({
            "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"},
        });
        let answer = client.ask(0, "initialize", params).await;
        client.send(json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await;
        (client, answer["result"].clone())
    }

    async fn send(&mut self, message: Value) {
        self.writer.write_all(format!("{message}\n").as_bytes()).await.unwrap();
    }

    async fn next(&mut self) -> Value {
        let line = tokio::time::timeout(Duration::from_secs(20), self.lines.next_line()).await;
        serde_json::from_str(&line.expect("an answer in time").unwrap().expect("an answer")).unwrap()
    }

    async fn ask(&mut self, id: u64, method: &str, params: Value) -> Value {
        self.send(json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})).await;
        loop {
            let message = self.next().await;
            if message["id"] == id {
                return message;
            }
        }
    }

    async fn call(&mut self, id: u64, tool: &str, arguments: Value) -> Value {
        self.ask(id, "tools/call", json!({"name": tool, "arguments": arguments})).await
    }
}

#[tokio::test]
async fn a_client_is_told_what_there_is() {
    let boxes = Arc::new(FakeBoxes::new());
    let (mut client, opened) = Client::open(&boxes).await;
    assert_eq!(opened["serverInfo"]["name"], "sandcrate");
    assert_eq!(opened["protocolVersion"], "2025-06-18");
    assert!(opened["instructions"].as_str().unwrap().contains("/workspace"));
    assert_eq!(opened["capabilities"], json!({"tools": {}, "resources": {}}));
    let tools = client.ask(1, "tools/list", json!({})).await;
    let tools = tools["result"]["tools"].as_array().unwrap().clone();
    assert_eq!(tools.len(), 8);
    assert_eq!(tools[0]["inputSchema"]["required"], json!(["command"]));
    assert_eq!(tools[1]["annotations"]["readOnlyHint"], true);
    let templates = client.ask(2, "resources/templates/list", json!({})).await;
    assert_eq!(templates["result"]["resourceTemplates"][0]["uriTemplate"], "sandcrate://s/workspace/{+path}");
}

#[tokio::test]
async fn failures_are_results_and_misuse_is_an_error() {
    let boxes = Arc::new(FakeBoxes::new());
    let (mut client, _) = Client::open(&boxes).await;
    let fine = client.call(1, "exec", json!({"command": "hi"})).await;
    assert_eq!(fine["result"]["isError"], false);
    assert_eq!(fine["result"]["structuredContent"]["exit_code"], 0);
    let failed = client.call(2, "exec", json!({"command": "exit 3"})).await;
    assert_eq!(failed["result"]["isError"], true);
    assert_eq!(failed["result"]["structuredContent"]["exit_code"], 3);
    let wrong = client.call(3, "exec", json!({})).await;
    assert_eq!(wrong["result"]["isError"], true);
    let text = wrong["result"]["content"][0]["text"].as_str().unwrap();
    assert!(text.contains("`command`") && text.contains("Correct"), "{text}");
    let unknown = client.call(4, "shell", json!({})).await;
    assert_eq!(unknown["error"]["code"], -32602);
    assert!(unknown["error"]["message"].as_str().unwrap().contains("there are exec, read"));
    let shapeless = client.ask(5, "tools/call", json!({"name": "exec", "arguments": "ls"})).await;
    assert!(shapeless["error"]["code"].is_i64(), "{shapeless}");
    let method = client.ask(6, "no/such", json!({})).await;
    assert_eq!(method["error"]["code"], -32601);
    let stray = client.call(7, "session_reset", json!({"force": true})).await;
    assert_eq!(stray["result"]["isError"], true);
    assert!(boxes.resets.lock().unwrap().is_empty());
    let reset = client.call(8, "session_reset", json!({})).await;
    assert_eq!(reset["result"]["structuredContent"], json!({"ok": true, "session": "s", "existed": true}));
    let listed = client.call(9, "session_list", json!({})).await;
    assert_eq!(listed["result"]["structuredContent"]["sessions"][0]["session"], "s");
}

#[tokio::test]
async fn a_cancelled_call_ends_alone() {
    let boxes = Arc::new(FakeBoxes::new());
    let (mut client, _) = Client::open(&boxes).await;
    for id in [1, 2] {
        let params = json!({"name": "exec", "arguments": {"command": "forever"}});
        client.send(json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})).await;
    }
    let until = |count| {
        let boxes = Arc::clone(&boxes);
        async move {
            let reached = async {
                while boxes.running.load(Ordering::SeqCst) != count {
                    tokio::task::yield_now().await;
                }
            };
            tokio::time::timeout(Duration::from_secs(20), reached).await.expect("the calls that should run");
        }
    };
    until(2).await;
    let cancelled =
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}});
    client.send(cancelled).await;
    until(1).await;
    let other = client.call(3, "exec", json!({"command": "hi"})).await;
    assert_eq!(other["result"]["isError"], false);
    assert_eq!(boxes.running.load(Ordering::SeqCst), 1, "the other goes on");
    drop(client.writer);
    drop(client.lines);
    client.serving.await.unwrap().unwrap();
    until(0).await;
}

#[tokio::test(start_paused = true)]
async fn a_long_call_is_reported_to_who_asks_for_it() {
    let boxes = Arc::new(FakeBoxes::new());
    let (mut client, _) = Client::open(&boxes).await;
    let params = json!({
        "name": "exec", "arguments": {"command": "forever", "timeout_sec": 60}, "_meta": {"progressToken": "p"},
    });
    client.send(json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})).await;
    let (first, second) = (client.next().await, client.next().await);
    for word in [&first, &second] {
        assert_eq!(word["method"], "notifications/progress");
        assert_eq!((&word["params"]["progressToken"], &word["params"]["total"]), (&json!("p"), &json!(60.0)));
    }
    let seconds = |word: &Value| word["params"]["progress"].as_f64().unwrap();
    assert!(seconds(&second) > seconds(&first));
}

#[tokio::test]
async fn a_client_that_says_nothing_and_goes_is_no_error() {
    let boxes = Arc::new(FakeBoxes::new());
    let client = Client::connect(&boxes);
    drop((client.lines, client.writer));
    client.serving.await.unwrap().unwrap();
}
