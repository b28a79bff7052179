//! The agent's tools: exec, read, write, edit, glob, grep, activate and register_skill.
//!
//! A [`Toolbox`] runs them for one application. Commands go to an [`Executor`], files through its client, both in
//! the session that the executor chooses for a query; nothing here touches a file of the host. A failure that a
//! model can act upon is a result with `ok: false`; everything else is an error, whose text is for the model too.

mod arguments;
mod exec;
mod files;
mod glob_pattern;
mod path;
mod python_env;
mod schema;
mod search;
mod service;
mod skill_tools;

use std::sync::Arc;

use async_trait::async_trait;
use sandcrate_protocol::BoxSpec;
use serde_json::Value;

pub use python_env::PythonEnvironment;
pub use schema::{ToolDefinition, ToolFormat, native_definitions};

use crate::policy::{Policy, SandboxMode};
use crate::skills::SkillsView;
use crate::{Client, HostError, Query, Result};
use arguments::Arguments;
use files::BoxFiles;
use path::{Access, Place};

/// What the tools need of the service.
///
/// Both methods must ask for the same box, mounts included: a runtime makes a box anew when they differ. Packages of
/// skills are mounted as [`SkillMounts`](crate::policy::SkillMounts) says, in both.
#[async_trait]
pub trait Executor: Send + Sync + std::fmt::Debug {
    /// Runs `parameters.command` in the query's session; of the rest, `workdir`, `timeout_sec` and `env` count.
    async fn execute_tool(&self, parameters: Value, query: &Query) -> Result<Value>;
    /// The session whose files the query works with, with the packages of its skills among the mounts.
    async fn spec_for(&self, query: &Query) -> Result<BoxSpec>;
    fn client(&self) -> Arc<dyn Client>;
}

/// The tools of an agent, and the rules for them.
#[derive(Debug)]
pub struct Toolbox {
    executor: Arc<dyn Executor>,
    skills: Arc<SkillsView>,
    policy: Policy,
    workspace: Workspace,
}

/// Whose directory the file tools work in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Workspace {
    Hosts,
    BoxesOwn,
}

impl Toolbox {
    pub fn new(executor: Arc<dyn Executor>, skills: Arc<SkillsView>, policy: Policy) -> Self {
        Self { executor, skills, policy, workspace: Workspace::Hosts }
    }

    /// Lets the file tools work in boxes without a directory of the host too; their files go with the session.
    #[must_use]
    pub fn with_box_workspace(mut self) -> Self {
        self.workspace = Workspace::BoxesOwn;
        self
    }

    pub fn skills(&self) -> &SkillsView {
        &self.skills
    }

    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The tools that a query has now: none while no backend serves, and without those that policy forbids.
    pub async fn definitions(&self, query: &Query) -> Vec<ToolDefinition> {
        let backend = self.executor.client().backend_info().await;
        let serves = |info: &Value| info.get("available").and_then(Value::as_bool).unwrap_or(false);
        if !backend.as_ref().is_ok_and(serves) {
            return Vec::new();
        }
        let skills = schema::skill_definitions(self.skills.activate_description(query));
        let all = native_definitions().into_iter().chain(skills);
        all.filter(|tool| self.policy.check_tool(tool.name).is_ok()).collect()
    }

    /// The same, as the list that a model's interface takes.
    pub async fn list(&self, query: &Query, format: ToolFormat) -> Vec<Value> {
        self.definitions(query).await.iter().map(|tool| tool.to_json(format)).collect()
    }

    /// Runs one call. Only `activate` changes the query.
    pub async fn call(&self, tool: &str, arguments: &Value, query: &mut Query) -> Result<Value> {
        self.policy.check_tool(tool)?;
        if self.policy.mode != SandboxMode::All {
            let session = self.executor.spec_for(query).await?.session_id;
            self.policy.check_session(&session)?;
        }
        match tool {
            "exec" => exec::exec(self, arguments, query).await,
            "read" => {
                let arguments = Arguments::new("read", arguments, &["path"])?;
                let given = arguments.text("path")?;
                let (files, place) = self.place(given, Access::Look, query).await?;
                files::read(&files, &place, given).await
            }
            "write" => {
                let arguments = Arguments::new("write", arguments, &["path", "content"])?;
                let (given, content) = (arguments.text("path")?, arguments.text("content")?);
                let (files, place) = self.place(given, Access::Change, query).await?;
                let result = files::write(&files, &place, given, content).await;
                self.after_change(&files, &place).await;
                result
            }
            "edit" => {
                let arguments = Arguments::new("edit", arguments, &["path", "old_string", "new_string"])?;
                let given = arguments.text("path")?;
                let (old, new) = (arguments.text("old_string")?, arguments.text("new_string")?);
                let (files, place) = self.place(given, Access::Change, query).await?;
                let result = files::edit(&files, &place, given, old, new).await;
                self.after_change(&files, &place).await;
                result
            }
            "glob" => {
                let arguments = Arguments::new("glob", arguments, &["pattern", "path"])?;
                let pattern = arguments.text("pattern")?;
                let given = arguments.optional_text("path")?.unwrap_or(path::WORKSPACE);
                let (files, place) = self.place(given, Access::Look, query).await?;
                search::glob(&files, &place, given, pattern).await
            }
            "grep" => {
                let arguments = Arguments::new("grep", arguments, &["pattern", "path", "include"])?;
                let (pattern, include) = (arguments.text("pattern")?, arguments.optional_text("include")?);
                let given = arguments.optional_text("path")?.unwrap_or(path::WORKSPACE);
                let regex = match search::expression(pattern) {
                    Ok(regex) => regex,
                    Err(refusal) => return Ok(refusal),
                };
                let (files, place) = self.place(given, Access::Look, query).await?;
                search::grep(&files, &place, given, regex, include).await
            }
            "activate" => skill_tools::activate(self, arguments, query),
            "register_skill" => skill_tools::register_skill(self, arguments, query).await,
            _ => Err(HostError::invalid(format!("unknown tool `{tool}`"))),
        }
    }

    async fn files(&self, query: &Query) -> Result<BoxFiles> {
        let spec = self.executor.spec_for(query).await?;
        Ok(BoxFiles { client: self.executor.client(), spec })
    }

    /// Where a path of the model is. What the text alone forbids makes no session.
    async fn place(&self, given: &str, access: Access, query: &Query) -> Result<(BoxFiles, Place)> {
        let place = path::resolve(given, access, &self.skills, query)?;
        let files = self.files(query).await?;
        let has_workspace = files.spec.host_path.is_some() || self.workspace == Workspace::BoxesOwn;
        if place.skill.is_none() && !has_workspace {
            return Err(HostError::invalid("No host workspace configured for file operations."));
        }
        Ok((files, place))
    }

    /// A change in a package may be one of its name or description.
    async fn after_change(&self, files: &BoxFiles, place: &Place) {
        if place.skill.is_some() {
            self.skills.reload(&*files.client).await;
        }
    }
}

/// The outcome of a call as the text of a tool message.
///
/// ```
/// use sandcrate_host::{HostError, tools::message_text};
/// use serde_json::json;
///
/// assert_eq!(message_text(&Ok(json!({"ok": true}))), r#"{"ok":true}"#);
/// assert_eq!(message_text(&Err(HostError::invalid("no"))), "err: no");
/// ```
pub fn message_text(outcome: &Result<Value>) -> String {
    match outcome {
        Ok(value) => value.to_string(),
        Err(error) => format!("err: {error}"),
    }
}

#[cfg(test)]
mod exec_tests;
#[cfg(test)]
pub(crate) mod fake;
#[cfg(test)]
mod files_tests;
#[cfg(test)]
mod path_tests;
#[cfg(test)]
mod search_tests;
