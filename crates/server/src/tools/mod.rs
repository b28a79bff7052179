//! The agent's tools as this server offers them: one Box service over our own runtime, in a session that the caller
//! names or that follows from who the caller is.

mod config;
mod executor;

use std::sync::Arc;

use sandcrate_host::policy::{Policy, SkillMounts};
use sandcrate_host::skills::{Filesystem, SkillsView};
use sandcrate_host::tools::{ToolFormat, Toolbox, native_definitions};
use sandcrate_host::{EmbeddedClient, HostError, Query, RecordedError, Service, SkillPackage};
use sandcrate_protocol::BoxProfile;
use sandcrate_runtime::Runtime;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

pub use config::ToolsConfig;
use executor::{SESSION, Sessions};

/// The tools and what they need. Made once for a server.
#[derive(Debug)]
pub(crate) struct Tools {
    config: ToolsConfig,
    service: Service,
    toolbox: Toolbox,
    skills: Arc<SkillsView>,
    ready: OnceCell<()>,
}

/// Whose session a tool works in.
#[derive(Debug)]
pub(crate) enum Scope {
    Session(String),
    Caller(Query),
}

impl Tools {
    /// # Errors
    /// When the configuration names what does not exist.
    pub(crate) fn new(runtime: Runtime, config: ToolsConfig) -> Result<Self, HostError> {
        let profile = config.chosen()?;
        // A command that runs too long does not take the files of its session along.
        let client = EmbeddedClient::new(runtime.clone()).keeping_sessions();
        let service = Service::builder()
            .client(Arc::new(client))
            .profile(profile)
            // Nobody activates a skill here, so nobody changes one.
            .skill_mounts(SkillMounts::ReadOnlyUntilActivated)
            .output_limit_chars(config.output_limit_chars)
            .shares_filesystem(true)
            .build()?;
        let skills = Arc::new(SkillsView::new(Filesystem::Shared));
        let policy = Policy { allow: config.allow.clone(), deny: config.deny.clone(), ..Policy::default() };
        let sessions = Arc::new(Sessions { service: service.clone(), runtime });
        let toolbox = Toolbox::new(sessions, Arc::clone(&skills), policy).with_box_workspace();
        Ok(Self { config, service, toolbox, skills, ready: OnceCell::new() })
    }

    /// Runs one call.
    pub(crate) async fn call(&self, tool: &str, arguments: &Value, scope: Scope) -> Result<Value, HostError> {
        self.ready.get_or_init(|| self.service.initialize()).await;
        self.skills.reload(&**self.service.client()).await;
        self.service.set_skills(Some(self.skills.all().iter().map(SkillPackage::from).collect()));
        let mut query = match scope {
            Scope::Session(session) => Query {
                query_id: Some(json!(session)),
                variables: [(SESSION.to_owned(), json!(session))].into(),
                session_template: Some(format!("{{{SESSION}}}")),
                ..Query::default()
            },
            Scope::Caller(query) => {
                Query { session_template: Some(self.config.session_template.clone()), ..query }
            }
        };
        self.toolbox.call(tool, arguments, &mut query).await
    }

    /// The tools that are allowed, in the shape that is asked for.
    pub(crate) fn list(&self, format: ToolFormat) -> Vec<Value> {
        let allowed = |name: &str| self.toolbox.policy().check_tool(name).is_ok();
        let tools = native_definitions().into_iter().filter(|tool| allowed(tool.name));
        tools.map(|tool| tool.to_json(format)).collect()
    }

    pub(crate) fn errors(&self) -> Vec<RecordedError> {
        self.service.recent_errors()
    }

    /// Built in or the operator's, sorted by name.
    pub(crate) fn profiles(&self) -> Vec<BoxProfile> {
        self.config.all_profiles()
    }

    /// The one that sessions of tools have.
    pub(crate) fn profile(&self) -> &str {
        &self.config.profile
    }
}
