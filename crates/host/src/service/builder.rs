//! Puts a service together. Nothing is opened or started.

use std::sync::{Arc, Mutex, RwLock};

use sandcrate_protocol::BoxProfile;
use serde_json::Value;
use tokio::sync::watch;

use super::errors::ErrorRing;
use super::{Availability, Inner, Service};
use crate::config::BoxConfig;
use crate::connector::{Connection, Connector, Deployment};
use crate::policy::SkillMounts;
use crate::session_id::SessionTemplate;
use crate::{Client, Result};

/// How many characters of each stream an agent is shown.
const OUTPUT_LIMIT_CHARS: usize = 4000;

/// See [`Service::builder`].
#[derive(Debug)]
pub struct ServiceBuilder {
    config: Value,
    client: Option<Arc<dyn Client>>,
    connection: Option<Arc<dyn Connection>>,
    deployment: Option<Deployment>,
    profile: Option<BoxProfile>,
    skill_mounts: SkillMounts,
    output_limit: usize,
    shares_filesystem: Option<bool>,
}

impl Default for ServiceBuilder {
    fn default() -> Self {
        Self {
            config: Value::Null,
            client: None,
            connection: None,
            deployment: None,
            profile: None,
            skill_mounts: SkillMounts::default(),
            output_limit: OUTPUT_LIMIT_CHARS,
            shares_filesystem: None,
        }
    }
}

impl ServiceBuilder {
    /// The application's whole configuration; `box` and `system.limitation` are read.
    #[must_use]
    pub fn config(mut self, config: &Value) -> Self {
        self.config = config.clone();
        self
    }

    /// A runtime that is connected already.
    #[must_use]
    pub fn client(mut self, client: Arc<dyn Client>) -> Self {
        self.client = Some(client);
        self
    }

    /// What makes the connection and keeps it; without one, and without a client, a [`Connector`] does.
    #[must_use]
    pub fn connection(mut self, connection: Arc<dyn Connection>) -> Self {
        self.connection = Some(connection);
        self
    }

    /// Where the application runs; without it that is found out.
    #[must_use]
    pub fn deployment(mut self, deployment: Deployment) -> Self {
        self.deployment = Some(deployment);
        self
    }

    /// A profile of the application's own, instead of the one that the configuration names.
    #[must_use]
    pub fn profile(mut self, profile: BoxProfile) -> Self {
        self.profile = Some(profile);
        self
    }

    /// How packages of skills are mounted; as the reference does it, writable, without this.
    #[must_use]
    pub fn skill_mounts(mut self, mounts: SkillMounts) -> Self {
        self.skill_mounts = mounts;
        self
    }

    /// Characters of each stream that an agent is shown; 4000 without it.
    #[must_use]
    pub fn output_limit_chars(mut self, limit: usize) -> Self {
        self.output_limit = limit;
        self
    }

    /// Whether the runtime's paths are ours too, whatever the connection suggests.
    #[must_use]
    pub fn shares_filesystem(mut self, shares: bool) -> Self {
        self.shares_filesystem = Some(shares);
        self
    }

    /// # Errors
    /// When the configuration is not valid: a field of the wrong type, an unknown profile, a bad template or
    /// endpoint.
    pub fn build(self) -> Result<Service> {
        let (mut config, forced) = BoxConfig::of_application(&self.config)?;
        if let Some(profile) = self.profile {
            config.profile = profile;
        }
        let forced = forced.as_deref().map(SessionTemplate::parse).transpose()?;
        let (client, connection) = match (self.client, self.connection) {
            (Some(client), connection) => (client, connection),
            (None, Some(connection)) => (connection.client(), Some(connection)),
            (None, None) => {
                let deployment = self.deployment.unwrap_or_else(Deployment::detect);
                let connector: Arc<dyn Connection> = Arc::new(Connector::new(&config, deployment)?);
                (connector.client(), Some(connector))
            }
        };
        let inner = Inner {
            config,
            client,
            connection,
            output_limit: self.output_limit,
            shares_filesystem: self.shares_filesystem,
            forced_template: RwLock::new(forced),
            skills: RwLock::new(None),
            skill_policy: self.skill_mounts,
            errors: Mutex::new(ErrorRing::default()),
            availability: watch::Sender::new(Availability::default()),
            listener: Mutex::new(None),
        };
        Ok(Service { inner: Arc::new(inner) })
    }
}
