//! The API document and the page that shows it.

use std::collections::BTreeSet;
use std::sync::Arc;

use reqwest::Method;
use sandcrate_backend::fake::FakeBackend;
use sandcrate_server::ServerConfig;
use serde_json::{Value, json};

use super::{Server, script};

/// Every route of the face. A route that is added has to be added here and described in the document.
const ROUTES: [&str; 79] = [
    "DELETE /v1/mcp/servers/{name}",
    "GET /v1/mcp/servers",
    "GET /v1/mcp/servers/{name}",
    "GET /v1/mcp/servers/{name}/logs",
    "POST /v1/mcp/servers",
    "POST /v1/mcp/servers/{name}/restart",
    "POST /v1/mcp/servers/{name}/test",
    "POST /v1/mcp/test",
    "DELETE /v1/images/{name}",
    "GET /v1/images",
    "POST /v1/images/{name}",
    "DELETE /v1/sessions/{id}",
    "DELETE /v1/sessions/{id}/commands/{cid}",
    "DELETE /v1/sessions/{id}/files/{path}",
    "DELETE /v1/sessions/{id}/ports",
    "DELETE /v1/sessions/{id}/processes/{pid}",
    "DELETE /v1/sessions/{id}/proxy/{port}/",
    "DELETE /v1/sessions/{id}/proxy/{port}/{path}",
    "DELETE /v1/skills/{name}",
    "GET /v1/health",
    "GET /v1/sessions",
    "GET /v1/sessions/{id}",
    "GET /v1/sessions/{id}/commands",
    "GET /v1/sessions/{id}/commands/{cid}",
    "GET /v1/sessions/{id}/commands/{cid}/events",
    "GET /v1/sessions/{id}/denials",
    "GET /v1/sessions/{id}/files/",
    "GET /v1/sessions/{id}/files/{path}",
    "GET /v1/sessions/{id}/managed-process",
    "GET /v1/sessions/{id}/network",
    "GET /v1/sessions/{id}/ports",
    "GET /v1/sessions/{id}/processes",
    "GET /v1/sessions/{id}/processes/{pid}",
    "GET /v1/sessions/{id}/processes/{pid}/logs",
    "GET /v1/sessions/{id}/proxy/{port}/",
    "GET /v1/sessions/{id}/proxy/{port}/{path}",
    "GET /v1/sessions/{id}/terminal",
    "GET /v1/skills",
    "GET /v1/skills/{name}",
    "GET /v1/skills/{name}/archive",
    "GET /v1/skills/{name}/files",
    "GET /v1/skills/{name}/files/{path}",
    "GET /v1/status",
    "GET /v1/errors",
    "GET /v1/profiles",
    "GET /v1/profiles/{name}",
    "GET /v1/tools",
    "GET /v1/usage",
    "GET /v1/version",
    "HEAD /v1/sessions/{id}/files/{path}",
    "HEAD /v1/sessions/{id}/proxy/{port}/",
    "HEAD /v1/sessions/{id}/proxy/{port}/{path}",
    "OPTIONS /v1/sessions/{id}/proxy/{port}/",
    "OPTIONS /v1/sessions/{id}/proxy/{port}/{path}",
    "PATCH /v1/sessions/{id}/proxy/{port}/",
    "PATCH /v1/sessions/{id}/proxy/{port}/{path}",
    "PATCH /v1/skills/{name}",
    "POST /v1/sessions",
    "POST /v1/sessions/{id}",
    "POST /v1/sessions/{id}/commands",
    "POST /v1/sessions/{id}/commands/{cid}/signal",
    "POST /v1/sessions/{id}/commands/{cid}/stdin",
    "POST /v1/sessions/{id}/exec",
    "POST /v1/sessions/{id}/files/{path}",
    "POST /v1/sessions/{id}/managed-process",
    "POST /v1/sessions/{id}/ports",
    "POST /v1/sessions/{id}/processes",
    "POST /v1/sessions/{id}/processes/{pid}/signal",
    "POST /v1/sessions/{id}/proxy/{port}/",
    "POST /v1/sessions/{id}/proxy/{port}/{path}",
    "POST /v1/skill-archives",
    "POST /v1/skill-scans",
    "POST /v1/skills",
    "POST /v1/tools/{tool}",
    "PUT /v1/sessions/{id}/files/{path}",
    "PUT /v1/sessions/{id}/network",
    "PUT /v1/sessions/{id}/proxy/{port}/",
    "PUT /v1/sessions/{id}/proxy/{port}/{path}",
    "PUT /v1/skills/{name}/files/{path}",
];

fn operations(document: &Value) -> Vec<(String, String, Value)> {
    let paths = document["paths"].as_object().unwrap();
    let operations = paths.iter().flat_map(|(path, item)| {
        let item = item.as_object().unwrap().iter();
        item.map(move |(method, operation)| (method.to_uppercase(), path.clone(), operation.clone()))
    });
    operations.collect()
}

#[tokio::test]
async fn the_document_lists_exactly_the_routes() {
    let server = Server::start().await;
    let (status, document) = server.get("/openapi.json").await;
    assert_eq!((status, document["openapi"].as_str()), (200, Some("3.1.0")));
    let listed: BTreeSet<_> =
        operations(&document).iter().map(|(method, path, _)| format!("{method} {path}")).collect();
    let expected: BTreeSet<_> = ROUTES.iter().map(|route| (*route).to_owned()).collect();
    assert_eq!(listed, expected);
    let mut ids = BTreeSet::new();
    for (method, path, operation) in operations(&document) {
        let target =
            path.replace("{id}", "none").replace("{cid}", "1").replace("{pid}", "p").replace("{name}", "x");
        let method: Method = method.parse().unwrap();
        let answer = server.request(method.clone(), &target.replace("{path}", "tmp/x")).send().await.unwrap();
        assert_ne!(answer.status(), 405, "{method} {path} is not served");
        let body: Value = serde_json::from_str(&answer.text().await.unwrap()).unwrap_or_default();
        assert_ne!(body["error"]["code"], "not_found", "{method} {path} is not served");
        // Described for people, with an error body and an id for generated clients.
        for part in ["summary", "operationId", "tags"] {
            assert!(!operation[part].is_null(), "{method} {path} has no {part}");
        }
        let failure = operation["responses"]["default"]["$ref"].as_str().unwrap();
        let failure = document.pointer(&failure[1..]).unwrap();
        assert!(failure["content"]["application/json"]["examples"]["session_not_found"].is_object());
        let id = operation["operationId"].as_str().unwrap().to_owned();
        assert!(ids.insert(id), "{method} {path}: the id is another's");
        if let Some(content) = operation["requestBody"]["content"].as_object() {
            assert!(content.values().all(|media| !media["example"].is_null()), "{method} {path}: no example");
        }
        let names: Vec<_> = path.split('{').skip(1).map(|part| part.split('}').next().unwrap()).collect();
        for name in names {
            let parameters = operation["parameters"].as_array().unwrap();
            let found = parameters.iter().any(|one| one["name"] == name && one["in"] == "path");
            assert!(found, "{method} {path}: {name} is not described");
        }
    }
}

/// Routes are only made of what is documented: no module adds one to the router behind the document's back.
#[test]
fn no_route_bypasses_the_document() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/rest");
    let mut waiting = vec![std::path::PathBuf::from(folder)];
    let mut found = Vec::new();
    while let Some(path) = waiting.pop() {
        for entry in std::fs::read_dir(&path).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                waiting.push(path);
            } else if path.extension().is_some_and(|kind| kind == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                let name = path.strip_prefix(folder).unwrap().display().to_string();
                let routes = text.matches(".route(\"").count();
                found.extend(std::iter::repeat_n(name, routes));
            }
        }
    }
    found.sort();
    assert_eq!(
        found,
        ["mod.rs", "page.rs", "page.rs", "page.rs"],
        "only the document and the page themselves"
    );
}

#[tokio::test]
async fn every_reference_of_the_document_leads_somewhere() {
    let server = Server::start().await;
    let (_, document) = server.get("/openapi.json").await;
    let mut waiting = vec![&document];
    let mut seen = 0;
    while let Some(value) = waiting.pop() {
        match value {
            Value::Object(fields) => {
                if let Some(reference) = fields.get("$ref").and_then(Value::as_str) {
                    let pointer = reference.strip_prefix('#').unwrap();
                    assert!(document.pointer(pointer).is_some(), "{reference} leads nowhere");
                    seen += 1;
                }
                waiting.extend(fields.values());
            }
            Value::Array(items) => waiting.extend(items),
            _ => {}
        }
    }
    assert!(seen > 30, "{seen}");
}

/// All properties of a schema, through references and compositions, and whether each must be there.
fn properties(document: &Value, schema: &Value) -> Vec<(String, bool)> {
    if let Some(reference) = schema["$ref"].as_str() {
        return properties(document, document.pointer(&reference[1..]).unwrap());
    }
    let parts = schema["allOf"].as_array().into_iter().flatten();
    let mut found: Vec<_> = parts.flat_map(|part| properties(document, part)).collect();
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    for name in schema["properties"].as_object().into_iter().flat_map(|fields| fields.keys()) {
        found.push((name.clone(), required.contains(&json!(name))));
    }
    found
}

#[tokio::test]
async fn answers_are_what_the_document_says() {
    let server = Server::start().await;
    let (_, document) = server.get("/openapi.json").await;
    let (_, session) = server.post("/v1/sessions/demo", json!({})).await;
    let (_, sessions) = server.get("/v1/sessions").await;
    let (_, result) = server.post("/v1/sessions/demo/exec", json!({"cmd": "binary"})).await;
    let (_, process) = server
        .post("/v1/sessions/demo/processes", json!({"command": "server", "args": ["--port", "1"]}))
        .await;
    let (_, command) = server.post("/v1/sessions/demo/commands", json!({"cmd": "hello"})).await;
    let (_, logs) = server.get("/v1/sessions/demo/processes/default/logs").await;
    let (_, listing) = server.get("/v1/sessions/demo/files/?list=1").await;
    let (_, told) = server.get("/v1/status").await;
    let (_, failure) = server.get("/v1/sessions/none").await;
    let (_, skill) = server.post("/v1/skills", json!({"name": "pdf"})).await;
    let (_, skills) = server.get("/v1/skills").await;
    let (_, skill_files) = server.get("/v1/skills/pdf/files").await;
    for (schema, value) in [
        ("SkillFacts", &skill),
        ("SkillList", &skills),
        ("SkillListing", &skill_files),
        ("SkillEntryFacts", &skill_files["entries"][0]),
        ("SessionBody", &session),
        ("SessionSummary", &sessions["sessions"][0]),
        ("Finding", &session["enforcement"][0]),
        ("ExecBody", &result),
        ("UsageBody", &result["usage"]),
        ("ProcessFacts", &process),
        ("CommandBody", &command),
        ("LogsBody", &logs),
        ("Listing", &listing),
        ("FileFacts", &listing["entries"][0]),
        ("StatusFacts", &told),
        ("HealthFacts", &told["backend"]),
        ("ErrorBody", &failure),
        ("ApiError", &failure["error"]),
    ] {
        let known = properties(&document, &json!({"$ref": format!("#/components/schemas/{schema}")}));
        assert!(!known.is_empty(), "{schema} is not in the document");
        let given = value.as_object().unwrap_or_else(|| panic!("{schema}: {value}"));
        for name in given.keys() {
            assert!(known.iter().any(|(known, _)| known == name), "{schema} does not tell of {name}");
        }
        for (name, required) in known {
            assert!(!required || given.contains_key(&name), "{schema} promises {name}: {value}");
        }
    }
}

#[tokio::test]
async fn the_page_loads_nothing_from_elsewhere() {
    let server = Server::start().await;
    for (path, kind) in
        [("/docs", "text/html"), ("/docs/docs.js", "text/javascript"), ("/docs/docs.css", "text/css")]
    {
        let answer = server.request(Method::GET, path).send().await.unwrap();
        assert_eq!(answer.status(), 200, "{path}");
        assert!(answer.headers()["content-type"].to_str().unwrap().starts_with(kind), "{path}");
        let policy = answer.headers()["content-security-policy"].to_str().unwrap();
        for rule in
            ["default-src 'none'", "script-src 'self'", "connect-src 'self'", "frame-ancestors 'none'"]
        {
            assert!(policy.contains(rule), "{path}: {policy}");
        }
        assert!(!policy.contains("unsafe"), "{policy}");
        let text = answer.text().await.unwrap();
        for outside in
            ["http://", "https://", "//cdn", "@import", "url(", "localStorage", "innerHTML", "eval("]
        {
            assert!(!text.contains(outside), "{path} has {outside}");
        }
    }
    let page = server.request(Method::GET, "/docs").send().await.unwrap().text().await.unwrap();
    // The policy forbids what stands in the page itself.
    for forbidden in ["<script>", "<style>", " style=", " onclick", " onload"] {
        assert!(!page.contains(forbidden), "{forbidden}");
    }
}

#[tokio::test]
async fn the_page_is_open_and_the_api_is_not() {
    let token = "0123456789abcdef0123456789abcdef";
    let config = ServerConfig { token: Some(token.parse().unwrap()), ..ServerConfig::default() };
    let server = Server::with(Arc::new(FakeBackend::new(script)), config).await;
    for path in ["/docs", "/docs/docs.js", "/openapi.json"] {
        assert_eq!(server.request(Method::GET, path).send().await.unwrap().status(), 200, "{path}");
    }
    let (status, refused) = server.get("/v1/status").await;
    assert_eq!((status, refused["error"]["code"].is_string()), (401, true));
    let known = server.request(Method::GET, "/v1/status").bearer_auth(token);
    assert_eq!(known.send().await.unwrap().status(), 200);
}
