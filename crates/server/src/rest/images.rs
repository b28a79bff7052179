//! Images that sessions can be made of: import, list, remove.

use std::fs::File;
use std::io::Write;

use axum::Json;
use axum::body::{Body, BodyDataStream};
use axum::extract::State;
use axum::http::StatusCode;
use bytes::BytesMut;
use futures_util::StreamExt;
use sandcrate_backend::{BackendError, ImageRemoval};
use sandcrate_runtime::ImageView;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::error::ApiError;
use super::extract::{Params, Segments};
use super::schema::ImageFacts;
use super::spec;
use crate::App;

/// Written at a time.
const PIECE_BYTES: usize = 1 << 20;
/// As it is sent, packed or not.
const MAX_ARCHIVE_BYTES: u64 = 16 << 30;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default().routes(routes!(list_images)).routes(routes!(import_image, delete_image))
}

#[derive(Debug, Serialize, ToSchema)]
struct ImageList {
    #[schema(value_type = Vec<ImageFacts>)]
    images: Vec<ImageView>,
}

#[derive(Debug, Serialize, ToSchema)]
struct Removed {
    #[schema(example = "python")]
    removed: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RemovalQuery {
    #[serde(default)]
    force: bool,
}

/// List images
///
/// A session takes one by its name in `image`.
#[utoipa::path(get, path = "/v1/images", tag = "images", operation_id = "list_images",
    responses((status = 200, description = "The images", body = ImageList)))]
async fn list_images(State(app): State<App>) -> Result<Json<ImageList>, ApiError> {
    Ok(Json(ImageList { images: app.runtime.images().await? }))
}

/// Import an image
///
/// The body is a tar of a root, an archive of `docker save` or an OCI layout; plain, gzip or zstd. It takes the place of
/// an image of that name, as a whole or not at all; sessions that use the earlier one keep it.
#[utoipa::path(post, path = "/v1/images/{name}", tag = "images", operation_id = "import_image",
    params(("name" = String, Path, description = "Name of the image, percent-encoded", example = "python")),
    request_body(content = String, content_type = "application/x-tar", example = "the bytes of an archive"),
    responses((status = 201, description = "It is there", body = ImageFacts)))]
async fn import_image(
    State(app): State<App>,
    Segments(name): Segments<String>,
    Params(params): Params<Vec<(String, String)>>,
    body: Body,
) -> Result<(StatusCode, Json<ImageView>), ApiError> {
    if let Some((name, _)) = params.first() {
        return Err(spec::unknown_field(name, &[]));
    }
    let (import, file) = app.runtime.image_spool().await?;
    let file = receive(file, body.into_data_stream()).await?;
    Ok((StatusCode::CREATED, Json(import.finish(&name, file).await?)))
}

/// Writes the body to the file, gathered to pieces that are worth a trip to another thread. A body that breaks off
/// leaves nothing: the file has no name.
async fn receive(mut file: File, mut body: BodyDataStream) -> Result<File, ApiError> {
    let (mut total, mut ended) = (0_u64, false);
    while !ended {
        let mut piece = BytesMut::new();
        while piece.len() < PIECE_BYTES {
            let Some(chunk) = body.next().await else {
                ended = true;
                break;
            };
            piece.extend_from_slice(
                &chunk.map_err(|error| ApiError::invalid("body", format!("broke off: {error}")))?,
            );
        }
        total += piece.len() as u64;
        if total > MAX_ARCHIVE_BYTES {
            let message =
                format!("an archive may have {MAX_ARCHIVE_BYTES} bytes; import it on the machine itself");
            return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message));
        }
        let written = tokio::task::spawn_blocking(move || file.write_all(&piece).map(|()| file)).await;
        file = written
            .unwrap_or_else(|error| Err(std::io::Error::other(error)))
            .map_err(|error| BackendError::failed("receiving the archive", error))?;
    }
    Ok(file)
}

/// Remove an image
///
/// One that sessions use is refused, unless by force: then they keep it until they end, and new ones do not find it.
#[utoipa::path(delete, path = "/v1/images/{name}", tag = "images", operation_id = "delete_image",
    params(
        ("name" = String, Path, description = "Name of the image, percent-encoded", example = "python"),
        ("force" = Option<bool>, Query, description = "Also one that sessions use"),
    ),
    responses((status = 200, description = "It is gone", body = Removed)))]
async fn delete_image(
    State(app): State<App>,
    Segments(name): Segments<String>,
    Params(query): Params<RemovalQuery>,
) -> Result<Json<Removed>, ApiError> {
    let removal = if query.force { ImageRemoval::Force } else { ImageRemoval::Refuse };
    app.runtime.remove_image(&name, removal).await?;
    Ok(Json(Removed { removed: name }))
}
