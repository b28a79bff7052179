//! The trait every backend implements.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;

use async_trait::async_trait;
use sandcrate_protocol::Timestamp;
use serde::Serialize;

use crate::{
    BackendError, Examination, Examined, ExecRequest, Execution, FileReply, FileRequest, Isolation,
    NetworkReport, SessionId, SessionInfo, SessionSpec,
};

/// What a backend can do at all, whatever the session. A caller asks here first; an operation outside it fails
/// with [`BackendError::Unsupported`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Capabilities {
    pub pty: bool,
    pub files: bool,
    pub writable_root: bool,
    pub host_network: bool,
    /// A network of the box's own, held to a policy: [`crate::Network::Isolated`].
    pub isolated_network: bool,
    pub host_mounts: bool,
    pub hard_disk_quota: bool,
    /// Private files can outlive the session, in a directory of the caller's.
    pub kept_storage: bool,
    /// A deadline ends one command's tree and leaves the rest of the box alone.
    pub kill_one_command: bool,
}

/// What a sweep removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct SweepReport {
    /// Instances whose owner is gone and of which something was left.
    pub instances: u32,
    pub directories: u32,
    pub cgroups: u32,
}

/// An image that boxes can be made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ImageInfo {
    pub name: String,
    pub digest: String,
    /// What it was imported from.
    pub source: String,
    pub imported_at: Timestamp,
    pub entries: u64,
    pub bytes: u64,
}

/// What becomes of an image that boxes use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageRemoval {
    Refuse,
    /// The name goes at once, the files when its last box ends.
    Force,
}

/// Makes boxes and runs commands in them.
///
/// Implementations are shared between tasks. Every method is safe to cancel: a dropped `start` leaves no box
/// behind, a dropped [`Execution`] ends its command's tree. Methods on an unknown session fail with
/// [`BackendError::SessionNotFound`].
#[async_trait]
pub trait Backend: Send + Sync + std::fmt::Debug {
    fn name(&self) -> &'static str;

    fn capabilities(&self) -> Capabilities;

    /// Takes what a known client's configuration says of this backend, by its keys; the operator's word comes before
    /// it. One that takes nothing has nothing to do.
    fn configure(&self, section: &BTreeMap<String, String>) {
        let _ = section;
    }

    /// Says whether the backend can be used now. Cheap enough to call on every health check.
    async fn probe(&self) -> Result<(), BackendError>;

    /// Makes a box. A second `start` of a live id is [`BackendError::SessionExists`].
    async fn start(&self, spec: SessionSpec) -> Result<SessionInfo, BackendError>;

    /// Runs a command in a live box. A long-lived process is an exec without a timeout.
    async fn exec(&self, session: &SessionId, request: ExecRequest) -> Result<Execution, BackendError>;

    /// Works on files with the identity of the box's commands, inside the box's own root.
    async fn files(&self, session: &SessionId, request: FileRequest) -> Result<FileReply, BackendError>;

    /// Holds a live session's isolated network to another policy; it is in force when this returns.
    async fn set_network(&self, session: &SessionId, isolation: Isolation) -> Result<(), BackendError> {
        let _ = (session, isolation);
        Err(self.without_network("a network policy"))
    }

    /// What a session's isolated network has used and refused so far.
    async fn network(&self, session: &SessionId) -> Result<NetworkReport, BackendError> {
        let _ = session;
        Err(self.without_network("a network report"))
    }

    /// Carries a connected stream to a TCP port inside the box, both ways, until either side ends it.
    async fn forward(&self, session: &SessionId, port: u16, stream: OwnedFd) -> Result<(), BackendError> {
        let _ = (session, port, stream);
        Err(self.without_network("a port"))
    }

    /// The images that were imported into this backend, by name. One that has none of its own has an empty list.
    async fn images(&self) -> Result<Vec<ImageInfo>, BackendError> {
        Ok(Vec::new())
    }

    /// A file without a name for an archive that is to be imported. It is gone when it is closed.
    async fn image_spool(&self) -> Result<File, BackendError> {
        Err(self.without_import())
    }

    /// Imports an archive under a name, in the place of an image that has it. Once begun it goes on, whether or not
    /// anybody waits.
    async fn import_image(&self, name: &str, archive: File) -> Result<ImageInfo, BackendError> {
        let _ = (name, archive);
        Err(self.without_import())
    }

    /// Removes an image by its name.
    async fn remove_image(&self, name: &str, removal: ImageRemoval) -> Result<(), BackendError> {
        let _ = removal;
        Err(BackendError::ImageNotFound { image: name.to_owned() })
    }

    /// Makes a box, tries to get past its bounds from inside, and says what held. It must be let come to its end.
    async fn examine(&self, examination: Examination) -> Result<Examined, BackendError> {
        crate::examine::examine(self, &examination).await
    }

    /// True while the box's init lives.
    async fn is_alive(&self, session: &SessionId) -> bool;

    /// Ends everything in the box and removes what belongs to it alone. Idempotent: an unknown id is no error.
    async fn stop(&self, session: &SessionId) -> Result<(), BackendError>;

    /// Ends everything in a live box and makes it anew by another specification of the same id, with the private
    /// files it has. What can be refused is refused while the old box lives on. A `restart` that is dropped or fails
    /// later leaves no box behind; the files wait for the next `start` of that id, or for `stop`.
    async fn restart(&self, spec: SessionSpec) -> Result<SessionInfo, BackendError>;

    /// Removes the directory of a session's kept storage, whatever is in it. One that is not there is no error.
    async fn remove_storage(&self, directory: &std::path::Path) -> Result<(), BackendError>;

    /// Removes what dead instances of this backend left. Never touches a live instance.
    async fn sweep(&self) -> Result<SweepReport, BackendError>;

    /// Ends every box and releases everything the backend holds.
    async fn shutdown(&self);

    /// The error of imports on a backend that takes none.
    fn without_import(&self) -> BackendError {
        let hint = "this backend has images of its own; use its own commands".to_owned();
        BackendError::Unsupported { backend: self.name(), what: "an import of images".to_owned(), hint }
    }

    /// The error of the network operations on a backend without an isolated network.
    fn without_network(&self, what: &str) -> BackendError {
        let hint = "this backend has no isolated network".to_owned();
        BackendError::Unsupported { backend: self.name(), what: what.to_owned(), hint }
    }
}
