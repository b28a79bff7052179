//! Who asks: the part of a chat message from which a session is chosen.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The identity of a caller. Absent fields fall back as the session template says.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Query {
    pub query_id: Option<Value>,
    pub launcher_type: Option<String>,
    pub launcher_id: Option<Value>,
    pub sender_id: Option<Value>,
    /// Win over the fields; `conversation_id` and anything else a template names.
    pub variables: BTreeMap<String, Value>,
    /// The pipeline's own template, when it has one.
    pub session_template: Option<String>,
    /// Names of the skills this pipeline is bound to; absent: all.
    pub bound_skills: Option<Vec<String>>,
}
