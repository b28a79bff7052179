//! Files of a skill, byte for byte.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CONTENT_TYPE, ETAG, IF_MATCH};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use sandcrate_skills::{FileEntry, ListRequest, SkillError};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::SCOPE;
use crate::App;
use crate::rest::error::ApiError;
use crate::rest::extract::{Params, Segments, switch};
use crate::rest::schema::SkillEntryFacts;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default()
        .routes(routes!(list_skill_files))
        .routes(routes!(read_skill_file, write_skill_file))
}

#[derive(Debug, Serialize, ToSchema)]
struct SkillListing {
    #[schema(example = ".")]
    base_path: String,
    /// By name.
    #[schema(value_type = Vec<SkillEntryFacts>)]
    entries: Vec<FileEntry>,
    /// Whether there are more.
    truncated: bool,
}

#[derive(Debug, Serialize, ToSchema)]
struct WrittenSkillFile {
    #[schema(example = "scripts/run.py")]
    path: String,
    #[schema(example = 12)]
    bytes_written: usize,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ListParams {
    path: Option<String>,
    #[serde(deserialize_with = "switch")]
    include_hidden: bool,
    max_entries: Option<usize>,
}

/// List files of a skill
#[utoipa::path(get, path = "/v1/skills/{name}/files", tag = "skills", operation_id = "list_skill_files",
    params(("name" = String, Path, description = "Name of the skill", example = "pdf"),
        ("path" = Option<String>, Query, description = "A directory of it", example = "scripts"),
        ("include_hidden" = Option<bool>, Query, description = "`1`: names with a dot in front too"),
        ("max_entries" = Option<u64>, Query, description = "200 unless told")),
    responses((status = 200, description = "The entries of one directory", body = SkillListing)))]
async fn list_skill_files(
    State(app): State<App>,
    Segments(name): Segments<String>,
    Params(params): Params<ListParams>,
) -> Result<Json<SkillListing>, ApiError> {
    let usual = ListRequest::default();
    let request = ListRequest {
        path: params.path.unwrap_or(usual.path),
        include_hidden: params.include_hidden,
        max_entries: params.max_entries.unwrap_or(usual.max_entries),
    };
    let skills = app.runtime.skills();
    let listing = skills.with(&SCOPE, move |store| store.list_files(&name, &request)).await?;
    let (base_path, entries, truncated) = (listing.base_path, listing.entries, listing.truncated);
    Ok(Json(SkillListing { base_path, entries, truncated }))
}

/// Read a file of a skill
///
/// Its bytes, with an `ETag` for a later write.
#[utoipa::path(get, path = "/v1/skills/{name}/files/{*path}", tag = "skills", operation_id = "read_skill_file",
    params(("name" = String, Path, description = "Name of the skill", example = "pdf"),
        ("path" = String, Path, description = "Path in its directory", example = "SKILL.md")),
    responses((status = 200, description = "The file", body = Vec<u8>, content_type = "application/octet-stream")))]
async fn read_skill_file(
    State(app): State<App>,
    Segments((name, path)): Segments<(String, String)>,
) -> Result<Response, ApiError> {
    let read = app.runtime.skills().with(&SCOPE, move |store| store.read_file(&name, &path)).await?;
    let tag = format!("\"{}\"", read.tag);
    let headers = [(CONTENT_TYPE, "application/octet-stream".to_owned()), (ETAG, tag)];
    Ok((headers, read.bytes).into_response())
}

/// Write a file of a skill
///
/// Whole or not at all, with the directories above it. With `If-Match`, only if it still is what was read: else
/// a `skill_conflict`. A `SKILL.md` that could not be read again is refused.
#[utoipa::path(put, path = "/v1/skills/{name}/files/{*path}", tag = "skills", operation_id = "write_skill_file",
    params(("name" = String, Path, description = "Name of the skill", example = "pdf"),
        ("path" = String, Path, description = "Path in its directory", example = "scripts/run.py"),
        ("If-Match" = Option<String>, Header, description = "The `ETag` it was read with")),
    request_body(content = Vec<u8>, content_type = "application/octet-stream", example = json!("print(1)\n")),
    responses((status = 200, description = "It was replaced", body = WrittenSkillFile),
        (status = 201, description = "It was made", body = WrittenSkillFile)))]
async fn write_skill_file(
    State(app): State<App>,
    Segments((name, path)): Segments<(String, String)>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let expected = match headers.get(IF_MATCH) {
        None => None,
        Some(tag) => {
            let tag = tag.to_str().map_err(|_| ApiError::invalid("If-Match", "must be an ETag"))?;
            Some(tag.trim().trim_matches('"').to_owned())
        }
    };
    let skills = app.runtime.skills();
    let bytes = read_body(body, skills.limits().file_bytes, "file_bytes").await?;
    let work = move |store: &sandcrate_skills::Store| -> Result<_, SkillError> {
        store.write_file(&name, &path, &bytes, expected.as_deref())
    };
    let written = skills.with(&SCOPE, work).await?;
    let status = if written.created { StatusCode::CREATED } else { StatusCode::OK };
    let tag = format!("\"{}\"", written.tag);
    let body = WrittenSkillFile { path: written.path, bytes_written: written.bytes_written };
    Ok((status, [(ETAG, tag)], Json(body)).into_response())
}

/// A body that is held in memory; `limit` is what `skills.KEY` of the configuration says.
pub(super) async fn read_body(body: Body, limit: usize, key: &str) -> Result<Bytes, ApiError> {
    let mut pieces = body.into_data_stream();
    let mut bytes = BytesMut::new();
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|_| ApiError::invalid("body", "did not arrive whole"))?;
        if bytes.len() + piece.len() > limit {
            let message = format!("the body has more than {limit} bytes (skills.{key})");
            return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message));
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes.freeze())
}
