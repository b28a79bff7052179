//! Files of a box over RPC.
//!
//! Our server has actions for them. Other runtimes are asked to run a short program in the box instead, which
//! does the same and prints one line of JSON.

use std::sync::atomic::Ordering;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use sandcrate_protocol::{BoxSpec, ErrorKind};
use serde::Deserialize;
use serde_json::{Value, json};

use super::client::{RpcClient, START, encoded, read};
use crate::{Client as _, FileKind, FileMeta, HostError, Result};

/// Bytes of a file in one message to our server: encoded they are well below what a message may have.
const PIECE: usize = 4 << 20;
/// Bytes that the program prints at once: encoded they are below what runtimes keep of a command's output.
const PRINTED_PIECE: usize = 384 << 10;
/// Bytes that the program is given at once: the kernel takes no argument longer than 128 KiB.
const GIVEN_PIECE: usize = 48 << 10;
const PROGRAM_SECONDS: u64 = 30;
const PROGRAM: &str = include_str!("files.py");

#[derive(Deserialize)]
struct Entry {
    name: String,
    kind: String,
    size: u64,
    modified_ms: i64,
}

impl From<Entry> for FileMeta {
    fn from(Entry { name, kind, size, modified_ms }: Entry) -> Self {
        let kind = match kind.as_str() {
            "file" => FileKind::File,
            "directory" => FileKind::Directory,
            "symlink" => FileKind::Symlink,
            _ => FileKind::Other,
        };
        Self { name, kind, size, modified_ms }
    }
}

#[derive(Deserialize)]
struct Failure {
    kind: ErrorKind,
    message: String,
}

impl RpcClient {
    pub(super) async fn file_stat(&self, spec: &BoxSpec, path: &str) -> Result<Option<FileMeta>> {
        let mut data = self.file_action(spec, "stat", json!({"path": path})).await?;
        let entry: Option<Entry> = read("file entry", data["entry"].take())?;
        Ok(entry.map(FileMeta::from))
    }

    pub(super) async fn file_list(&self, spec: &BoxSpec, path: &str) -> Result<Vec<FileMeta>> {
        let mut data = self.file_action(spec, "list", json!({"path": path})).await?;
        let entries: Vec<Entry> = read("list of files", data["entries"].take())?;
        Ok(entries.into_iter().map(FileMeta::from).collect())
    }

    pub(super) async fn file_read(&self, spec: &BoxSpec, path: &str, limit: u64) -> Result<Bytes> {
        let mut content = BytesMut::new();
        loop {
            let offset = content.len() as u64;
            let left = usize::try_from(limit - offset).unwrap_or(usize::MAX);
            let ask = left.min(self.read_piece()?);
            let arguments = json!({"path": path, "offset": offset, "limit": ask});
            let data = self.file_action(spec, "read", arguments).await?;
            let piece = data["data"].as_str().and_then(|text| STANDARD.decode(text).ok());
            let piece = piece.ok_or_else(|| unreadable("no content"))?;
            content.extend_from_slice(&piece[..piece.len().min(left)]);
            // What was asked for may have shrunk on the way, when there is no action for it.
            if piece.len() < ask.min(self.read_piece()?) || content.len() as u64 >= limit {
                return Ok(content.freeze());
            }
        }
    }

    pub(super) async fn file_write(&self, spec: &BoxSpec, path: &str, data: &[u8]) -> Result<()> {
        let mut rest = data;
        let mut append = false;
        loop {
            let by_program = self.line()?.without_files.load(Ordering::Relaxed);
            let length = rest.len().min(if by_program { GIVEN_PIECE } else { PIECE });
            let piece = STANDARD.encode(&rest[..length]);
            let arguments = json!({"path": path, "append": append, "data": piece});
            let written = if by_program {
                self.by_program(spec, "write", arguments).await
            } else {
                self.by_action(spec, "write", arguments).await
            };
            match written {
                // Found out now; a program is given less at once.
                Err(_) if !by_program && self.line()?.without_files.load(Ordering::Relaxed) => continue,
                written => drop(written?),
            }
            rest = &rest[length..];
            append = true;
            if rest.is_empty() {
                return Ok(());
            }
        }
    }

    fn read_piece(&self) -> Result<usize> {
        let by_program = self.line()?.without_files.load(Ordering::Relaxed);
        Ok(if by_program { PRINTED_PIECE } else { PIECE })
    }

    /// By the action, or by the program where there is none.
    async fn file_action(&self, spec: &BoxSpec, operation: &str, mut arguments: Value) -> Result<Value> {
        let line = self.line()?;
        if !line.without_files.load(Ordering::Relaxed) {
            match self.by_action(spec, operation, arguments.clone()).await {
                Err(_) if line.without_files.load(Ordering::Relaxed) => {}
                done => return done,
            }
        }
        if let Some(limit) = arguments["limit"].as_u64() {
            arguments["limit"] = limit.min(PRINTED_PIECE as u64).into();
        }
        self.by_program(spec, operation, arguments).await
    }

    async fn by_action(&self, spec: &BoxSpec, operation: &str, mut arguments: Value) -> Result<Value> {
        let line = self.line()?;
        arguments["spec"] = encoded(spec)?;
        match line.call(&format!("box_file_{operation}"), arguments, START).await {
            Err(mut error) => {
                if error.kind == ErrorKind::Unsupported {
                    line.without_files.store(true, Ordering::Relaxed);
                }
                // A file's fault is told to a model in its own words.
                if matches!(error.kind, ErrorKind::FileNotFound | ErrorKind::FileFailed)
                    && let Some(words) = error.message.strip_prefix("BoxError: ")
                {
                    error.message = words.to_owned();
                }
                Err(error)
            }
            done => done,
        }
    }

    async fn by_program(&self, spec: &BoxSpec, operation: &str, mut arguments: Value) -> Result<Value> {
        arguments["op"] = json!(operation);
        let mut spec = spec.clone();
        spec.cmd = format!("python3 -c '{PROGRAM}' {}", STANDARD.encode(arguments.to_string()));
        spec.timeout_sec = PROGRAM_SECONDS;
        spec.env.clear();
        let result = self.execute(&spec).await?;
        if result.exit_code == Some(127) {
            let message = "files of this box cannot be reached: its runtime has no actions for them and its image has no python3";
            return Err(HostError::new(ErrorKind::Unsupported, message));
        }
        let printed = serde_json::from_str(&result.stdout);
        checked(printed.map_err(|_| match result.stderr.is_empty() {
            true => unreadable("no result"),
            false => unreadable(&result.stderr.chars().take(500).collect::<String>()),
        })?)
    }
}

fn unreadable(why: &str) -> HostError {
    HostError::new(ErrorKind::FileFailed, format!("Box file operation failed: {why}"))
}

/// What the program says is wrong with a file, it says with its kind.
fn checked(mut data: Value) -> Result<Value> {
    if data.get("failure").is_none() {
        return Ok(data);
    }
    let Failure { kind, message } = read("failure", data["failure"].take())?;
    Err(HostError::new(kind, message))
}
