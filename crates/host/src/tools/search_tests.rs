//! glob and grep: what they find, where they stop, and where they never go.

use serde_json::json;

use super::fake::lock;
use super::path_tests::Bench;

#[tokio::test]
async fn glob_gives_the_newest_first() {
    let mut bench = Bench::new();
    for path in ["/workspace/old.py", "/workspace/src/mid.py", "/workspace/x.txt", "/workspace/new.py"] {
        bench.client.put(path, "");
    }
    let found = bench.ok("glob", json!({"pattern": "*.py"})).await;
    let matches = ["/workspace/new.py", "/workspace/src/mid.py", "/workspace/old.py"];
    assert_eq!(found, json!({"ok": true, "matches": matches, "total": 3, "truncated": false}));
    let found = bench.ok("glob", json!({"pattern": "src"})).await;
    assert_eq!(found["matches"], json!(["/workspace/src"]));
    for path in ["/workspace/none", "/workspace/x.txt"] {
        let found = bench.ok("glob", json!({"pattern": "*", "path": path})).await;
        assert_eq!(found, json!({"ok": false, "error": format!("Path is not a directory: {path}")}));
    }
}

#[tokio::test]
async fn glob_gives_a_hundred_and_says_how_many_there_are() {
    let mut bench = Bench::new();
    for n in 0..100 {
        bench.client.put(&format!("/workspace/{n}"), "");
    }
    let found = bench.ok("glob", json!({"pattern": "*"})).await;
    assert_eq!((found["total"].as_u64(), &found["truncated"]), (Some(100), &json!(false)));
    bench.client.put("/workspace/one more", "");
    let found = bench.ok("glob", json!({"pattern": "*"})).await;
    assert_eq!((found["total"].as_u64(), &found["truncated"]), (Some(101), &json!(true)));
    assert_eq!(found["matches"].as_array().unwrap().len(), 100);
    assert_eq!(found["matches"][0], "/workspace/one more");
}

#[tokio::test]
async fn grep_gives_lines_counted_from_one_and_trimmed_at_their_end() {
    let mut bench = Bench::new();
    bench.client.put("/workspace/a.py", "x\n  needle one  \r\nneedle");
    bench.client.put("/workspace/b.txt", "needle");
    let found = bench.ok("grep", json!({"pattern": "need.e", "include": "*.py"})).await;
    let matches = json!([
        {"file": "/workspace/a.py", "line": 2, "content": "  needle one"},
        {"file": "/workspace/a.py", "line": 3, "content": "needle"},
    ]);
    assert_eq!(found, json!({"ok": true, "matches": matches, "total": 2, "truncated": false}));
    // F2: without `include` everything is searched.
    for include in [json!(null), json!("")] {
        let found = bench.ok("grep", json!({"pattern": "needle", "include": include})).await;
        assert_eq!(found["total"], 3);
    }
    let found = bench.ok("grep", json!({"pattern": "$"})).await;
    assert_eq!(found["total"], 4, "a newline at the end begins no line");
}

// F6: a file is reported by its path.
#[tokio::test]
async fn grep_in_one_file_reports_that_file() {
    let mut bench = Bench::new();
    bench.client.put("/workspace/build/a.txt", "needle");
    let found = bench.ok("grep", json!({"pattern": "needle", "path": "/workspace/build/a.txt"})).await;
    assert_eq!(found["matches"], json!([{"file": "/workspace/build/a.txt", "line": 1, "content": "needle"}]));
    let found = bench.ok("grep", json!({"pattern": "needle", "path": "/workspace/none"})).await;
    assert_eq!(found, json!({"ok": false, "error": "Path not found: /workspace/none"}));
}

#[tokio::test]
async fn a_wrong_expression_is_told_before_the_path() {
    let mut bench = Bench::new();
    let found = bench.ok("grep", json!({"pattern": "(", "path": "/elsewhere"})).await;
    assert!(found["error"].as_str().unwrap().starts_with("Invalid regex: "), "{found}");
    let found = bench.ok("grep", json!({"pattern": r"\w{1000}{1000}"})).await;
    assert!(found["error"].as_str().unwrap().starts_with("Invalid regex: "), "{found}");
}

#[tokio::test]
async fn grep_stops_at_two_hundred_lines_and_five_thousand_files() {
    let mut bench = Bench::new();
    bench.client.put("/workspace/a", "needle\n".repeat(199));
    let found = bench.ok("grep", json!({"pattern": "needle"})).await;
    assert_eq!((found["total"].as_u64(), &found["truncated"]), (Some(199), &json!(false)));
    bench.client.put("/workspace/b", "needle\nneedle");
    let found = bench.ok("grep", json!({"pattern": "needle"})).await;
    assert_eq!((found["total"].as_u64(), &found["truncated"]), (Some(200), &json!(true)));
    for n in 0..5001 {
        bench.client.put(&format!("/workspace/many/{n:04}"), "");
    }
    lock(&bench.client.calls).clear();
    let found = bench.ok("grep", json!({"pattern": "absent", "path": "/workspace/many"})).await;
    assert_eq!((found["total"].as_u64(), &found["truncated"]), (Some(0), &json!(true)));
    let read = lock(&bench.client.calls).iter().filter(|call| call.starts_with("read ")).count();
    assert_eq!(read, 5000);
}

#[tokio::test]
async fn grep_passes_over_bytes_that_are_no_text_and_cuts_long_lines() {
    let mut bench = Bench::new();
    bench.client.put("/workspace/a", b"nee\xffdle\n\0\n");
    let found = bench.ok("grep", json!({"pattern": "^needle$"})).await;
    assert_eq!(found["matches"][0]["content"], "needle");
    bench.client.put("/workspace/a", "ä".repeat(5000));
    let found = bench.ok("grep", json!({"pattern": "ä"})).await;
    assert_eq!(found["matches"][0]["content"].as_str().unwrap().chars().count(), 2003);
}

// F4: only directories below the one that is searched are left out by name.
#[tokio::test]
async fn directories_of_tools_are_skipped_below_the_base_only() {
    let mut bench = Bench::new();
    bench.client.put("/workspace/build/dist/a.txt", "needle");
    for name in [".git", "node_modules", "__pycache__", ".venv", "venv", ".tox", "dist", "build"] {
        bench.client.put(&format!("/workspace/build/dist/x/{name}/a.txt"), "needle");
    }
    let base = "/workspace/build/dist";
    let found = bench.ok("glob", json!({"pattern": "*.txt", "path": base})).await;
    assert_eq!(found["matches"], json!(["/workspace/build/dist/a.txt"]));
    let found = bench.ok("grep", json!({"pattern": "needle", "path": base})).await;
    assert_eq!(found["total"], 1);
    assert_eq!(bench.ok("glob", json!({"pattern": "*"})).await["total"], 0);
}

// S1: a link in the tree is neither read nor entered; its name may be known.
#[tokio::test]
async fn walks_go_through_no_link() {
    let mut bench = Bench::new();
    bench.client.put("/etc/passwd", "root:secret");
    bench.client.put("/workspace/a", "plain");
    bench.client.link("/workspace/file", "/etc/passwd");
    bench.client.link("/workspace/x", "/etc");
    bench.client.link("/workspace/loop", "/workspace");
    let found = bench.ok("grep", json!({"pattern": "secret|plain"})).await;
    assert_eq!(found["matches"], json!([{"file": "/workspace/a", "line": 1, "content": "plain"}]));
    let found = bench.ok("glob", json!({"pattern": "x/*"})).await;
    assert_eq!(found["total"], 0);
    let found = bench.ok("glob", json!({"pattern": "**"})).await;
    assert_eq!(found["total"], 4);
    for call in lock(&bench.client.calls).iter().filter(|call| !call.starts_with("stat ")) {
        assert!(["list /workspace", "read /workspace/a"].contains(&call.as_str()), "{call}");
    }
}

// S2: neither a pattern nor an include leads out of the base.
#[tokio::test]
async fn patterns_cannot_name_parents() {
    let mut bench = Bench::new();
    bench.client.put("/secret.txt", "secret");
    bench.client.link("/workspace/dlink", "/workspace");
    for pattern in ["../secret.txt", "dlink/../../../secret.txt", ".."] {
        let message = bench.refusal("glob", json!({"pattern": pattern})).await;
        assert_eq!(message, "Pattern must not contain \"..\".");
        let message = bench.refusal("grep", json!({"pattern": "secret", "include": pattern})).await;
        assert_eq!(message, "Pattern must not contain \"..\".");
    }
    let message = bench.refusal("glob", json!({"pattern": "/etc/*"})).await;
    assert_eq!(message, "Non-relative patterns are unsupported");
}

// Packages have rules of their own, so a search of the workspace does not pass through them.
#[tokio::test]
async fn a_search_of_the_workspace_leaves_packages_of_skills_alone() {
    let mut bench = Bench::new();
    bench.skill("pdf").await;
    bench.client.put("/workspace/own/.skills/a", "# pdf");
    let found = bench.ok("grep", json!({"pattern": "# pdf"})).await;
    assert_eq!(found["matches"][0]["file"], "/workspace/own/.skills/a");
    assert_eq!(found["total"], 1);
}
