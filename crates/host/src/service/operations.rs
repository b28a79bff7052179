//! What goes to the runtime as it is: sessions, managed processes, skills.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sandcrate_protocol::{DEFAULT_PROCESS_ID, ErrorKind, ProcessInfo, ProcessSpec};
use serde_json::{Value, json};

use super::{HostMounts, Service};
use crate::{HostError, Result};

/// Bytes of an archive in one message. Encoded it fits into what every runtime takes in one piece.
const CHUNK_BYTES: usize = 32 << 10;

/// An uploaded archive of skills, and how it is to be read.
#[derive(Debug, Clone)]
pub struct SkillZip<'a> {
    pub bytes: &'a [u8],
    pub filename: &'a str,
    pub source_subdir: &'a str,
    pub target_suffix: &'a str,
}

impl<'a> SkillZip<'a> {
    pub fn new(bytes: &'a [u8], filename: &'a str) -> Self {
        Self { bytes, filename, source_subdir: "", target_suffix: "upload" }
    }
}

impl Service {
    /// # Errors
    /// When the payload is refused here or by the runtime.
    pub async fn create_session(&self, payload: &Value, mounts: HostMounts) -> Result<Value> {
        let spec = self.build_spec(payload, mounts)?;
        self.inner.client.create_session(&spec).await
    }

    /// # Errors
    /// When the payload is refused here or by the runtime.
    pub async fn start_managed_process(&self, session: &str, payload: &Value) -> Result<ProcessInfo> {
        let spec = ProcessSpec::from_json(payload).map_err(|error| HostError::invalid(error.to_string()))?;
        self.inner.client.start_process(session, &spec).await
    }

    /// # Errors
    /// When there is none; without an id the one called `default`.
    pub async fn managed_process(&self, session: &str, process: Option<&str>) -> Result<ProcessInfo> {
        self.inner.client.process(session, process.unwrap_or(DEFAULT_PROCESS_ID)).await
    }

    /// # Errors
    /// When there is none.
    pub async fn stop_managed_process(&self, session: &str, process: Option<&str>) -> Result<()> {
        self.inner.client.stop_process(session, process.unwrap_or(DEFAULT_PROCESS_ID)).await
    }

    /// Where to attach to a managed process.
    ///
    /// # Errors
    /// When the client is not one over a network.
    pub fn attach_url(&self, session: &str, process: Option<&str>) -> Result<String> {
        let process = process.unwrap_or(DEFAULT_PROCESS_ID);
        let connection = self.inner.connection.as_ref();
        connection.and_then(|line| line.attach_url(session, process)).ok_or_else(|| {
            HostError::invalid("box runtime client does not support managed process websocket attach")
        })
    }

    /// # Errors
    /// As the runtime's skill store says.
    pub async fn list_skills(&self) -> Result<Vec<Value>> {
        list(self.inner.client.skill("box_list_skills", json!({})).await?, "skills")
    }

    /// Nothing when there is no such skill.
    ///
    /// # Errors
    /// As the runtime's skill store says.
    pub async fn get_skill(&self, name: &str) -> Result<Option<Value>> {
        let mut data = self.inner.client.skill("box_get_skill", json!({"name": name})).await?;
        Ok(Some(data["skill"].take()).filter(|skill| !skill.is_null()))
    }

    /// # Errors
    /// As the runtime's skill store says.
    pub async fn create_skill(&self, skill: Value) -> Result<Value> {
        let mut data = self.inner.client.skill("box_create_skill", json!({"skill": skill})).await?;
        Ok(data["skill"].take())
    }

    /// # Errors
    /// As the runtime's skill store says.
    pub async fn update_skill(&self, name: &str, skill: Value) -> Result<Value> {
        let data = json!({"name": name, "skill": skill});
        let mut data = self.inner.client.skill("box_update_skill", data).await?;
        Ok(data["skill"].take())
    }

    /// # Errors
    /// As the runtime's skill store says.
    pub async fn delete_skill(&self, name: &str) -> Result<()> {
        self.inner.client.skill("box_delete_skill", json!({"name": name})).await.map(drop)
    }

    /// What would become of a directory as a skill.
    ///
    /// # Errors
    /// As the runtime's skill store says.
    pub async fn scan_skill_directory(&self, path: &str) -> Result<Value> {
        self.inner.client.skill("box_scan_skill_directory", json!({"path": path})).await
    }

    /// The entries below a directory of a skill; hidden ones are left out, and what is beyond 200.
    ///
    /// # Errors
    /// As the runtime's skill store says.
    pub async fn list_skill_files(&self, name: &str, path: Option<&str>) -> Result<Value> {
        let path = path.unwrap_or(".");
        let data = json!({"name": name, "path": path, "include_hidden": false, "max_entries": 200});
        self.inner.client.skill("box_list_skill_files", data).await
    }

    /// # Errors
    /// As the runtime's skill store says.
    pub async fn read_skill_file(&self, name: &str, path: &str) -> Result<Value> {
        self.inner.client.skill("box_read_skill_file", json!({"name": name, "path": path})).await
    }

    /// # Errors
    /// As the runtime's skill store says.
    pub async fn write_skill_file(&self, name: &str, path: &str, content: &str) -> Result<Value> {
        let data = json!({"name": name, "path": path, "content": content});
        self.inner.client.skill("box_write_skill_file", data).await
    }

    /// # Errors
    /// As the runtime's skill store says.
    pub async fn preview_skill_zip(&self, zip: &SkillZip<'_>) -> Result<Vec<Value>> {
        let data = self.uploaded(zip).await?;
        list(self.inner.client.skill("box_preview_skill_zip", data).await?, "skills")
    }

    /// # Errors
    /// As the runtime's skill store says.
    pub async fn install_skill_zip(&self, zip: &SkillZip<'_>, source_paths: &[&str]) -> Result<Vec<Value>> {
        let mut data = self.uploaded(zip).await?;
        data["source_paths"] = json!(source_paths);
        data["source_path"] = json!("");
        list(self.inner.client.skill("box_install_skill_zip", data).await?, "skills")
    }

    /// Sends the archive ahead, and names it.
    async fn uploaded(&self, zip: &SkillZip<'_>) -> Result<Value> {
        let key = format!("{}.zip", uuid::Uuid::now_v7().simple());
        let chunks: Vec<&[u8]> = match zip.bytes {
            [] => vec![&[]],
            bytes => bytes.chunks(CHUNK_BYTES).collect(),
        };
        for (index, chunk) in chunks.iter().enumerate() {
            let data = json!({
                "file_key": key,
                "chunk_base64": STANDARD.encode(chunk),
                "chunk_index": index,
                "chunk_amount": chunks.len(),
            });
            self.inner.client.skill("__file_chunk", data).await?;
        }
        Ok(json!({
            "file_key": key,
            "filename": zip.filename,
            "source_subdir": zip.source_subdir,
            "target_suffix": zip.target_suffix,
        }))
    }
}

fn list(mut data: Value, key: &str) -> Result<Vec<Value>> {
    match data[key].take() {
        Value::Array(items) => Ok(items),
        _ => Err(HostError::new(ErrorKind::Internal, format!("the runtime's answer has no list of {key}"))),
    }
}
