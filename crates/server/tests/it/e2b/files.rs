//! Files as the SDKs move and look at them.

use std::io::Write;

use reqwest::Method;
use sandcrate_e2b_wire::signature::{Operation, Signed, sign};
use serde_json::{Value, json};

use super::{Made, Server, answer, refusal};
use crate::support::PATIENCE;

async fn write(server: &Server, made: &Made, path: &str, data: impl Into<reqwest::Body>) -> (u16, Value) {
    let request = server.envd(made, Method::POST, "/files").query(&[("path", path)]);
    answer(request.header("content-type", "application/octet-stream").body(data)).await
}

async fn read(server: &Server, made: &Made, path: &str) -> (u16, String) {
    let response = server.envd(made, Method::GET, "/files").query(&[("path", path)]).send().await.unwrap();
    (response.status().as_u16(), response.text().await.unwrap())
}

#[tokio::test]
async fn a_file_goes_in_and_comes_out() {
    let server = Server::start().await;
    let made = server.sandbox().await;
    let written = write(&server, &made, "notes/a b.txt", "hello").await;
    let path = "/home/user/notes/a b.txt";
    assert_eq!(written, (200, json!([{"name": "a b.txt", "type": "file", "path": path}])));
    for same in ["notes/a b.txt", "~/notes/a b.txt", path] {
        assert_eq!(read(&server, &made, same).await, (200, "hello".to_owned()), "{same}");
    }
    let large = "0123456789abcdef".repeat(600_000);
    assert_eq!(write(&server, &made, "/home/user/large", large.clone()).await.0, 200);
    assert!(read(&server, &made, "large").await.1 == large, "more than one piece");
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    packed.write_all(b"unpacked").unwrap();
    let gzip = server
        .envd(&made, Method::POST, "/files")
        .query(&[("path", "z")])
        .header("content-type", "application/octet-stream")
        .header("content-encoding", "gzip")
        .body(packed.finish().unwrap());
    assert_eq!(answer(gzip).await.0, 200);
    assert_eq!(read(&server, &made, "z").await.1, "unpacked");
    server.stop().await;
}

#[tokio::test]
async fn a_form_holds_several_files() {
    let server = Server::start().await;
    let made = server.sandbox().await;
    let part = |path: &str, text: &str| {
        format!("--b\r\ncontent-disposition: form-data; name=\"file\"; filename=\"{path}\"\r\n\r\n{text}\r\n")
    };
    let form = |query: &[(&str, &str)], body: String| {
        let request = server.envd(&made, Method::POST, "/files").query(query);
        answer(request.header("content-type", "multipart/form-data; boundary=b").body(body))
    };
    let two = format!("{}{}--b--\r\n", part("/home/user/one", "1"), part("two", "2"));
    let (status, written) = form(&[], two.clone()).await;
    assert_eq!((status, written.as_array().unwrap().len()), (200, 2), "{written}");
    assert_eq!(read(&server, &made, "one").await.1 + &read(&server, &made, "two").await.1, "12");
    // With one file, the query says where it goes.
    let one = format!("{}--b--\r\n", part("name", "3"));
    assert_eq!(form(&[("path", "three")], one).await.1[0]["path"], "/home/user/three");
    for (query, body) in [
        (&[("path", "x")][..], two),
        (&[], "--b--\r\n".to_owned()),
        (&[], part("cut", "never ended")),
        (&[], "--b\r\ncontent-disposition: form-data; name=\"other\"\r\n\r\nx\r\n--b--".to_owned()),
    ] {
        assert_eq!(refusal(form(query, body.clone()).await).0, 400, "{body}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_signed_address_opens_one_file_for_one_purpose_and_for_a_time() {
    let server = Server::start().await;
    let made = server.sandbox().await;
    write(&server, &made, "/home/user/a", "signed").await;
    let token = made.token.clone().unwrap();
    let signature =
        |path: &str, operation, expires| sign(&Signed { path, operation, user: "", expires }, &token);
    let get = |path: &str, signature: &str, expires: Option<i64>| {
        let request = server
            .request(Method::GET, "/files")
            .header("E2b-Sandbox-Id", &made.id)
            .query(&[("path", path), ("signature", signature)]);
        answer(expires.iter().fold(request, |request, end| request.query(&[("signature_expiration", end)])))
    };
    let good = signature("/home/user/a", Operation::Read, None);
    assert_eq!(get("/home/user/a", &good, None).await, (200, json!("signed")));
    let later = i64::from(i32::MAX);
    let timed = signature("/home/user/a", Operation::Read, Some(later));
    assert_eq!(get("/home/user/a", &timed, Some(later)).await.0, 200);
    let old = signature("/home/user/a", Operation::Read, Some(1000));
    let (status, message) = refusal(get("/home/user/a", &old, Some(1000)).await);
    assert!(status == 401 && message.contains("expired"), "{message}");
    for (path, shown, expires) in [
        ("/home/user/b", &good, None),
        ("/home/user/a", &signature("/home/user/a", Operation::Write, None), None),
        ("/home/user/a", &timed, Some(later - 1)),
        ("/home/user/a", &timed, None),
        ("/home/user/a", &String::new(), None),
    ] {
        assert_eq!(refusal(get(path, shown, expires).await).0, 401, "{path} {shown} {expires:?}");
    }
    // The signature alone tells whose it is, where no header does.
    let bare = |signature: &str| {
        answer(
            server
                .request(Method::GET, "/files")
                .query(&[("path", "/home/user/a"), ("signature", signature)]),
        )
    };
    assert_eq!(bare(&good).await, (200, json!("signed")));
    // One that is nobody's is for our own routes, and they have nothing there.
    assert_eq!(bare(&signature("/home/user/a", Operation::Write, None)).await.0, 404);
    assert_eq!(bare("v1_").await.0, 404);
    // And nothing else of the sandbox.
    let list = server
        .request(Method::POST, "/process.Process/List")
        .header("E2b-Sandbox-Id", &made.id)
        .query(&[("signature", &good)])
        .json(&json!({}));
    assert_eq!(refusal(answer(list).await).0, 401);
    server.stop().await;
}

#[tokio::test]
async fn what_is_not_there_or_cannot_be_is_told() {
    let server = Server::start().await;
    let made = server.sandbox().await;
    write(&server, &made, "/home/user/d/f", "x").await;
    let get = |path: &str| answer(server.envd(&made, Method::GET, "/files").query(&[("path", path)]));
    assert_eq!(refusal(get("/home/user/none").await).0, 404);
    assert_eq!(refusal(get("/home/user/d").await).0, 400, "a directory");
    let post =
        || server.envd(&made, Method::POST, "/files").header("content-type", "application/octet-stream");
    assert_eq!(refusal(answer(post().body("x")).await).0, 400, "nowhere");
    let metadata = post().query(&[("path", "m")]).header("X-Metadata-Owner", "me").body("x");
    assert_eq!(refusal(answer(metadata).await).0, 501);
    let other = post().query(&[("path", "m"), ("username", "eve")]).body("x");
    assert_eq!(refusal(answer(other).await).0, 400);
    let packed = post().query(&[("path", "m")]).header("content-encoding", "br").body("x");
    assert_eq!(refusal(answer(packed).await).0, 400);
    server.stop().await;
}

#[tokio::test]
async fn directories_are_looked_at_made_moved_and_removed() {
    let server = Server::start().await;
    let made = server.sandbox().await;
    let call = |method: &str, body: Value| {
        let method = format!("filesystem.Filesystem/{method}");
        let (server, made) = (&server, &made);
        async move { server.call(made, &method, body).await }
    };
    write(&server, &made, "/home/user/d/sub/f", "hello").await;
    let (status, stat) = call("Stat", json!({"path": "d/sub/f"})).await;
    let entry = &stat["entry"];
    assert_eq!(
        (status, &entry["type"], &entry["size"]),
        (200, &json!("FILE_TYPE_FILE"), &json!("5")),
        "{stat}"
    );
    assert_eq!((&entry["permissions"], &entry["owner"]), (&json!("-rw-r--r--"), &json!("user")));
    assert_eq!(call("Stat", json!({"path": "none"})).await.1["code"], "not_found");
    let names = async |depth: u32| {
        let (_, listed) = call("ListDir", json!({"path": "/home/user/d", "depth": depth})).await;
        let entries = listed["entries"].as_array().unwrap().clone();
        entries.iter().map(|entry| entry["path"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(1).await, ["/home/user/d/sub"]);
    assert_eq!(names(2).await, ["/home/user/d/sub", "/home/user/d/sub/f"]);
    assert_eq!(call("ListDir", json!({"path": "none"})).await.1["code"], "not_found");
    assert_eq!(call("MakeDir", json!({"path": "new/deep"})).await.1["entry"]["type"], "FILE_TYPE_DIRECTORY");
    let (status, again) = call("MakeDir", json!({"path": "new/deep"})).await;
    assert_eq!((status, &again["code"]), (409, &json!("already_exists")));
    let (_, moved) = call("Move", json!({"source": "d/sub/f", "destination": "other/g"})).await;
    assert_eq!(moved["entry"]["path"], "/home/user/other/g");
    assert_eq!(call("Move", json!({"source": "d/sub/f", "destination": "x"})).await.1["code"], "not_found");
    assert_eq!(call("Remove", json!({"path": "other"})).await, (200, json!({})));
    assert_eq!(call("Remove", json!({"path": "other"})).await.0, 200, "gone is gone");
    assert_eq!(call("Stat", json!({"path": "other/g"})).await.1["code"], "not_found");
    server.stop().await;
}

#[tokio::test]
async fn changes_are_told_to_whoever_asks_and_whoever_listens() {
    let server = Server::start().await;
    let made = server.sandbox().await;
    let call = |method: &str, body: Value| {
        let method = format!("filesystem.Filesystem/{method}");
        let (server, made) = (&server, &made);
        async move { server.call(made, &method, body).await }
    };
    write(&server, &made, "/home/user/w/old", "1").await;
    let watch = json!({"path": "/home/user/w", "recursive": true, "includeEntry": true});
    let (_, watcher) = call("CreateWatcher", watch.clone()).await;
    let mut stream = server.open(&made, "filesystem.Filesystem/WatchDir", &watch, &[]).await;
    assert_eq!(stream.next().await, (false, json!({"start": {}})));
    let events =
        async || call("GetWatcherEvents", watcher.clone()).await.1["events"].as_array().unwrap().clone();
    assert_eq!(events().await, Vec::<Value>::new());
    write(&server, &made, "/home/user/w/sub/new", "").await;
    write(&server, &made, "/home/user/w/old", "22").await;
    let told: Vec<_> =
        events().await.iter().map(|event| (event["name"].clone(), event["type"].clone())).collect();
    let expected = [("old", "WRITE"), ("sub", "CREATE"), ("sub/new", "CREATE")]
        .map(|(name, kind)| (json!(name), json!(format!("EVENT_TYPE_{kind}"))));
    assert_eq!(told, expected);
    let mut heard = Vec::new();
    while heard.len() < 3 {
        let (last, message) = tokio::time::timeout(PATIENCE, stream.next()).await.unwrap();
        assert!(!last, "{message}");
        heard.push((message["filesystem"]["name"].clone(), message["filesystem"]["type"].clone()));
    }
    heard.sort_by_key(|(name, _)| name.to_string());
    assert_eq!(heard, expected);
    call("Remove", json!({"path": "w/old"})).await;
    assert_eq!(events().await[0]["type"], "EVENT_TYPE_REMOVE");
    assert_eq!(call("RemoveWatcher", watcher.clone()).await, (200, json!({})));
    assert_eq!(call("GetWatcherEvents", watcher.clone()).await.1["code"], "not_found");
    assert_eq!(call("CreateWatcher", json!({"path": "nowhere"})).await.1["code"], "not_found");
    for _ in 0..32 {
        assert_eq!(call("CreateWatcher", watch.clone()).await.0, 200);
    }
    assert_eq!(call("CreateWatcher", watch).await.1["code"], "resource_exhausted");
    server.stop().await;
}
