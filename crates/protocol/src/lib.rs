//! What every part of Sandcrate agrees on: what a caller can ask for and is answered, the envelope and the
//! framing of LangBot's action RPC, error kinds and what they look like on each face, and the record of what
//! was enforced. No I/O, nothing specific to Linux.

mod enforcement;
mod error;
pub mod framing;
mod json;
pub mod network;
mod profile;
mod python;
mod result;
pub mod rpc;
mod shell;
mod spec;
mod timestamp;

pub use enforcement::{Control, Enforcement, Finding, State};
pub use error::{Appearance, ErrorKind, wire_message, with_causes, without_class_marks};
pub use json::to_wire_json;
pub use profile::{BoxProfile, UnknownProfile};
pub use python::{
    float as python_float, string as python_repr, trim as python_trim, type_name as python_type,
};
pub use result::{
    BackendStatus, ExecResult, ExecStatus, ProcessInfo, ProcessStatus, RuntimeStatus, SessionDetails,
    SessionInfo,
};
pub use shell::shell_word;
pub use spec::{
    ARTIFACTS, AdmissionGrant, AdmissionPolicy, AdmissionRevocation, BoxSpec, DEFAULT_IMAGE,
    DEFAULT_PROCESS_ID, DEFAULT_WORKDIR, InvalidSpec, Issue, MountMode, MountSpec, NetworkMode, ProcessSpec,
    lax_integer,
};
pub use timestamp::Timestamp;
