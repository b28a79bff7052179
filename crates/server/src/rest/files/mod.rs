//! Files of a box: `/v1/sessions/{id}/files/workspace/a.txt` is `/workspace/a.txt`.
//!
//! Everything is done inside the box, with the identity of its commands. Contents move in pieces, so memory
//! does not grow with a file.

pub(crate) mod download;
mod range;
pub(crate) mod upload;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::middleware::from_fn;
use axum::response::{IntoResponse, Response};
use sandcrate_backend::{FileEntry, FileKind, FileReply, FileRequest};
use sandcrate_protocol::ErrorKind;
use sandcrate_runtime::{Runtime, RuntimeError};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::error::{ApiError, ErrorBody};
use super::extract::{Params, Segments, switch};
use super::schema::FileFacts;
use super::spec;
use crate::{App, uploads};

/// One piece of a file in memory, for each upload under way.
const PIECE_BYTES: usize = 4 << 20;
/// Links in a row, as the kernel follows them.
const MAX_LINKS: usize = 40;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default()
        .routes(routes!(read_root))
        .routes(routes!(read_file, write_file, change_file, remove_file))
        .layer(from_fn(uploads::hear_out))
}

#[derive(Debug, Serialize, ToSchema)]
struct Listing {
    #[schema(example = "/workspace")]
    path: String,
    /// By name.
    #[schema(value_type = Vec<FileFacts>)]
    entries: Vec<FileEntry>,
}

#[derive(Debug, Serialize, ToSchema)]
struct WrittenFile {
    #[schema(example = "/workspace/a.txt")]
    path: String,
    #[schema(example = 12)]
    bytes: u64,
}

#[derive(Debug, Serialize, ToSchema)]
struct Changed {
    /// Where it is now.
    #[schema(example = "/workspace/b.txt")]
    path: String,
}

#[derive(Debug, Serialize, ToSchema)]
struct Removed {
    #[schema(example = "/workspace/a.txt")]
    deleted: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ReadParams {
    #[serde(deserialize_with = "switch")]
    stat: bool,
    #[serde(deserialize_with = "switch")]
    list: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ChangeParams {
    #[serde(deserialize_with = "switch")]
    mkdir: bool,
    rename_to: Option<String>,
}

/// Look at the root directory
///
/// As for any path, with `?stat=1` or `?list=1`.
#[utoipa::path(get, path = "/v1/sessions/{id}/files/", tag = "files", operation_id = "read_root",
    params(("id" = String, Path, description = "Name of the session", example = "demo"),
        ("list" = Option<bool>, Query, description = "`1`: the entries, as JSON", example = true),
        ("stat" = Option<bool>, Query, description = "`1`: what it is, as JSON")),
    responses((status = 200, description = "The entries", body = Listing)))]
async fn read_root(
    State(app): State<App>,
    Segments(id): Segments<String>,
    Params(params): Params<ReadParams>,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    read(app, id, "/".to_owned(), params, method, headers).await
}

/// Read a file
///
/// Its bytes; a part of them with `Range`. With `?stat=1` what it is, and with `?list=1` the entries of a
/// directory, both as JSON. Symbolic links are followed, inside the box, but not by `?stat=1`.
#[utoipa::path(method(get, head), path = "/v1/sessions/{id}/files/{*path}", tag = "files",
    operation_id = "read_file",
    params(("id" = String, Path, description = "Name of the session", example = "demo"),
        ("path" = String, Path, description = "Absolute path in the box, without its first slash",
            example = "workspace/a.txt"),
        ("stat" = Option<bool>, Query, description = "`1`: what the path is, as JSON"),
        ("list" = Option<bool>, Query, description = "`1`: the entries of a directory, as JSON"),
        ("Range" = Option<String>, Header, description = "One range of bytes", example = "bytes=0-99"),
        ("If-None-Match" = Option<String>, Header, description = "An `ETag` from before")),
    responses((status = 200, description = "The whole file, or JSON", content(
            (String = "application/octet-stream", example = "hello\n"),
            (FileFacts = "application/json"))),
        (status = 206, description = "The range asked for", content_type = "application/octet-stream", body = String),
        (status = 304, description = "It is still the one with that `ETag`"),
        (status = 416, description = "The range begins after the end", body = ErrorBody)))]
async fn read_file(
    State(app): State<App>,
    Segments((id, path)): Segments<(String, String)>,
    Params(params): Params<ReadParams>,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    read(app, id, format!("/{path}"), params, method, headers).await
}

async fn read(
    app: App,
    id: String,
    path: String,
    params: ReadParams,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    match params {
        ReadParams { stat: true, list: true } => {
            Err(ApiError::invalid("stat", "and list exclude each other"))
        }
        ReadParams { stat: true, .. } => Ok(Json(stat(&app.runtime, &id, &path).await?).into_response()),
        ReadParams { list: true, .. } => {
            let reply = app.runtime.files(&id, FileRequest::List { path: path.clone() }).await?;
            let FileReply::Entries(mut entries) = reply else { return Err(unexpected("list", &path)) };
            entries.sort_by(|a, b| a.name.cmp(&b.name));
            Ok(Json(Listing { path, entries }).into_response())
        }
        ReadParams { .. } => download::answer(app, id, path, &method, &headers).await,
    }
}

/// Write a file
///
/// The body's bytes, of any length. Missing directories are made. A body of more than 4 MiB goes to a file
/// beside it, which then takes its place: one that breaks off leaves the old file as it was.
#[utoipa::path(put, path = "/v1/sessions/{id}/files/{*path}", tag = "files", operation_id = "write_file",
    params(("id" = String, Path, description = "Name of the session", example = "demo"),
        ("path" = String, Path, description = "Absolute path in the box, without its first slash",
            example = "workspace/a.txt")),
    request_body(content = String, content_type = "application/octet-stream", example = "hello world\n"),
    responses((status = 200, description = "Replaced", body = WrittenFile),
        (status = 201, description = "Made", body = WrittenFile)))]
async fn write_file(
    State(app): State<App>,
    Segments((id, path)): Segments<(String, String)>,
    Params(params): Params<Vec<(String, String)>>,
    body: Body,
) -> Result<(StatusCode, Json<WrittenFile>), ApiError> {
    if let Some((name, _)) = params.first() {
        return Err(spec::unknown_field(name, &[]));
    }
    let path = format!("/{path}");
    let target = path.clone();
    let upload = upload::Upload::new(app.runtime.clone(), id, path);
    // In a task, so that a client that leaves does not leave a half-written file behind.
    let upload = app.abort.clone().run_until_cancelled_owned(upload.run(body.into_data_stream()));
    let done = app.tasks.spawn(upload).await;
    let done =
        done.map_err(|_| ApiError::of_kind(ErrorKind::Internal, "the upload ended without a result"))?;
    let (status, bytes) = done.ok_or(RuntimeError::ShuttingDown)??;
    Ok((status, Json(WrittenFile { path: target, bytes })))
}

/// Make a directory, or rename
///
/// Exactly one of `?mkdir=1` (missing parents are made, and one that exists is no error) and `?rename_to=`.
#[utoipa::path(post, path = "/v1/sessions/{id}/files/{*path}", tag = "files", operation_id = "change_file",
    params(("id" = String, Path, description = "Name of the session", example = "demo"),
        ("path" = String, Path, description = "Absolute path in the box, without its first slash",
            example = "workspace/dir"),
        ("mkdir" = Option<bool>, Query, description = "`1`: make a directory"),
        ("rename_to" = Option<String>, Query, description = "The new path, absolute", example = "/workspace/b.txt")),
    responses((status = 200, description = "Renamed", body = Changed),
        (status = 201, description = "The directory is there", body = Changed)))]
async fn change_file(
    State(app): State<App>,
    Segments((id, path)): Segments<(String, String)>,
    Params(params): Params<ChangeParams>,
) -> Result<(StatusCode, Json<Changed>), ApiError> {
    let path = format!("/{path}");
    match (params.mkdir, params.rename_to) {
        (true, None) => {
            app.runtime.files(&id, FileRequest::MakeDir { path: path.clone() }).await?;
            Ok((StatusCode::CREATED, Json(Changed { path })))
        }
        (false, Some(to)) if to.starts_with('/') => {
            app.runtime.files(&id, FileRequest::Rename { from: path, to: to.clone() }).await?;
            Ok((StatusCode::OK, Json(Changed { path: to })))
        }
        (false, Some(_)) => Err(ApiError::invalid("rename_to", "must be an absolute path of the box")),
        _ => Err(ApiError::invalid("mkdir", "or rename_to must be given, and not both")),
    }
}

/// Remove a file
///
/// Or a directory with all below it.
#[utoipa::path(delete, path = "/v1/sessions/{id}/files/{*path}", tag = "files", operation_id = "remove_file",
    params(("id" = String, Path, description = "Name of the session", example = "demo"),
        ("path" = String, Path, description = "Absolute path in the box, without its first slash",
            example = "workspace/a.txt")),
    responses((status = 200, description = "It is gone", body = Removed)))]
async fn remove_file(
    State(app): State<App>,
    Segments((id, path)): Segments<(String, String)>,
) -> Result<Json<Removed>, ApiError> {
    let path = format!("/{path}");
    app.runtime.files(&id, FileRequest::Remove { path: path.clone() }).await?;
    Ok(Json(Removed { deleted: path }))
}

pub(crate) async fn stat(runtime: &Runtime, session: &str, path: &str) -> Result<FileEntry, ApiError> {
    match runtime.files(session, FileRequest::Stat { path: path.to_owned() }).await? {
        FileReply::Entry(entry) => Ok(entry),
        _ => Err(unexpected("stat", path)),
    }
}

/// What a path leads to, and where that is: a `Stat` alone does not follow the last link.
pub(crate) async fn follow(
    runtime: &Runtime,
    session: &str,
    path: &str,
) -> Result<(String, FileEntry), ApiError> {
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        let entry = stat(runtime, session, &path).await?;
        match (entry.kind, &entry.link_target) {
            (FileKind::Symlink, Some(target)) if target.starts_with('/') => path = target.clone(),
            // Joined and not tidied up: what `..` leads to is for the box to find out.
            (FileKind::Symlink, Some(target)) => {
                let parent = path.rfind('/').map_or("", |at| &path[..at]);
                path = format!("{parent}/{target}");
            }
            _ => return Ok((path, entry)),
        }
    }
    Err(failed(&path, "too many links"))
}

fn failed(path: &str, why: &str) -> ApiError {
    ApiError::of_kind(ErrorKind::FileFailed, format!("{path}: {why}"))
}

fn unexpected(operation: &str, path: &str) -> ApiError {
    let source = std::io::Error::other("the backend gave another answer");
    RuntimeError::from(sandcrate_backend::BackendError::failed(format!("{operation} {path}"), source)).into()
}
