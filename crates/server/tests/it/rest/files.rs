//! Files by REST: reading, ranges, listing, moving, removing.

use reqwest::{Method, Response};
use serde_json::json;

use super::{Server, answer};

const FILES: &str = "/v1/sessions/demo/files";

async fn put(server: &Server, path: &str, data: impl Into<reqwest::Body>) -> (u16, serde_json::Value) {
    answer(server.request(Method::PUT, &format!("{FILES}{path}")).body(data)).await
}

async fn get(server: &Server, path: &str, headers: &[(&str, &str)]) -> Response {
    let request = server.request(Method::GET, &format!("{FILES}{path}"));
    headers.iter().fold(request, |request, (name, value)| request.header(*name, *value)).send().await.unwrap()
}

#[tokio::test]
async fn a_file_is_written_and_read_back() {
    let server = Server::start().await;
    server.session("demo").await;
    let made = put(&server, "/workspace/new/a%20b.txt", "0123456789").await;
    assert_eq!(made, (201, json!({"path": "/workspace/new/a b.txt", "bytes": 10})));
    assert_eq!(put(&server, "/workspace/new/a%20b.txt", "9876543210").await.0, 200, "replaced");
    let read = get(&server, "/workspace/new/a%20b.txt", &[]).await;
    assert_eq!(read.status(), 200);
    for (name, value) in [
        ("content-type", "application/octet-stream"),
        ("content-length", "10"),
        ("accept-ranges", "bytes"),
        ("content-disposition", "attachment"),
        ("x-content-type-options", "nosniff"),
        ("content-security-policy", "sandbox"),
    ] {
        assert_eq!(read.headers()[name], value);
    }
    let tag = read.headers()["etag"].to_str().unwrap().to_owned();
    assert_eq!(read.text().await.unwrap(), "9876543210");
    let again = get(&server, "/workspace/new/a%20b.txt", &[("if-none-match", &tag)]).await;
    assert_eq!(again.status(), 304);
    let head =
        server.request(Method::HEAD, &format!("{FILES}/workspace/new/a%20b.txt")).send().await.unwrap();
    assert_eq!((head.status().as_u16(), &head.headers()["content-length"]), (200, &"10".parse().unwrap()));
    assert_eq!(head.text().await.unwrap(), "");
    assert_eq!(put(&server, "/workspace/empty", "").await.0, 201);
    let empty = get(&server, "/workspace/empty", &[]).await;
    assert_eq!((empty.status().as_u16(), empty.text().await.unwrap().as_str()), (200, ""));
}

#[tokio::test]
async fn a_part_of_a_file_can_be_asked_for() {
    let server = Server::start().await;
    server.session("demo").await;
    put(&server, "/workspace/a", "0123456789").await;
    for (range, status, content_range, body) in [
        ("bytes=2-4", 206, Some("bytes 2-4/10"), "234"),
        ("bytes=8-", 206, Some("bytes 8-9/10"), "89"),
        ("bytes=-1", 206, Some("bytes 9-9/10"), "9"),
        ("bytes=5-500", 206, Some("bytes 5-9/10"), "56789"),
        ("bytes=0-1,3-4", 200, None, "0123456789"),
        ("nonsense", 200, None, "0123456789"),
    ] {
        let part = get(&server, "/workspace/a", &[("range", range)]).await;
        assert_eq!(part.status(), status, "{range}");
        let told = part.headers().get("content-range").map(|value| value.to_str().unwrap().to_owned());
        assert_eq!(told.as_deref(), content_range, "{range}");
        assert_eq!(part.text().await.unwrap(), body, "{range}");
    }
    let beyond = get(&server, "/workspace/a", &[("range", "bytes=10-")]).await;
    assert_eq!(
        (beyond.status().as_u16(), &beyond.headers()["content-range"]),
        (416, &"bytes */10".parse().unwrap())
    );
    let body: serde_json::Value = beyond.json().await.unwrap();
    assert_eq!(body["error"]["code"], "range_not_satisfiable");
    let old = get(&server, "/workspace/a", &[("range", "bytes=2-4"), ("if-range", "\"x\"")]).await;
    assert_eq!(old.status(), 200, "a weak tag never allows a part");
}

#[tokio::test]
async fn directories_are_made_listed_renamed_and_removed() {
    let server = Server::start().await;
    server.session("demo").await;
    let path = |tail: &str| format!("{FILES}{tail}");
    let made = server.post(&path("/workspace/d/e?mkdir=1"), json!({})).await;
    assert_eq!(made, (201, json!({"path": "/workspace/d/e"})));
    put(&server, "/workspace/d/b", "bb").await;
    put(&server, "/workspace/d/a", "a").await;
    let (status, list) = server.get(&path("/workspace/d?list=1")).await;
    assert_eq!((status, &list["path"]), (200, &json!("/workspace/d")));
    let entries: Vec<_> =
        list["entries"].as_array().unwrap().iter().map(|one| (&one["name"], &one["kind"])).collect();
    let (file, directory) = (json!("file"), json!("directory"));
    assert_eq!(entries, [(&json!("a"), &file), (&json!("b"), &file), (&json!("e"), &directory)]);
    let (status, entry) = server.get(&path("/workspace/d/b?stat")).await;
    assert_eq!((status, &entry["bytes"], &entry["name"]), (200, &json!(2), &json!("b")));
    let (status, root) = server.get(&path("/?list=1")).await;
    assert_eq!((status, &root["path"]), (200, &json!("/")));
    let moved = server.post(&path("/workspace/d?rename_to=/tmp/f"), json!({})).await;
    assert_eq!(moved, (200, json!({"path": "/tmp/f"})));
    assert_eq!(server.get(&path("/tmp/f/a?stat=1")).await.0, 200);
    assert_eq!(server.delete(&path("/tmp/f")).await, (200, json!({"deleted": "/tmp/f"})));
    server.refused(Method::GET, &path("/tmp/f/a"), None, 404, "file_not_found").await;
}

#[tokio::test]
async fn what_cannot_be_done_with_a_file_is_refused() {
    let server = Server::start().await;
    server.session("demo").await;
    put(&server, "/workspace/a", "a").await;
    for (method, tail, status, code) in [
        (Method::GET, "/workspace", 422, "file_failed"),
        (Method::GET, "/workspace/none", 404, "file_not_found"),
        (Method::GET, "/workspace/a?list=1", 422, "file_failed"),
        (Method::GET, "/workspace/a?stat=1&list=1", 400, "validation_error"),
        (Method::GET, "/workspace/a?lsit=1", 400, "validation_error"),
        (Method::PUT, "/workspace", 422, "file_failed"),
        (Method::PUT, "/workspace/a/b", 422, "file_failed"),
        (Method::PUT, "/workspace/b?mode=7", 400, "validation_error"),
        (Method::DELETE, "/workspace/none", 404, "file_not_found"),
        (Method::POST, "/workspace/a", 400, "validation_error"),
        (Method::POST, "/workspace/a?rename_to=b", 400, "validation_error"),
        (Method::POST, "/workspace/a?mkdir=1&rename_to=/b", 400, "validation_error"),
        (Method::POST, "/workspace/none?rename_to=/workspace/b", 404, "file_not_found"),
        (Method::GET, "/workspace/a%00b", 400, "validation_error"),
    ] {
        server.refused(method.clone(), &format!("{FILES}{tail}"), None, status, code).await;
        let nowhere = format!("/v1/sessions/none/files{tail}");
        if status != 400 {
            server.refused(method, &nowhere, None, 404, "session_not_found").await;
        }
    }
}
