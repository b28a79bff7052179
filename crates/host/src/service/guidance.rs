//! What a model is told about its sandbox, before the user's message and only when it has the tool.

use super::Service;

const EXEC: &str = "You have a sandbox and the tool `exec` to run commands in it. Whenever an answer depends on an \
    exact calculation, on statistics, on reading structured data or on what a piece of code really does, run it \
    with `exec` and answer from its output; do not estimate. When the user gives you numbers, a table, CSV or JSON, \
    a short Python script run with `exec` is usually the best way. Do not show the script unless the user asks for \
    it.";

const WORKSPACE: &str = " The user's default workspace is mounted at /workspace. For tasks about files, work with \
    `exec` on paths below /workspace right away, without asking for a directory first. When the workspace is over \
    its quota, plain `rm` commands still work.";

impl Service {
    /// The paragraph for a system message.
    pub fn system_guidance(&self) -> String {
        match self.default_workspace() {
            Some(_) => format!("{EXEC}{WORKSPACE}"),
            None => EXEC.to_owned(),
        }
    }
}
