//! What an agent is shown of a command's output.

use std::sync::Arc;

use sandcrate_host::Service;
use serde_json::{Value, json};

use crate::mock::MockClient;
use crate::support::query;

async fn shown(stdout: &str, stderr: &str, limit: usize) -> Value {
    let client = MockClient { output: (stdout.to_owned(), stderr.to_owned()), ..MockClient::default() };
    let service = Service::builder().client(Arc::new(client)).output_limit_chars(limit).build().unwrap();
    service.initialize().await;
    service.execute_tool(&json!({"command": "x"}), &query(1)).await.unwrap()
}

#[tokio::test]
async fn test_truncate_short_output_unchanged() {
    let result = shown("hello", "", 100).await;
    assert_eq!((&result["stdout"], &result["stdout_truncated"]), (&json!("hello"), &json!(false)));
}

#[tokio::test]
async fn test_truncate_preserves_head_and_tail() {
    let text = format!("{}{}{}", "A".repeat(60), "B".repeat(400), "C".repeat(60));
    let result = shown(&text, "", 100).await;
    let cut = result["stdout"].as_str().unwrap();
    assert!(cut.starts_with("AAA") && cut.ends_with("CCC"), "{cut}");
    assert!(cut.contains("[458 characters truncated]"), "{cut}");
    assert_eq!(cut.chars().count(), 100);
    assert_eq!(result["stdout_truncated"], true);
}

#[tokio::test]
async fn test_truncate_at_exact_limit_not_truncated() {
    let text = "é".repeat(100);
    let result = shown(&text, "", 100).await;
    assert_eq!((&result["stdout"], &result["stdout_truncated"]), (&json!(text), &json!(false)));
}

#[tokio::test]
async fn test_truncate_stderr_independently() {
    let result = shown("short", &"E".repeat(200), 100).await;
    assert_eq!((&result["stdout_truncated"], &result["stderr_truncated"]), (&json!(false), &json!(true)));
    assert_eq!(result["stderr"].as_str().unwrap().chars().count(), 100);
}

#[tokio::test]
async fn a_result_has_all_its_keys_always() {
    let result = shown("", "", 100).await;
    let keys: Vec<&String> = result.as_object().unwrap().keys().collect();
    let mut expected = [
        "session_id",
        "backend",
        "status",
        "ok",
        "exit_code",
        "stdout",
        "stderr",
        "stdout_truncated",
        "stderr_truncated",
        "duration_ms",
    ];
    expected.sort_unstable();
    assert_eq!(keys, expected);
    assert_eq!((&result["status"], &result["ok"]), (&json!("completed"), &json!(true)));
}
