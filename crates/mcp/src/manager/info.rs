//! What is told about a server: its status, its tools, and where it runs.

use rmcp::model::Tool;
use serde::Serialize;
use serde_json::{Map, Value};

use super::machine::{Machine, Status};
use crate::{Identity, Phase};

/// The runtime information of a server.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RuntimeInfo {
    pub status: Status,
    pub error_message: Option<String>,
    pub error_phase: Option<Phase>,
    pub retry_count: u32,
    pub tool_count: usize,
    pub tools: Vec<ToolInfo>,
    /// The session of its box, while servers run in boxes here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub box_session_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub box_enabled: Option<bool>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ToolInfo {
    pub name: String,
    pub description: String,
    /// The JSON schema of its arguments.
    pub parameters: Map<String, Value>,
}

impl From<&Tool> for ToolInfo {
    fn from(tool: &Tool) -> Self {
        Self {
            name: tool.name.to_string(),
            description: tool.description.as_deref().unwrap_or_default().to_owned(),
            parameters: (*tool.input_schema).clone(),
        }
    }
}

impl RuntimeInfo {
    /// `boxed`: the session, when servers run in boxes now.
    pub(crate) fn new(machine: &Machine, tools: &[Tool], boxed: Option<&Identity>) -> Self {
        let error = machine.error();
        // A server that was refused a box runs in none.
        let boxed = boxed.filter(|_| error.is_none_or(|error| error.phase != Phase::BoxUnavailable));
        Self {
            status: machine.status(),
            error_message: error.map(|error| error.message.clone()),
            error_phase: error.map(|error| error.phase),
            retry_count: machine.retry_count(),
            tool_count: tools.len(),
            tools: tools.iter().map(ToolInfo::from).collect(),
            box_session_id: boxed.map(|identity| identity.session_id.clone()),
            box_enabled: boxed.map(|_| true),
        }
    }
}
