use std::collections::BTreeMap;

use axum::http::HeaderValue;
use rmcp::model::{
    CallToolRequestParams, CallToolResult, ClientCapabilities, ClientConfig, ContentBlock,
    GetPromptRequestParams, Implementation, ReadResourceRequestParams,
};
use rmcp::service::{NotificationContext, RoleClient, RunningService};
use rmcp::{ClientHandler, ServiceExt};
use sandcrate_protocol::network::{Denial, DenialKind};
use tokio::sync::Notify;

use super::handler::FAILURE_KEY;
use super::*;
use crate::config::{McpConfig, Registration};
use crate::manager::Status;
use crate::manager::fake::{Fake, Script};

/// Boxes that refuse what they are told to.
#[derive(Debug, Default)]
struct Refusing(Mutex<Vec<Denial>>);

#[async_trait::async_trait]
impl Refusals for Refusing {
    async fn refused(&self, _: &str) -> Vec<Denial> {
        self.0.lock().unwrap().clone()
    }
}

const TOOLS: [&str; 5] = ["echo", "fail", "slow", "steps", "link"];

struct Case {
    manager: Manager,
    gateway: Gateway,
    refusing: Arc<Refusing>,
    running: tokio::task::JoinHandle<()>,
    fake: Arc<Fake>,
}

impl Case {
    async fn new(config: McpConfig) -> Self {
        let fake = Fake::new([Script::Serve(&TOOLS)]);
        let servers = ["a", "b"].map(|name| (name.to_owned(), Registration::new("x", [""; 0])));
        let servers = servers.into_iter().chain(config.servers.clone()).collect();
        let manager = Manager::new(fake.clone(), McpConfig { servers, ..config }, None, BTreeMap::new());
        manager.begin();
        let refusing = Arc::new(Refusing::default());
        let gateway = Gateway::new(manager.clone(), refusing.clone(), CancellationToken::new());
        let notifier = gateway.clone();
        let running = tokio::spawn(async move { notifier.run().await });
        let case = Self { manager, gateway, refusing, running, fake };
        for name in ["a", "b"] {
            case.until(|| case.manager.show(name).unwrap().runtime_info.status == Status::Connected).await;
        }
        case
    }

    async fn until(&self, holds: impl Fn() -> bool) {
        for _ in 0..100_000 {
            if holds() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("it never holds");
    }

    /// A client of the desk that a request to this scope would get.
    async fn client(&self, scope: Scope) -> RunningService<RoleClient, Ears> {
        let (ours, theirs) = tokio::io::duplex(64 << 10);
        let desk = Desk { shared: self.gateway.shared.clone(), scope };
        tokio::spawn(async move { desk.serve(theirs).await.unwrap().waiting().await });
        Ears::default().serve(ours).await.unwrap()
    }

    async fn end(self) {
        self.manager.shutdown().await;
        self.gateway.shared.end.cancel();
        self.running.await.unwrap();
    }
}

#[derive(Debug, Clone, Default)]
struct Ears {
    changed: Arc<Notify>,
    prompts_changed: Arc<Notify>,
    resources_changed: Arc<Notify>,
    progress: Arc<Mutex<Vec<f64>>>,
}

impl ClientHandler for Ears {
    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.changed.notify_one();
    }

    async fn on_prompt_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.prompts_changed.notify_one();
    }

    async fn on_resource_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.resources_changed.notify_one();
    }

    async fn on_progress(
        &self,
        params: rmcp::model::ProgressNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        self.progress.lock().unwrap().push(params.progress);
    }

    fn get_info(&self) -> ClientConfig {
        ClientConfig::new(ClientCapabilities::default(), Implementation::new("test", "1"))
    }
}

async fn names(client: &RunningService<RoleClient, Ears>) -> Vec<String> {
    client.list_all_tools().await.unwrap().into_iter().map(|tool| tool.name.into_owned()).collect()
}

async fn call(client: &RunningService<RoleClient, Ears>, name: &'static str) -> CallToolResult {
    client.call_tool(CallToolRequestParams::new(name)).await.unwrap()
}

fn said(result: &CallToolResult) -> String {
    result.content.iter().filter_map(|block| block.as_text()).map(|text| text.text.clone()).collect()
}

#[tokio::test(start_paused = true)]
async fn lists_are_merged_and_calls_go_to_the_right_server() {
    let case = Case::new(McpConfig::default()).await;
    let all = case.client(Scope::All).await;
    let expected: Vec<_> = ["a", "b"].iter().flat_map(|s| TOOLS.map(|tool| format!("{s}__{tool}"))).collect();
    assert_eq!(names(&all).await, expected);
    let one = case.client(Scope::One("b".to_owned())).await;
    assert_eq!(names(&one).await, TOOLS);
    let arguments = serde_json::json!({"x": 1}).as_object().unwrap().clone();
    for (client, name) in [(&all, "a__echo"), (&one, "echo")] {
        let params = CallToolRequestParams::new(name).with_arguments(arguments.clone());
        assert_eq!(said(&client.call_tool(params).await.unwrap()), r#"{"x":1}"#);
    }
    let failed = call(&all, "b__fail").await;
    assert_eq!((failed.is_error, said(&failed).as_str()), (Some(true), "no such thing"));
    for (client, name) in [(&all, "echo"), (&all, "c__echo"), (&all, "a__nope"), (&one, "a__echo")] {
        let error = client.call_tool(CallToolRequestParams::new(name)).await.unwrap_err().to_string();
        assert!(error.contains("not found"), "{name}: {error}");
    }
    case.end().await;
}

#[tokio::test(start_paused = true)]
async fn what_the_lists_forbid_is_neither_listed_nor_called() {
    let lists = McpConfig { deny: vec!["b".to_owned(), "a__fail".to_owned()], ..McpConfig::default() };
    let case = Case::new(lists).await;
    let all = case.client(Scope::All).await;
    assert_eq!(names(&all).await, ["a__echo", "a__slow", "a__steps", "a__link"]);
    for name in ["b__echo", "a__fail"] {
        let refused = call(&all, name).await;
        assert!(
            refused.is_error == Some(true) && said(&refused).contains("`mcp.deny` names it"),
            "{refused:?}"
        );
        assert_eq!(refused.meta.unwrap()[FAILURE_KEY]["kind"], "denied");
    }
    let one = case.client(Scope::One("b".to_owned())).await;
    assert!(names(&one).await.is_empty());
    assert!(said(&call(&one, "echo").await).contains("not allowed here"));
    case.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_call_has_its_limit_its_progress_and_its_denials() {
    let lists = McpConfig { call_timeout_sec: 7, ..McpConfig::default() };
    let case = Case::new(lists).await;
    let all = case.client(Scope::All).await;
    let late = call(&all, "a__slow").await;
    assert_eq!(said(&late), "the call took longer than 7 seconds and was cancelled");
    let facts = &late.meta.unwrap()[FAILURE_KEY];
    assert_eq!((facts["kind"].as_str(), facts["phase"].as_str()), (Some("timeout"), Some("tool_call")));

    call(&all, "a__steps").await;
    case.until(|| *all.service().progress.lock().unwrap() == [0.5]).await;

    let denial = Denial::new(DenialKind::Connect, "tcp 10.0.0.1:5432", "deny private", "allow it");
    case.refusing.0.lock().unwrap().push(denial.clone());
    let refused = call(&all, "a__fail").await;
    assert!(said(&refused).contains("The box refused tcp 10.0.0.1:5432 (deny private). allow it"));
    assert_eq!(refused.meta.unwrap()[DENIALS_KEY], serde_json::json!([denial]));
    assert_eq!(call(&all, "a__fail").await.meta, None, "it is told once");
    case.end().await;
}

#[tokio::test(start_paused = true)]
async fn clients_hear_of_what_concerns_them() {
    let case = Case::new(McpConfig::default()).await;
    let all = case.client(Scope::All).await;
    let one = case.client(Scope::One("a".to_owned())).await;
    names(&all).await;
    names(&one).await;
    case.until(|| case.gateway.shared.clients().len() == 2).await;
    case.manager.add("c", Registration::new("x", [""; 0]), false).await.unwrap();
    tokio::time::timeout(Duration::from_secs(60), all.service().changed.notified()).await.unwrap();
    case.until(|| case.manager.show("c").unwrap().runtime_info.status == Status::Connected).await;
    assert!(names(&all).await.contains(&"c__echo".to_owned()));
    let heard = tokio::time::timeout(Duration::from_secs(60), one.service().changed.notified()).await;
    assert!(heard.is_err(), "another server's coming is none of its business");
    case.manager.remove("c").await.unwrap();
    tokio::time::timeout(Duration::from_secs(60), all.service().changed.notified()).await.unwrap();
    case.manager.shutdown().await;
    tokio::time::timeout(Duration::from_secs(60), one.service().changed.notified()).await.unwrap();
    case.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_away_is_said_to_be() {
    let case = Case::new(McpConfig::default()).await;
    let all = case.client(Scope::All).await;
    case.manager.shutdown().await;
    let away = call(&all, "a__echo").await;
    assert_eq!(said(&away), "MCP session is not connected");
    assert!(names(&all).await.is_empty());
    case.end().await;
}

#[tokio::test(start_paused = true)]
async fn prompts_and_resources_are_merged_and_come_from_their_server() {
    let case = Case::new(McpConfig::default()).await;
    let all = case.client(Scope::All).await;
    let prompts: Vec<_> =
        all.list_all_prompts().await.unwrap().into_iter().map(|prompt| prompt.name).collect();
    assert_eq!(prompts, ["a__greet", "b__greet"]);
    let arguments = serde_json::json!({"name": "x"}).as_object().unwrap().clone();
    let prompt = GetPromptRequestParams::new("b__greet").with_arguments(arguments);
    let messages = all.get_prompt(prompt).await.unwrap().messages;
    assert_eq!(messages[0].content.as_text().unwrap().text, r#"hello {"name":"x"}"#);
    let embedded = serde_json::to_value(&messages[1].content).unwrap();
    assert_eq!(embedded["resource"]["uri"], "box:b/note:1");

    let uris: Vec<_> = all.list_all_resources().await.unwrap().into_iter().map(|found| found.uri).collect();
    assert_eq!(uris, ["box:a/note:1", "box:b/note:1"]);
    let templates = all.list_all_resource_templates().await.unwrap();
    assert_eq!(templates[0].uri_template, "box:a/note:{n}");
    let read = all.read_resource(ReadResourceRequestParams::new("box:a/note:1")).await.unwrap();
    assert_eq!(
        serde_json::to_value(&read.contents).unwrap(),
        serde_json::json!([{"uri": "box:a/note:1", "text": "one"}])
    );
    let linked = call(&all, "b__link").await;
    assert!(
        matches!(&linked.content[0], ContentBlock::ResourceLink(link) if link.uri == "box:b/note:1"),
        "{linked:?}"
    );

    let one = case.client(Scope::One("a".to_owned())).await;
    assert_eq!(one.list_all_prompts().await.unwrap()[0].name, "greet");
    assert_eq!(one.list_all_resources().await.unwrap()[0].uri, "note:1");
    one.read_resource(ReadResourceRequestParams::new("note:1")).await.unwrap();
    for (client, uri, why) in [
        (&all, "note:1", "Resource not found: note:1"),
        (&all, "box:c/note:1", "Server not found: c"),
        (&all, "box:a/note:2", "no \"note:2\""),
        (&one, "box:a/note:1", "no \"box:a/note:1\""),
    ] {
        let error = client.read_resource(ReadResourceRequestParams::new(uri)).await.unwrap_err().to_string();
        assert!(error.contains(why), "{uri}: {error}");
    }
    let error = all.get_prompt(GetPromptRequestParams::new("greet")).await.unwrap_err().to_string();
    assert!(error.contains("Prompt not found: greet"), "{error}");
    case.end().await;
}

#[tokio::test(start_paused = true)]
async fn prompts_and_resources_of_a_denied_server_are_not_there() {
    let lists = McpConfig { allow: vec!["a".to_owned(), "b__echo".to_owned()], ..McpConfig::default() };
    let case = Case::new(lists).await;
    let all = case.client(Scope::All).await;
    assert_eq!(all.list_all_prompts().await.unwrap().len(), 1);
    assert_eq!(all.list_all_resources().await.unwrap()[0].uri, "box:a/note:1");
    let error = all.read_resource(ReadResourceRequestParams::new("box:b/note:1")).await.unwrap_err();
    assert!(error.to_string().contains("`mcp.allow` does not name the server itself"), "{error}");
    case.end().await;
}

#[tokio::test(start_paused = true)]
async fn changes_of_prompts_and_resources_are_passed_on() {
    let case = Case::new(McpConfig::default()).await;
    let all = case.client(Scope::All).await;
    names(&all).await;
    case.until(|| case.gateway.shared.clients().len() == 1).await;
    let said = r#"{"jsonrpc":"2.0","method":"notifications/resources/list_changed"}"#.to_owned();
    case.fake.words.send_replace(vec![said]);
    for heard in [&all.service().prompts_changed, &all.service().resources_changed] {
        tokio::time::timeout(Duration::from_secs(60), heard.notified()).await.unwrap();
    }
    let tools = tokio::time::timeout(Duration::from_secs(60), all.service().changed.notified()).await;
    assert!(tools.is_err(), "the tools are the same");
    case.end().await;
}

#[test]
fn only_a_first_request_opens_a_session() {
    let headers = |pairs: &[(&'static str, &'static str)]| -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| ((*name).parse().unwrap(), HeaderValue::from_static(value)))
            .collect()
    };
    assert!(opens_session(&Method::POST, &headers(&[])));
    assert!(opens_session(&Method::POST, &headers(&[("mcp-protocol-version", "2025-06-18")])));
    assert!(!opens_session(&Method::POST, &headers(&[("mcp-protocol-version", "2026-07-28")])));
    assert!(!opens_session(&Method::POST, &headers(&[("mcp-session-id", "x")])));
    assert!(!opens_session(&Method::GET, &headers(&[])));
}
