//! read, write and edit: results as the reference has them, bytes as they are.

use serde_json::json;

use super::files::READ_BYTES;
use super::path_tests::Bench;

#[tokio::test]
async fn a_file_is_read_and_a_directory_is_listed_by_name() {
    let mut bench = Bench::new();
    bench.client.put("/workspace/b.txt", "text ä 😀");
    bench.client.directory("/workspace/a");
    let read = bench.ok("read", json!({"path": "/workspace/b.txt"})).await;
    assert_eq!(read, json!({"ok": true, "content": "text ä 😀"}));
    let read = bench.ok("read", json!({"path": "/workspace"})).await;
    assert_eq!(read, json!({"ok": true, "content": "a\nb.txt", "is_directory": true}));
    for path in ["/workspace/none", "/workspace/none/deeper", "/workspace/b.txt/below"] {
        let read = bench.ok("read", json!({"path": path})).await;
        assert_eq!(read, json!({"ok": false, "error": format!("File not found: {path}")}));
    }
}

#[tokio::test]
async fn a_write_makes_directories_and_replaces() {
    let mut bench = Bench::new();
    for content in ["one", "two 😀"] {
        let written = bench.ok("write", json!({"path": "/workspace/a/b/c.txt", "content": content})).await;
        assert_eq!(written, json!({"ok": true, "path": "/workspace/a/b/c.txt"}));
        assert_eq!(bench.client.content("/workspace/a/b/c.txt").unwrap(), content);
    }
    let message = bench.refusal("write", json!({"path": "/workspace/a", "content": ""})).await;
    assert_eq!(message, "Path is a directory: /workspace/a");
}

#[tokio::test]
async fn an_edit_replaces_what_occurs_once() {
    let mut bench = Bench::new();
    bench.client.put("/workspace/f", "one two one");
    let arguments =
        |old: &str, new: &str| json!({"path": "/workspace/f", "old_string": old, "new_string": new});
    let edited = bench.ok("edit", arguments("two", "2")).await;
    assert_eq!(edited, json!({"ok": true, "path": "/workspace/f"}));
    assert_eq!(bench.client.content("/workspace/f").unwrap(), "one 2 one");
    for (old, error) in [
        ("three", "old_string not found in file."),
        ("one", "old_string matches 2 locations; provide a more unique string."),
        ("", "old_string matches 10 locations; provide a more unique string."),
    ] {
        assert_eq!(
            bench.ok("edit", arguments(old, "x")).await,
            json!({"ok": false, "error": error}),
            "{old}"
        );
    }
    assert_eq!(bench.client.content("/workspace/f").unwrap(), "one 2 one");
    bench.client.put("/workspace/f", "");
    bench.ok("edit", arguments("", "filled")).await;
    assert_eq!(bench.client.content("/workspace/f").unwrap(), "filled");
    for path in ["/workspace/none", "/workspace"] {
        let edited = bench.ok("edit", json!({"path": path, "old_string": "a", "new_string": "b"})).await;
        assert_eq!(edited, json!({"ok": false, "error": format!("File not found: {path}")}));
    }
}

// F3: what an edit does not mean stays byte for byte, and what is read can be given back to an edit.
#[tokio::test]
async fn an_edit_keeps_line_ends_and_bytes_that_are_no_text() {
    let mut bench = Bench::new();
    bench.client.put("/workspace/f", b"first\r\nsecond\r\n\xff\xfe\0end\r");
    let edited =
        bench.ok("edit", json!({"path": "/workspace/f", "old_string": "second", "new_string": "2nd"})).await;
    assert_eq!(edited["ok"], true);
    assert_eq!(bench.client.content("/workspace/f").unwrap(), &b"first\r\n2nd\r\n\xff\xfe\0end\r"[..]);
    let read = bench.ok("read", json!({"path": "/workspace/f"})).await;
    assert_eq!(read["content"], "first\r\n2nd\r\n\u{fffd}\u{fffd}\0end\r");
    let old = "first\r\n2nd";
    bench.ok("edit", json!({"path": "/workspace/f", "old_string": old, "new_string": "all"})).await;
    assert_eq!(bench.client.content("/workspace/f").unwrap(), &b"all\r\n\xff\xfe\0end\r"[..]);
}

// F2: more than a command's output could carry, and characters of every plane.
#[tokio::test]
async fn contents_longer_than_a_command_s_output_come_whole() {
    let mut bench = Bench::new();
    let content = "0123456789 😀\n".repeat(5000);
    bench.ok("write", json!({"path": "/workspace/long", "content": content})).await;
    let read = bench.ok("read", json!({"path": "/workspace/long"})).await;
    assert_eq!(read["content"], content);
}

// S3: what never ends, or is no file, is not read at all.
#[tokio::test]
async fn large_files_and_special_files_are_refused_clearly() {
    let mut bench = Bench::new();
    let size = usize::try_from(READ_BYTES).unwrap();
    bench.client.put("/workspace/fits", vec![b'x'; size]);
    bench.client.put("/workspace/large", vec![b'x'; size + 1]);
    bench.client.fifo("/workspace/pipe");
    let read = bench.ok("read", json!({"path": "/workspace/fits"})).await;
    assert_eq!(read["content"].as_str().unwrap().len(), size);
    let read = bench.ok("read", json!({"path": "/workspace/large"})).await;
    assert_eq!(
        read["error"],
        "File is too large: /workspace/large has 1048577 bytes, and the limit is 1048576. Use exec with head, tail \
         or sed to see a part of it."
    );
    let edited = json!({"path": "/workspace/large", "old_string": "a", "new_string": "b"});
    assert!(bench.ok("edit", edited).await["error"].as_str().unwrap().starts_with("File is too large: "));
    let read = bench.ok("read", json!({"path": "/workspace/pipe"})).await;
    assert_eq!(read, json!({"ok": false, "error": "Not a regular file: /workspace/pipe"}));
    let write = json!({"path": "/workspace/pipe", "content": "x"});
    assert_eq!(bench.refusal("write", write).await, "Not a regular file: /workspace/pipe");
}

// F9: the failure that is told is the one of the file, not of a second attempt.
#[tokio::test]
async fn a_missing_file_of_a_skill_is_told_as_that() {
    let mut bench = Bench::new();
    bench.skill("pdf").await;
    let read = bench.ok("read", json!({"path": "/workspace/.skills/pdf/none.md"})).await;
    assert_eq!(read, json!({"ok": false, "error": "File not found: /workspace/.skills/pdf/none.md"}));
}

#[tokio::test]
async fn wrong_arguments_are_named() {
    let mut bench = Bench::new();
    for (tool, arguments, message) in [
        ("read", json!({}), "argument `path` of `read` is required"),
        ("write", json!({"path": "/workspace/a"}), "argument `content` of `write` is required"),
        ("write", json!({"path": 1, "content": ""}), "argument `path` of `write` must be a string"),
        ("edit", json!({"path": "", "old_string": ""}), "argument `new_string` of `edit` is required"),
        ("glob", json!({"path": ""}), "argument `pattern` of `glob` is required"),
        ("grep", json!({"pattern": "", "flags": "i"}), "`grep` has no argument `flags`"),
        (
            "exec",
            json!({"command": "x", "timeout_sec": 0}),
            "argument `timeout_sec` of `exec` must be at least 1",
        ),
        ("exec", json!({"command": "x", "env": {"A": 1}}), "argument `env.A` of `exec` must be a string"),
        ("exec", json!({"command": "x", "image": "y"}), "`exec` has no argument `image`"),
        ("exec", json!({}), "argument `command` of `exec` is required"),
    ] {
        assert_eq!(bench.refusal(tool, arguments).await, message);
    }
}
