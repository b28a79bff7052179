//! The control plane: making, finding, listing, refusing.

use reqwest::Method;
use sandcrate_server::ServerConfig;
use serde_json::{Value, json};

use super::{LONG, Server, answer, config, refusal};
use crate::support::TOKEN;

#[tokio::test]
async fn a_sandbox_is_made_found_listed_and_ended() {
    let server = Server::start().await;
    let made = server.make(json!({"templateID": "base", "timeout": 60, "metadata": {"user": "42"}})).await;
    assert_eq!(made.answer["templateID"], "base");
    assert_eq!(made.answer["envdVersion"], "0.6.6");
    assert!(made.token.as_ref().is_some_and(|token| token.len() > 40));
    assert!(made.id.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit()), "{}", made.id);
    let (status, found) = server.get(&format!("/sandboxes/{}", made.id)).await;
    assert_eq!(
        (status, &found["state"], &found["metadata"]),
        (200, &json!("running"), &json!({"user": "42"}))
    );
    assert_eq!((&found["cpuCount"], &found["memoryMB"]), (&json!(1), &json!(512)));
    assert_eq!(found["lifecycle"], json!({"autoResume": false, "onTimeout": "kill"}));
    for path in ["/sandboxes", "/v2/sandboxes"] {
        let (status, listed) = server.get(path).await;
        assert_eq!((status, listed[0]["sandboxID"].as_str()), (200, Some(made.id.as_str())), "{path}");
    }
    // An ordinary session to everybody else.
    let (status, session) = server.get(&format!("/v1/sessions/{}", made.id)).await;
    assert_eq!((status, &session["labels"]["user"]), (200, &json!("42")));
    let kill = || answer(server.request(Method::DELETE, &format!("/sandboxes/{}", made.id)));
    assert_eq!(kill().await.0, 204);
    assert_eq!(refusal(kill().await).0, 404);
    assert_eq!(refusal(server.get(&format!("/sandboxes/{}", made.id)).await).0, 404);
    assert!(server.backend.sessions().is_empty(), "its box is gone");
    server.stop().await;
}

#[tokio::test]
async fn a_template_is_an_image_and_one_that_is_not_there_is_named_with_those_that_are() {
    let templates = json!({"templates": {"data": {"image": "data:1", "memory_mb": 2048, "cpus": 1.5}}});
    let server = Server::with(config(templates)).await;
    let made = server.make(json!({"templateID": "data", "timeout": LONG})).await;
    let (_, found) = server.get(&format!("/sandboxes/{}", made.id)).await;
    assert_eq!((&found["cpuCount"], &found["memoryMB"]), (&json!(2), &json!(2048)));
    let (_, session) = server.get(&format!("/v1/sessions/{}", made.id)).await;
    assert_eq!((&session["image"], &session["mount_path"]), (&json!("data:1"), &json!("/home/user")));
    let (status, message) = refusal(server.post("/sandboxes", json!({"templateID": "nope"})).await);
    assert_eq!(status, 404);
    assert!(message.contains("`nope`") && message.contains("base") && message.contains("data"), "{message}");
    server.stop().await;
}

#[tokio::test]
async fn what_cannot_be_had_is_refused_and_named() {
    let server = Server::start().await;
    let with = |more: Value| {
        let mut body = json!({"templateID": "base"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    for (more, status, part) in [
        (json!({"autoPause": true, "autoPauseMemory": true}), 501, "autoPauseMemory"),
        (json!({"autoResume": {"enabled": true}}), 501, "autoResume"),
        (json!({"mcp": {"github": {}}}), 501, "mcp"),
        (json!({"volumeMounts": [{"name": "v", "path": "/v"}]}), 501, "volumeMounts"),
        (json!({"network": {"egressProxy": {"address": "a:1"}}}), 501, "egressProxy"),
        (json!({"network": {"denyOut": ["nonsense/99"]}}), 400, "denyOut"),
        (json!({"timeout": 999_999}), 400, "max_timeout_sec"),
        (json!({"timeout": -1}), 400, "timeout"),
        (json!({"envVars": {"A=B": "c"}}), 400, "envVars"),
        (json!({"metadata": {"k": "v".repeat(2000)}}), 400, "metadata"),
    ] {
        let (got, message) = refusal(server.post("/v2/sandboxes", with(more.clone())).await);
        assert!(got == status && message.contains(part), "{more}: {got} {message}");
    }
    let (status, message) = refusal(server.post("/v2/sandboxes", json!({"timeout": 1})).await);
    assert!(status == 400 && message.contains("templateID"), "{message}");
    for (method, path) in [
        (Method::POST, "/v3/templates"),
        (Method::GET, "/templates/x/builds/y/status"),
        (Method::POST, "/sandboxes/ix/snapshots"),
        (Method::POST, "/sandboxes/ix/fork"),
        (Method::GET, "/snapshots"),
        (Method::GET, "/volumes"),
        (Method::POST, "/secrets"),
    ] {
        let (status, message) = refusal(answer(server.request(method, path)).await);
        assert!(status == 501 && message.len() > 20, "{path}: {message}");
    }
    assert_eq!(refusal(answer(server.request(Method::PATCH, "/sandboxes")).await).0, 405);
    assert!(server.backend.sessions().is_empty(), "nothing was made");
    server.stop().await;
}

#[tokio::test]
async fn the_network_is_the_operators_unless_the_maker_says_otherwise() {
    let server = Server::with(config(json!({"network": "off"}))).await;
    let network = async |body: Value| {
        let made = server.make(body).await;
        let (_, session) = server.get(&format!("/v1/sessions/{}", made.id)).await;
        (made, session["network_policy"].as_str().unwrap().to_owned())
    };
    let (made, policy) = network(json!({"templateID": "base", "timeout": LONG})).await;
    assert_eq!(policy, "off");
    let on = network(json!({"templateID": "base", "timeout": LONG, "allow_internet_access": true})).await;
    assert_eq!(on.1, "public");
    let rules = json!({"allowOut": ["example.com"], "denyOut": ["0.0.0.0/0"]});
    let (limited, policy) = network(json!({"templateID": "base", "timeout": LONG, "network": rules})).await;
    assert_eq!(policy, "allow example.com");
    let change = |id: &str, body: Value| {
        answer(server.request(Method::PUT, &format!("/sandboxes/{id}/network")).json(&body))
    };
    assert_eq!(change(&limited.id, json!({"allow_internet_access": false})).await.0, 204);
    let (_, session) = server.get(&format!("/v1/sessions/{}", limited.id)).await;
    assert_eq!(session["network_policy"], "off");
    let (_, found) = server.get(&format!("/sandboxes/{}", limited.id)).await;
    assert_eq!(found["allowInternetAccess"], false);
    assert_eq!(refusal(change("i0123456789abcdefghij", json!({})).await).0, 404);
    drop(made);
    server.stop().await;
}

#[tokio::test]
async fn a_list_is_filtered_and_comes_in_pages() {
    let server = Server::start().await;
    let mut ids = Vec::new();
    for number in 0..5 {
        let metadata = json!({"n": number.to_string(), "a b": "c=d"});
        ids.push(server.make(json!({"templateID": "base", "timeout": LONG, "metadata": metadata})).await.id);
    }
    let page = async |query: &str| {
        let response = server.request(Method::GET, &format!("/v2/sandboxes{query}")).send().await.unwrap();
        let token = response.headers().get("x-next-token").map(|token| token.to_str().unwrap().to_owned());
        let listed: Vec<Value> = response.json().await.unwrap();
        let ids: Vec<_> = listed.iter().map(|one| one["sandboxID"].as_str().unwrap().to_owned()).collect();
        (ids, token)
    };
    let mut seen = Vec::new();
    let mut query = "?limit=2&order=asc".to_owned();
    loop {
        let (ids, token) = page(&query).await;
        assert!(ids.len() <= 2);
        seen.extend(ids);
        let Some(token) = token else { break };
        query = format!("?limit=2&order=asc&nextToken={token}");
    }
    assert_eq!(seen, ids, "each once, in order of their start");
    seen.reverse();
    assert_eq!(page("").await.0, seen, "newest first unless it is said");
    // As the SDKs send it: keys and values escaped, then the whole.
    let wanted = vec![ids[3].clone()];
    assert_eq!(page("?metadata=n%3D3%26a%252520b%3Dc%25253Dd").await.0, wanted);
    assert_eq!(page("?state=paused").await.0, Vec::<String>::new());
    assert_eq!(page("?state=running,paused").await.0.len(), 5);
    assert_eq!(page("?template=other").await.0.len(), 0);
    for bad in ["?limit=0", "?state=gone", "?nextToken=x", "?order=up"] {
        assert_eq!(refusal(server.get(&format!("/v2/sandboxes{bad}")).await).0, 400, "{bad}");
    }
    server.stop().await;
}

#[tokio::test]
async fn the_api_key_is_the_servers_token_and_the_sandboxs_token_is_its_own() {
    let token = Some(TOKEN.parse().unwrap());
    let server = Server::with(ServerConfig { token, ..ServerConfig::default() }).await;
    let body = json!({"templateID": "base", "timeout": LONG});
    let make = |key: &str| server.request(Method::POST, "/v2/sandboxes").header("X-API-Key", key).json(&body);
    let (status, message) = refusal(server.post("/v2/sandboxes", body.clone()).await);
    assert!(status == 401 && message.contains("X-API-Key"), "{message}");
    assert_eq!(refusal(answer(make("wrong")).await).0, 401);
    let (status, made) = answer(make(TOKEN)).await;
    assert_eq!(status, 201, "{made}");
    let id = made["sandboxID"].as_str().unwrap();
    let list = |token: Option<&str>| {
        let request = server
            .request(Method::POST, "/process.Process/List")
            .header("E2b-Sandbox-Id", id)
            .json(&json!({}));
        answer(token.iter().fold(request, |request, token| request.header("X-Access-Token", *token)))
    };
    assert_eq!(refusal(list(None).await).0, 401);
    assert_eq!(refusal(list(Some("wrong")).await).0, 401);
    assert_eq!(refusal(list(Some(TOKEN)).await).0, 401, "the server's token is not the sandbox's");
    assert_eq!(list(made["envdAccessToken"].as_str()).await.0, 200);
    // Whether it runs is anybody's to ask who knows its name.
    let health = server.request(Method::GET, "/health").header("E2b-Sandbox-Id", id);
    assert_eq!(answer(health).await.0, 204);
    // And a sandbox's token opens nothing of the server's.
    let sandboxs = made["envdAccessToken"].as_str().unwrap();
    assert_eq!(refusal(answer(make(sandboxs)).await).0, 401);
    server.stop().await;
}

#[tokio::test]
async fn a_sandbox_that_is_not_secured_asks_for_no_token() {
    let server = Server::start().await;
    let (status, made) =
        server.post("/sandboxes", json!({"templateID": "base", "timeout": LONG, "secure": false})).await;
    assert_eq!((status, &made["envdAccessToken"]), (201, &Value::Null));
    let list = server
        .request(Method::POST, "/process.Process/List")
        .header("E2b-Sandbox-Id", made["sandboxID"].as_str().unwrap())
        .json(&json!({}));
    assert_eq!(answer(list).await, (200, json!({"processes": []})));
    // The newer way of making one is always secured.
    let secured = server.make(json!({"templateID": "base", "timeout": LONG, "secure": false})).await;
    assert!(secured.token.is_some());
    server.stop().await;
}

#[tokio::test]
async fn what_is_ours_stays_ours() {
    let server = Server::start().await;
    assert_eq!(server.get("/healthz").await.0, 200);
    assert_eq!(server.request(Method::GET, "/metrics").send().await.unwrap().status(), 200);
    // Envd's paths mean nothing without a sandbox.
    for path in ["/health", "/files?path=x", "/envs"] {
        let (status, body) = server.get(path).await;
        assert_eq!((status, &body["error"]["code"]), (404, &json!("not_found")), "{path}");
    }
    let off = Server::with(config(json!({"enabled": false}))).await;
    let (status, body) = off.get("/sandboxes").await;
    assert_eq!((status, &body["error"]["code"]), (404, &json!("not_found")));
    server.stop().await;
    off.stop().await;
}

#[tokio::test]
async fn figures_and_the_journal_are_told() {
    let server = Server::start().await;
    let made = server.sandbox().await;
    server.run(&made, "hello").await.rest().await;
    let (status, figures) = server.get(&format!("/sandboxes/{}/metrics", made.id)).await;
    assert_eq!((status, &figures[0]["memTotal"]), (200, &json!(512 << 20)), "{figures}");
    let (status, all) = server.get(&format!("/sandboxes/metrics?sandbox_ids={},igone", made.id)).await;
    assert_eq!((status, all["sandboxes"].as_object().unwrap().len()), (200, 1), "{all}");
    let (status, logs) = server.get(&format!("/sandboxes/{}/logs", made.id)).await;
    let lines: Vec<_> = logs["logs"].as_array().unwrap().iter().map(|line| line["line"].clone()).collect();
    assert_eq!((status, lines), (200, vec![json!("sandbox created"), json!("process started")]));
    let (_, logs) = server.get(&format!("/v2/sandboxes/{}/logs?direction=backward&limit=1", made.id)).await;
    assert_eq!(logs["logs"][0]["message"], "process started");
    assert_eq!(logs["logs"][0]["fields"]["cmd"], "/bin/bash");
    let (status, figures) = answer(server.envd(&made, Method::GET, "/metrics")).await;
    assert_eq!((status, &figures["mem_total_mib"]), (200, &json!(512)));
    server.stop().await;
}

#[tokio::test]
async fn a_request_that_is_sent_again_makes_no_second_sandbox() {
    let server = Server::start().await;
    let make = |key: &str, timeout: u64| {
        let request = server.request(Method::POST, "/v2/sandboxes").header("Idempotency-Key", key);
        answer(request.json(&json!({"templateID": "base", "timeout": timeout})))
    };
    let (first, second) = tokio::join!(make("once", LONG), make("once", LONG));
    assert_eq!((first.0, &first), (201, &second));
    assert_eq!(make("once", LONG).await, first);
    assert_eq!(refusal(make("once", 60).await).0, 422, "another request under the same key");
    assert_ne!(make("twice", LONG).await.1["sandboxID"], first.1["sandboxID"]);
    assert_eq!(server.backend.sessions().len(), 2);
    server.stop().await;
}
