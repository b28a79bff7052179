//! Archives: a zip of skills in, a zip of one skill out.

use std::time::Duration;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use sandcrate_skills::{Archive, Candidate, Selection, Store};
use serde::Serialize;
use tokio::sync::OwnedSemaphorePermit;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::files::read_body;
use super::{SCOPE, SkillList};
use crate::App;
use crate::rest::error::ApiError;
use crate::rest::extract::{Segments, cut};
use crate::rest::schema::CandidateFacts;

/// For a whole archive: 64 MiB at a megabit a second, with some room.
const ARRIVAL: Duration = Duration::from_secs(600);

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default().routes(routes!(install_skill_zip)).routes(routes!(export_skill))
}

#[derive(Debug, Serialize, ToSchema)]
struct CandidateList {
    #[schema(value_type = Vec<CandidateFacts>)]
    skills: Vec<Candidate>,
}

/// What the query of an install says. By hand: `source_path` may stand several times.
#[derive(Debug)]
struct InstallParams {
    preview: bool,
    archive: Archive,
    selection: Selection,
}

impl InstallParams {
    fn read(uri: &Uri) -> Result<Self, ApiError> {
        let pairs = axum::extract::Query::<Vec<(String, String)>>::try_from_uri(uri);
        let axum::extract::Query(pairs) =
            pairs.map_err(|error| ApiError::invalid("query", format!("is not acceptable: {error}")))?;
        let mut params = Self {
            preview: false,
            archive: Archive {
                bytes: Vec::new(),
                filename: Archive::DEFAULT_FILENAME.to_owned(),
                source_subdir: String::new(),
                // Only LangBot tells its uploads apart by a word in the directory's name.
                target_suffix: String::new(),
            },
            selection: Selection::default(),
        };
        for (key, value) in pairs {
            match key.as_str() {
                "preview" => {
                    params.preview = match value.as_str() {
                        "" | "1" | "true" => true,
                        "0" | "false" => false,
                        other => {
                            return Err(ApiError::invalid(
                                "preview",
                                format!("is `{}`, not 1 or 0", cut(other)),
                            ));
                        }
                    };
                }
                "filename" => params.archive.filename = value,
                "source_subdir" => params.archive.source_subdir = value,
                "target_suffix" => params.archive.target_suffix = value,
                "source_path" => params.selection.source_paths.push(value),
                other => {
                    let problem = "is not known; known are `preview`, `filename`, `source_subdir`, `source_path`, \
                                   `target_suffix`";
                    return Err(ApiError::invalid(cut(other), problem));
                }
            }
        }
        Ok(params)
    }
}

/// Install skills from a zip
///
/// All that are named by `source_path`, or the only one. A bundle is looked for two levels deep, below its one
/// top directory if it has one. With `?preview=1` nothing is written: the answer has status 200 and lists what
/// there is to choose from, each with its `source_path`.
#[utoipa::path(post, path = "/v1/skill-archives", tag = "skills", operation_id = "install_skill_zip",
    params(("preview" = Option<bool>, Query, description = "`1`: only say what is in it"),
        ("filename" = Option<String>, Query, description = "Names the directory", example = "pdf.zip"),
        ("source_subdir" = Option<String>, Query, description = "Look only below this directory of the archive"),
        ("source_path" = Option<Vec<String>>, Query, description = "Which of several; may stand several times"),
        ("target_suffix" = Option<String>, Query, description = "Added to the name of the directory")),
    request_body(content = Vec<u8>, content_type = "application/zip", example = json!("the bytes of a zip")),
    responses((status = 200, description = "What is in it", body = CandidateList),
        (status = 201, description = "The skills that were installed", body = SkillList)))]
async fn install_skill_zip(State(app): State<App>, uri: Uri, body: Body) -> Result<Response, ApiError> {
    let InstallParams { preview, mut archive, selection } = InstallParams::read(&uri)?;
    let skills = app.runtime.skills();
    // Each holds a whole archive in memory, so few at once.
    let room = skills.room().await?;
    let read = read_body(body, skills.limits().upload_bytes, "upload_bytes");
    archive.bytes = within(ARRIVAL, read).await?.into();
    if preview {
        let look = move |store: &Store| {
            let _room = room;
            store.preview(&archive)
        };
        let skills = skills.with(&SCOPE, look).await?;
        return Ok(Json(CandidateList { skills }).into_response());
    }
    // The work goes on when the caller leaves, and keeps its room.
    let put = move |store: &Store| {
        let _room = room;
        store.install(&archive, &selection)
    };
    let skills = skills.with(&SCOPE, put).await?;
    Ok((StatusCode::CREATED, Json(SkillList { skills })).into_response())
}

/// Export a skill
///
/// A zip of its directory, which can be installed again.
#[utoipa::path(get, path = "/v1/skills/{name}/archive", tag = "skills", operation_id = "export_skill",
    params(("name" = String, Path, description = "Name of the skill", example = "pdf")),
    responses((status = 200, description = "The archive", body = Vec<u8>, content_type = "application/zip")))]
async fn export_skill(
    State(app): State<App>,
    Segments(name): Segments<String>,
) -> Result<Response, ApiError> {
    let skills = app.runtime.skills();
    let room = skills.room().await?;
    let pack = move |store: &Store| Ok(InRoom { bytes: store.export(&name)?, _room: room });
    let packed = skills.with(&SCOPE, pack).await?;
    let headers = [(CONTENT_TYPE, "application/zip"), (CONTENT_DISPOSITION, "attachment")];
    Ok((headers, Bytes::from_owner(packed)).into_response())
}

/// An archive that has its room until the last byte is sent, or its reader is gone.
struct InRoom {
    bytes: Vec<u8>,
    _room: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for InRoom {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// One deadline for a whole body: a sender of single bytes must not keep a room.
async fn within(
    patience: Duration,
    read: impl Future<Output = Result<Bytes, ApiError>>,
) -> Result<Bytes, ApiError> {
    let late = |_| {
        let message = format!("the body did not arrive within {} seconds", patience.as_secs());
        ApiError::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", message)
    };
    tokio::time::timeout(patience, read).await.map_err(late)?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_body_that_never_ends_is_given_up() {
        let began = std::time::Instant::now();
        let pieces = futures_util::stream::unfold((), |()| async {
            tokio::time::sleep(Duration::from_millis(5)).await;
            Some((Ok::<_, std::io::Error>(Bytes::from_static(b"x")), ()))
        });
        let read = read_body(Body::from_stream(pieces), 1 << 20, "upload_bytes");
        let refused = within(Duration::from_millis(50), read).await.unwrap_err().into_response();
        assert_eq!(refused.status(), StatusCode::REQUEST_TIMEOUT);
        assert!(began.elapsed() < Duration::from_secs(5));
    }

    #[tokio::test]
    async fn an_archive_keeps_its_room_until_the_last_piece_of_it_is_gone() {
        let rooms = std::sync::Arc::new(tokio::sync::Semaphore::new(1));
        let room = std::sync::Arc::clone(&rooms).acquire_owned().await.unwrap();
        let mut bytes = Bytes::from_owner(InRoom { bytes: b"zip".to_vec(), _room: room });
        drop(bytes.split_to(2));
        assert_eq!(rooms.available_permits(), 0);
        let body = bytes.into_response();
        assert_eq!(rooms.available_permits(), 0);
        drop(body);
        assert_eq!(rooms.available_permits(), 1);
    }
}
