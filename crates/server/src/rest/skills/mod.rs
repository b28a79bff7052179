//! Skills: `/v1/skills/{name}`, their files, and archives of them.

mod archives;
mod files;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use sandcrate_skills::{NewSkill, Scope, Skill, SkillChange};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::error::ApiError;
use super::extract::{JsonBody, Segments};
use super::schema::SkillFacts;
use crate::App;

/// REST has one kind of client.
const SCOPE: Scope = Scope::Shared;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::default()
        .routes(routes!(list_skills, create_skill))
        .routes(routes!(get_skill, update_skill, delete_skill))
        .routes(routes!(scan_skill_directory))
        .merge(files::routes())
        .merge(archives::routes())
}

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SkillList {
    /// The last changed first.
    #[schema(value_type = Vec<SkillFacts>)]
    skills: Vec<Skill>,
}

#[derive(Debug, Serialize, ToSchema)]
struct DeletedSkill {
    #[schema(example = "pdf")]
    deleted: String,
}

/// A skill to be made.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct SkillRequest {
    /// Letters, numbers, hyphens and underscores; at most 64.
    #[schema(example = "pdf")]
    name: String,
    #[serde(default)]
    display_name: String,
    #[serde(default)]
    description: String,
    /// The body of its `SKILL.md`.
    #[serde(default)]
    instructions: String,
    /// A directory of the server's host to take in, below the skills root or an allowed mount root.
    #[serde(default)]
    package_root: String,
}

/// What to change; what is absent stays, and an empty text is removed.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
struct SkillEdit {
    #[serde(deserialize_with = "text")]
    display_name: Option<String>,
    #[serde(deserialize_with = "text")]
    description: Option<String>,
    #[serde(deserialize_with = "text")]
    instructions: Option<String>,
}

/// Null is no text and no absence: it is refused.
fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    String::deserialize(deserializer).map(Some)
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ScanRequest {
    /// An absolute path of the server's host.
    path: String,
}

/// List skills
#[utoipa::path(get, path = "/v1/skills", tag = "skills", operation_id = "list_skills",
    responses((status = 200, description = "The skills", body = SkillList)))]
async fn list_skills(State(app): State<App>) -> Result<Json<SkillList>, ApiError> {
    Ok(Json(SkillList { skills: app.runtime.skills().list(&SCOPE).await? }))
}

/// Make a skill
///
/// New, or out of a directory of the server's host with `package_root`.
#[utoipa::path(post, path = "/v1/skills", tag = "skills", operation_id = "create_skill",
    request_body(content = SkillRequest, example = json!({"name": "pdf", "description": "Reads PDF files",
        "instructions": "# PDF\n\nUse `pdftotext`.\n"})),
    responses((status = 201, description = "The skill", body = SkillFacts)))]
async fn create_skill(
    State(app): State<App>,
    JsonBody(body): JsonBody<SkillRequest>,
) -> Result<(StatusCode, Json<Skill>), ApiError> {
    let new = NewSkill {
        name: body.name,
        display_name: body.display_name,
        description: body.description,
        instructions: body.instructions,
        package_root: body.package_root,
    };
    Ok((StatusCode::CREATED, Json(app.runtime.skills().create(&SCOPE, new).await?)))
}

/// Look at a skill
#[utoipa::path(get, path = "/v1/skills/{name}", tag = "skills", operation_id = "get_skill",
    params(("name" = String, Path, description = "Name of the skill", example = "pdf")),
    responses((status = 200, description = "The skill", body = SkillFacts)))]
async fn get_skill(
    State(app): State<App>,
    Segments(name): Segments<String>,
) -> Result<Json<Skill>, ApiError> {
    Ok(Json(app.runtime.skills().get(&SCOPE, &name).await?))
}

/// Change a skill
///
/// Its `SKILL.md` keeps every other key, and its body unless `instructions` are given.
#[utoipa::path(patch, path = "/v1/skills/{name}", tag = "skills", operation_id = "update_skill",
    params(("name" = String, Path, description = "Name of the skill", example = "pdf")),
    request_body(content = SkillEdit, example = json!({"description": "Reads and writes PDF files"})),
    responses((status = 200, description = "The skill as it is now", body = SkillFacts)))]
async fn update_skill(
    State(app): State<App>,
    Segments(name): Segments<String>,
    JsonBody(body): JsonBody<SkillEdit>,
) -> Result<Json<Skill>, ApiError> {
    let change = SkillChange {
        display_name: body.display_name,
        description: body.description,
        instructions: body.instructions,
        ..SkillChange::default()
    };
    Ok(Json(app.runtime.skills().with(&SCOPE, move |store| store.update(&name, &change)).await?))
}

/// Delete a skill
///
/// Its own directory, and no other skill beside it.
#[utoipa::path(delete, path = "/v1/skills/{name}", tag = "skills", operation_id = "delete_skill",
    params(("name" = String, Path, description = "Name of the skill", example = "pdf")),
    responses((status = 200, description = "It is gone", body = DeletedSkill)))]
async fn delete_skill(
    State(app): State<App>,
    Segments(name): Segments<String>,
) -> Result<Json<DeletedSkill>, ApiError> {
    let deleted = name.clone();
    app.runtime.skills().with(&SCOPE, move |store| store.delete(&name)).await?;
    Ok(Json(DeletedSkill { deleted }))
}

/// Look for a skill in a directory
///
/// Of the server's host, below the skills root or an allowed mount root; two levels deep. Nothing is changed.
#[utoipa::path(post, path = "/v1/skill-scans", tag = "skills", operation_id = "scan_skill_directory",
    request_body(content = ScanRequest, example = json!({"path": "/srv/langbot/data/box/default/my-skill"})),
    responses((status = 200, description = "The one skill there", body = SkillFacts)))]
async fn scan_skill_directory(
    State(app): State<App>,
    JsonBody(body): JsonBody<ScanRequest>,
) -> Result<Json<Skill>, ApiError> {
    Ok(Json(app.runtime.skills().scan(&SCOPE, body.path).await?))
}
