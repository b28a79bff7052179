//! Workspaces that hold too much.

use std::path::Path;
use std::sync::Arc;

use sandcrate_host::Service;
use sandcrate_host::policy::Policy;
use sandcrate_host::skills::{Filesystem, SkillsView};
use sandcrate_host::tools::Toolbox;
use serde_json::{Value, json};

use crate::support::{Bench, path, query};

const MEBIBYTE: usize = 1 << 20;

async fn bench(quota: u64) -> (Bench, Service, std::path::PathBuf) {
    let bench = Bench::new().await;
    let workspace = bench.directory("ws");
    let local = json!({
        "default_workspace": path(&workspace),
        "allowed_mount_roots": [path(&workspace)],
        "workspace_quota_mb": quota,
    });
    let service = bench.service(local).await;
    (bench, service, workspace)
}

fn fill(workspace: &Path, name: &str, bytes: usize) {
    std::fs::File::create(workspace.join(name)).unwrap().set_len(bytes as u64).unwrap();
}

async fn run(service: &Service, command: &str) -> Result<Value, sandcrate_host::HostError> {
    service.execute_tool(&json!({"command": command}), &query(1)).await
}

#[tokio::test]
async fn test_box_service_rejects_execution_when_workspace_already_exceeds_quota() {
    let (bench, service, workspace) = bench(1).await;
    fill(&workspace, "big", MEBIBYTE + 1);
    let error = run(&service, "echo hi").await.unwrap_err();
    assert_eq!(
        error.message,
        format!(
            "workspace quota exceeded before execution: used=1048577 bytes limit=1048576 bytes host_path={} session_id=query_1",
            path(&workspace)
        )
    );
    assert_eq!(error.class(), "BoxValidationError");
    assert_eq!(bench.backend.calls().start, 0, "nothing was started");
    assert_eq!(service.recent_errors().len(), 1);
}

#[tokio::test]
async fn test_box_service_rejects_and_cleans_up_when_execution_exceeds_workspace_quota() {
    let (bench, service, workspace) = bench(1).await;
    let command = format!("grow {}/big {}", path(&workspace), 2 * MEBIBYTE);
    let error = run(&service, &command).await.unwrap_err();
    assert!(
        error.message.starts_with("workspace quota exceeded after execution: used=2097152 bytes"),
        "{error}"
    );
    assert_eq!(
        (bench.backend.calls().exec, bench.backend.sessions().len()),
        (1, 0),
        "the session is stopped"
    );
    assert_eq!(error.output.unwrap().stdout, "grown", "B7: what it wrote is not lost");
}

#[tokio::test]
async fn as_much_as_the_quota_is_not_too_much() {
    let (_bench, service, workspace) = bench(1).await;
    fill(&workspace, "exact", MEBIBYTE);
    std::fs::create_dir(workspace.join("directory")).unwrap();
    assert_eq!(run(&service, "echo hi").await.unwrap()["ok"], true);
    // Its own length counts, not what it leads to.
    std::os::unix::fs::symlink("/etc/passwd", workspace.join("directory/link")).unwrap();
    let error = run(&service, "echo hi").await.unwrap_err();
    assert!(error.message.contains("used=1048587 bytes"), "{error}");
}

/// B7: what is too full can be emptied from inside.
#[tokio::test]
async fn b7_a_plain_rm_still_runs_in_a_workspace_that_is_too_full() {
    let (_bench, service, workspace) = bench(1).await;
    fill(&workspace, "big", 3 * MEBIBYTE);
    assert_eq!(run(&service, "rm -rf /workspace/other").await.unwrap()["ok"], true);
    assert!(run(&service, "rm -rf x; echo hi").await.is_err(), "with anything else behind it, it does not");
    std::fs::remove_file(workspace.join("big")).unwrap();
    assert_eq!(run(&service, "echo hi").await.unwrap()["ok"], true);
}

/// B7: the file tools are held to the quota too, and what makes a file no longer always works.
#[tokio::test]
async fn b7_a_file_tool_does_not_write_past_the_quota() {
    let (_bench, service, workspace) = bench(1).await;
    let skills = Arc::new(SkillsView::new(Filesystem::Shared));
    let toolbox = Toolbox::new(Arc::new(service.clone()), skills, Policy::default());
    let call = async |tool: &str, arguments: Value| toolbox.call(tool, &arguments, &mut query(1)).await;
    let written = json!({"path": "/workspace/a.txt", "content": "0123456789"});
    assert_eq!(call("write", written.clone()).await.unwrap()["ok"], true);
    fill(&workspace, "rest", MEBIBYTE - 10);
    let longer = json!({"path": "/workspace/b.txt", "content": "0123456789x"});
    let error = call("write", longer).await.unwrap_err();
    assert_eq!(
        error.message,
        format!(
            "workspace quota exceeded before writing: used=1048577 bytes limit=1048576 bytes host_path={} session_id=query_1",
            path(&workspace)
        )
    );
    let edit = |new: &str| json!({"path": "/workspace/a.txt", "old_string": "9", "new_string": new});
    fill(&workspace, "rest", MEBIBYTE);
    assert_eq!(call("edit", edit("8")).await.unwrap()["ok"], true, "as long as before");
    assert!(
        call("edit", json!({"path": "/workspace/a.txt", "old_string": "0", "new_string": "00"}))
            .await
            .is_err()
    );
    assert_eq!(call("write", written).await.unwrap()["ok"], true, "instead of the same");
    assert!(!workspace.join("b.txt").exists());
}

#[tokio::test]
async fn a_quota_of_none_is_none() {
    let (_bench, service, workspace) = bench(0).await;
    fill(&workspace, "big", 50 * MEBIBYTE);
    assert_eq!(run(&service, "echo hi").await.unwrap()["ok"], true);
}
