//! The API document: what the handlers say of themselves, and what holds for all of them.

use sandcrate_protocol::ErrorKind;
use serde_json::json;
use utoipa::openapi::content::ContentBuilder;
use utoipa::openapi::example::ExampleBuilder;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{OpenApi, Ref, RefOr, Response, ResponseBuilder};
use utoipa::{OpenApi as _, ToSchema};

use super::error::{ErrorBody, code};

#[derive(Debug, utoipa::OpenApi)]
#[openapi(
    info(
        title = "Sandcrate",
        description = "Sandboxes for commands, files and long-lived servers.\n\nEvery failure has a body \
            `{\"error\": {\"code\", \"message\"}}`; `code` is stable and for programs. Sessions are named by the \
            caller; a name stands percent-encoded in the path.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    components(schemas(ErrorBody)),
    tags(
        (name = "sessions", description = "Boxes with a name and a life of their own"),
        (name = "commands", description = "What runs in them and ends"),
        (name = "processes", description = "What runs in them and stays"),
        (name = "files", description = "What lies in them"),
        (name = "images", description = "What they can be made of"),
        (name = "network", description = "What they reach, and what reaches them"),
        (name = "tools", description = "What an agent is given: exec, read, write, edit, glob, grep"),
        (name = "skills", description = "Packages that teach an agent, and that boxes can mount"),
        (name = "mcp", description = "MCP servers in boxes, behind the gateway at `/mcp`"),
        (name = "server", description = "The server itself"),
    ),
)]
struct Base;

/// The name of the answer that every operation may give.
const FAILURE: &str = "Failure";

/// The document before any route is in it.
pub(super) fn base() -> OpenApi {
    Base::openapi()
}

/// Adds what every operation has, and makes the paths those of a document.
pub(super) fn finish(mut api: OpenApi) -> OpenApi {
    let error = RefOr::Ref(Ref::from_response_name(FAILURE));
    let mut paths = std::mem::take(&mut api.paths.paths);
    for item in paths.values_mut() {
        let operations = [
            &mut item.get,
            &mut item.put,
            &mut item.post,
            &mut item.delete,
            &mut item.head,
            &mut item.patch,
            &mut item.options,
        ];
        for operation in operations.into_iter().flatten() {
            operation.responses.responses.insert("default".to_owned(), error.clone());
        }
    }
    // One handler may serve several methods; ids are for one operation each. The first keeps its own.
    for item in paths.values_mut() {
        let mut known = std::collections::HashSet::new();
        for (method, operation) in [
            ("get", &mut item.get),
            ("put", &mut item.put),
            ("post", &mut item.post),
            ("delete", &mut item.delete),
            ("head", &mut item.head),
            ("patch", &mut item.patch),
            ("options", &mut item.options),
        ] {
            let Some(id) = operation.as_mut().and_then(|operation| operation.operation_id.as_mut()) else {
                continue;
            };
            if !known.insert(id.clone()) {
                *id = format!("{id}_{method}");
            }
        }
    }
    // The router's mark of a path with slashes is none of the document's.
    api.paths.paths = paths.into_iter().map(|(path, item)| (path.replace("{*", "{"), item)).collect();
    // The token is optional: a peer that the server knows by its uid needs none.
    api.security = Some(vec![
        SecurityRequirement::new::<_, [&str; 0], &str>("token", []),
        SecurityRequirement::default(),
    ]);
    let scheme =
        HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some("The server's token")).build();
    let components = api.components.get_or_insert_default();
    components.responses.insert(FAILURE.to_owned(), RefOr::T(failure()));
    components.add_security_scheme("token", SecurityScheme::Http(scheme));
    api
}

/// One answer for all failures: their codes, with the status of each.
fn failure() -> Response {
    let examples = ErrorKind::ALL.map(|kind| {
        let status = kind.appearance().http_status;
        let body = json!({"error": {"code": code(kind), "message": "what to change"}});
        let example = ExampleBuilder::new().summary(format!("status {status}")).value(Some(body)).build();
        (code(kind), example)
    });
    let schema = RefOr::<utoipa::openapi::Schema>::Ref(Ref::from_schema_name(ErrorBody::name()));
    let content = ContentBuilder::new().schema(Some(schema)).examples_from_iter(examples).build();
    ResponseBuilder::new()
        .description(
            "It did not happen, and why. Beside these codes: `unauthorized` (401), `not_found` (404), \
            `method_not_allowed` (405), `body_too_large` (413).",
        )
        .content("application/json", content)
        .build()
}
