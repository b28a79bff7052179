//! The seam between those who want a server and those who get one running in a box.

use std::fmt::Debug;
use std::pin::Pin;

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::{PhaseError, ServerConfig};

/// Under which names a server lives in the runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub session_id: String,
    pub process_id: String,
    /// Made for a test of a configuration: its whole session goes with it, and no live server shares it.
    pub transient: bool,
}

/// The server's stdin and stdout, a JSON-RPC message per line. Dropping both detaches; it does not end the server.
pub struct Started {
    pub reader: Pin<Box<dyn AsyncRead + Send>>,
    pub writer: Pin<Box<dyn AsyncWrite + Send>>,
}

impl Debug for Started {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Started").finish_non_exhaustive()
    }
}

/// What a look at a started server shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    Running,
    Exited { code: Option<i32> },
}

/// Hears of slow work: staging, installing.
pub trait Progress: Send + Sync {
    fn say(&self, line: &str);
    /// Something about the server itself that a person should know.
    fn note(&self, text: &str) {
        self.say(&format!("note: {text}"));
    }
}

/// Gets servers running in boxes. Nothing here ever runs on the host instead.
#[async_trait]
pub trait Start: Send + Sync + Debug {
    /// Whether boxes can be made now; otherwise why not.
    async fn availability(&self) -> Result<(), PhaseError>;
    /// Session, staging, install, process, relay; each failure with its phase. A failed start leaves what
    /// [`Start::clean_up`] removes.
    async fn start(
        &self,
        server: &ServerConfig,
        identity: &Identity,
        progress: &dyn Progress,
    ) -> Result<Started, PhaseError>;
    async fn look(&self, identity: &Identity) -> Result<Life, PhaseError>;
    /// The last lines of stderr, for a person.
    async fn log(&self, identity: &Identity) -> Result<String, PhaseError>;
    /// Ends the process and removes what was staged for it. Calling it again, or with nothing there, is no error.
    async fn clean_up(&self, identity: &Identity) -> Result<(), PhaseError>;
}
