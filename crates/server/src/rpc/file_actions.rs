//! Files of a box, for hosts whose tools work on them: actions of ours, which the reference does not have.
//!
//! The session is that of `spec`, made when it is not there.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use sandcrate_backend::{FileEntry, FileKind, FileReply, FileRequest};
use sandcrate_protocol::ErrorKind;
use sandcrate_runtime::SessionOptions;
use serde::Serialize;
use serde_json::Value;

use super::actions::{Call, Outcome};
use super::answer::{ActionError, Answer};

/// The most bytes of a file in one answer: encoded they fit into what any message may have.
const MAX_READ_BYTES: u64 = 8 << 20;

#[derive(Debug, Serialize)]
pub(crate) struct FileMeta {
    name: String,
    kind: FileKind,
    size: u64,
    modified_ms: i64,
}

impl From<FileEntry> for FileMeta {
    fn from(entry: FileEntry) -> Self {
        let FileEntry { name, kind, bytes, modified, .. } = entry;
        Self { name, kind, size: bytes, modified_ms: modified.saturating_mul(1000) }
    }
}

/// What is at a path; null when nothing is.
pub(super) async fn stat_file(call: Call<'_>) -> Outcome {
    let path = text(call.data, "path")?;
    match serve(&call, FileRequest::Stat { path }).await {
        Ok(FileReply::Entry(entry)) => Ok(Answer::FileEntry { entry: Some(Box::new(entry.into())) }),
        Ok(_) => Err(unexpected()),
        Err(error) if error.kind() == ErrorKind::FileNotFound => Ok(Answer::FileEntry { entry: None }),
        Err(error) => Err(error),
    }
}

pub(super) async fn list_files(call: Call<'_>) -> Outcome {
    let path = text(call.data, "path")?;
    match serve(&call, FileRequest::List { path }).await? {
        FileReply::Entries(entries) => {
            Ok(Answer::FileEntries { entries: entries.into_iter().map(FileMeta::from).collect() })
        }
        _ => Err(unexpected()),
    }
}

pub(super) async fn read_file(call: Call<'_>) -> Outcome {
    let path = text(call.data, "path")?;
    let offset = number(call.data, "offset", 0)?;
    let limit = number(call.data, "limit", MAX_READ_BYTES)?.min(MAX_READ_BYTES);
    match serve(&call, FileRequest::Read { path, offset, limit }).await? {
        FileReply::Data { data, file_bytes } => {
            Ok(Answer::FileData { data: STANDARD.encode(data), size: file_bytes })
        }
        _ => Err(unexpected()),
    }
}

/// Replaces a file, or with `append` adds to its end.
pub(super) async fn write_file(call: Call<'_>) -> Outcome {
    let path = text(call.data, "path")?;
    let data = STANDARD.decode(text(call.data, "data")?);
    let data = Bytes::from(data.map_err(|_| ActionError::invalid("data must be base64"))?);
    let request = match call.data.get("append").and_then(Value::as_bool) {
        Some(true) => FileRequest::Append { path, data },
        _ => FileRequest::Write { path, data },
    };
    serve(&call, request).await.map(|_| Answer::Empty {})
}

async fn serve(call: &Call<'_>, request: FileRequest) -> Result<FileReply, ActionError> {
    let spec = call.data.get("spec").ok_or(ActionError::MissingKey { key: "spec" })?;
    let spec = Call { data: spec, ..*call }.spec().await?;
    call.runtime.create_session(&spec, SessionOptions::default()).await?;
    Ok(call.runtime.files(&spec.session_id, request).await?)
}

fn unexpected() -> ActionError {
    ActionError::invalid("the backend answered something else than was asked")
}

fn text(data: &Value, key: &'static str) -> Result<String, ActionError> {
    let value = data.get(key).ok_or(ActionError::MissingKey { key })?;
    let text = value.as_str().ok_or_else(|| ActionError::invalid(format!("{key} must be a string")))?;
    Ok(text.to_owned())
}

fn number(data: &Value, key: &str, default: u64) -> Result<u64, ActionError> {
    match data.get(key) {
        None | Some(Value::Null) => Ok(default),
        Some(value) => value
            .as_u64()
            .ok_or_else(|| ActionError::invalid(format!("{key} must be a number of at least 0"))),
    }
}
