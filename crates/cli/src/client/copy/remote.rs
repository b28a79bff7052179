//! Files of a box as the API has them.

use serde::Deserialize;
use serde_json::{Value, json};

use crate::client::http::Client;
use crate::client::problem::{ClientError, server_code};
use crate::client::text;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    File,
    Directory,
    Symlink,
    #[serde(other)]
    Other,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) mode: u32,
    pub(super) link_target: Option<String>,
}

/// The box's side of a copy.
#[derive(Debug, Clone, Copy)]
pub(super) struct Remote<'a> {
    pub(super) client: &'a Client,
    pub(super) session: &'a str,
}

impl Remote<'_> {
    pub(super) fn path(&self, path: &str) -> String {
        text::file_path(self.session, path)
    }

    /// What a path leads to; `None` when nothing is there.
    pub(super) async fn look(&self, path: &str) -> anyhow::Result<Option<Entry>> {
        let path = match path.trim_end_matches('/') {
            "" => "/",
            path => path,
        };
        match self.client.get::<Entry>(&(self.path(path) + "?stat=1")).await {
            Ok(entry) if entry.kind == Kind::Symlink => Ok(Some(match self.list(path).await {
                Ok(_) => Entry { kind: Kind::Directory, ..entry },
                // The link's own mode says nothing about the file.
                Err(_) => Entry { kind: Kind::File, mode: 0o644, ..entry },
            })),
            Ok(entry) => Ok(Some(entry)),
            Err(ClientError::Server(error)) if error.code == "file_not_found" => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) async fn list(&self, path: &str) -> Result<Vec<Entry>, ClientError> {
        #[derive(Deserialize)]
        struct Listing {
            entries: Vec<Entry>,
        }
        Ok(self.client.get::<Listing>(&(self.path(path) + "?list=1")).await?.entries)
    }

    pub(super) async fn make_dir(&self, path: &str) -> Result<(), ClientError> {
        self.client.post::<Value>(&(self.path(path) + "?mkdir=1"), &json!({})).await.map(drop)
    }

    /// Runs a script in the box; its complaints, when it has any.
    pub(super) async fn script(&self, script: &str) -> anyhow::Result<Option<String>> {
        let path = text::path(&["v1", "sessions", self.session, "exec"]);
        let done: Result<Value, _> =
            self.client.post(&path, &json!({"cmd": script, "timeout_sec": 120, "workdir": "/"})).await;
        match done {
            Ok(done) if done["exit_code"] == 0 => Ok(None),
            Ok(done) => {
                Ok(Some(done["stderr"].as_str().unwrap_or("it did not end in time").trim().to_owned()))
            }
            Err(error) => {
                let error = anyhow::Error::from(error);
                if server_code(&error).is_some() { Ok(Some(error.to_string())) } else { Err(error) }
            }
        }
    }
}
