//! Skills by REST: made, changed, their files byte for byte, archives in and out.

use reqwest::Method;
use serde_json::{Value, json};

use super::{Server, answer};

async fn send(server: &Server, method: Method, path: &str, body: impl Into<reqwest::Body>) -> (u16, Value) {
    answer(server.request(method, path).body(body)).await
}

async fn bytes(server: &Server, path: &str) -> Vec<u8> {
    let answer = server.request(Method::GET, path).send().await.unwrap();
    assert_eq!(answer.status(), 200, "{path}");
    answer.bytes().await.unwrap().to_vec()
}

#[tokio::test]
async fn a_skill_is_made_changed_and_deleted() {
    let server = Server::start().await;
    let (status, made) =
        server.post("/v1/skills", json!({"name": "pdf", "description": "d", "instructions": "b\n"})).await;
    assert_eq!((status, &made["name"], &made["instructions"]), (201, &json!("pdf"), &json!("b\n")));
    let (status, again) = server.post("/v1/skills", json!({"name": "pdf"})).await;
    assert_eq!((status, &again["error"]["code"]), (409, &json!("skill_conflict")));
    let (status, changed) = send(&server, Method::PATCH, "/v1/skills/pdf", r#"{"description": "new"}"#).await;
    assert_eq!(
        (status, &changed["description"], &changed["instructions"]),
        (200, &json!("new"), &json!("b\n"))
    );
    let (_, listed) = server.get("/v1/skills").await;
    assert_eq!(listed["skills"][0]["description"], "new");
    let (status, gone) = send(&server, Method::DELETE, "/v1/skills/pdf", "").await;
    assert_eq!((status, gone), (200, json!({"deleted": "pdf"})));
    let (status, missing) = server.get("/v1/skills/pdf").await;
    assert_eq!((status, &missing["error"]["code"]), (404, &json!("skill_not_found")));
}

#[tokio::test]
async fn what_is_wrong_is_named() {
    let server = Server::start().await;
    for (body, field) in [
        (json!({"name": "a b"}), "name"),
        (json!({"name": "x", "descripton": "y"}), "descripton"),
        (json!({"name": 5}), "name"),
    ] {
        let (status, refused) = server.post("/v1/skills", body).await;
        assert_eq!((status, &refused["error"]["field"]), (400, &json!(field)), "{refused}");
    }
    // S9, AP-25: no directory of the host is had by naming it.
    for path in ["/etc", "/root", "/nope"] {
        for (route, body) in [
            ("/v1/skill-scans", json!({"path": path})),
            ("/v1/skills", json!({"name": "x", "package_root": path})),
        ] {
            let (status, refused) = server.post(route, body).await;
            assert_eq!((status, &refused["error"]["code"]), (403, &json!("denied")), "{path}: {refused}");
        }
    }
}

#[tokio::test]
async fn files_are_byte_exact_and_a_late_writer_is_told() {
    let server = Server::start().await;
    server.post("/v1/skills", json!({"name": "s"})).await;
    let at = "/v1/skills/s/files/sub/data.bin";
    let content = b"a\r\nb\0\xff".to_vec();
    assert_eq!(
        send(&server, Method::PUT, at, content.clone()).await,
        (201, json!({"path": "sub/data.bin", "bytes_written": 6}))
    );
    let read = server.request(Method::GET, at).send().await.unwrap();
    let tag = read.headers()["etag"].to_str().unwrap().to_owned();
    assert_eq!(read.bytes().await.unwrap(), content);
    let put = |content: &'static str| server.request(Method::PUT, at).header("if-match", &tag).body(content);
    assert_eq!(answer(put("first")).await.0, 200);
    let (status, late) = answer(put("second")).await;
    assert_eq!((status, &late["error"]["code"]), (409, &json!("skill_conflict")));
    assert_eq!(bytes(&server, at).await, b"first");
    let (_, listing) = server.get("/v1/skills/s/files?path=sub").await;
    assert_eq!(
        listing["entries"][0],
        json!({"path": "sub/data.bin", "name": "data.bin", "is_dir": false, "size": 5})
    );
    for (path, status) in [("..%2Fx", 400), ("%2Fetc%2Fpasswd", 400), ("none", 404)] {
        assert_eq!(server.get(&format!("/v1/skills/s/files/{path}")).await.0, status, "{path}");
    }
    let large = vec![0; (4 << 20) + 1];
    let (status, refused) = send(&server, Method::PUT, at, large).await;
    assert_eq!((status, &refused["error"]["code"]), (413, &json!("body_too_large")));
}

#[tokio::test]
async fn archives_come_in_and_go_out() {
    let server = Server::start().await;
    server.post("/v1/skills", json!({"name": "one", "instructions": "text"})).await;
    send(&server, Method::PUT, "/v1/skills/one/files/a/b.txt", "1").await;
    let zip = bytes(&server, "/v1/skills/one/archive").await;
    let (status, refused) =
        send(&server, Method::POST, "/v1/skill-archives?filename=two.zip", zip.clone()).await;
    assert_eq!((status, &refused["error"]["code"]), (409, &json!("skill_conflict")), "K2: {refused}");
    let (status, seen) =
        send(&server, Method::POST, "/v1/skill-archives?preview=1&filename=two.zip", zip.clone()).await;
    assert_eq!((status, &seen["skills"][0]["source_path"]), (200, &json!("")));
    send(&server, Method::DELETE, "/v1/skills/one", "").await;
    let (status, made) =
        send(&server, Method::POST, "/v1/skill-archives?filename=two.zip", zip.clone()).await;
    assert_eq!(status, 201, "{made}");
    assert!(made["skills"][0]["package_root"].as_str().unwrap().ends_with("/skills/two"));
    assert_eq!(bytes(&server, "/v1/skills/one/files/a/b.txt").await, b"1");
    for (query, body, field) in [
        ("?filename=x.zip&target_suffix=..%2Fx", zip.clone(), json!("target_suffix")),
        ("?file=x", zip, json!("file")),
        ("", b"PKnope".to_vec(), Value::Null),
    ] {
        let (status, refused) =
            send(&server, Method::POST, &format!("/v1/skill-archives{query}"), body).await;
        assert_eq!((status, &refused["error"]["field"]), (400, &field), "{query}: {refused}");
    }
}
