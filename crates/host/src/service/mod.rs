//! The Box service: what an agent application holds. It knows the configuration, decides which box a caller gets
//! and what it may mount, runs commands, and tells how all that fares.
//!
//! It owns no connection. A [`Client`] is handed in, or a [`Connection`] gives one and keeps it alive.

mod builder;
mod cleanup;
mod errors;
mod execute;
mod guidance;
mod mounts;
mod operations;
pub(crate) mod quota;
mod skills;
mod spec;
mod status;
mod truncate;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::config::BoxConfig;
use crate::connector::{Connection, Link};
use crate::policy::SkillMounts;
use crate::session_id::{self, SessionTemplate};
use crate::{Client, HostError, Query, Result};

pub use builder::ServiceBuilder;
pub use errors::RecordedError;
pub use execute::presented;
pub use operations::SkillZip;
pub use skills::SkillPackage;
pub use truncate::truncate;

use errors::ErrorRing;

/// How long a runtime may take to say goodbye.
const SHUTDOWN_TIME: Duration = Duration::from_secs(5);

const DISABLED: &str = "Box runtime is disabled in config (box.enabled = false)";
pub(crate) const DISCONNECTED: &str = "Disconnected from Box runtime";

/// Whether host paths of a payload are held to the allowed roots.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum HostMounts {
    #[default]
    Check,
    /// They come from the application itself.
    Trust,
}

/// Whether the Box can be used, and why not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Availability {
    pub available: bool,
    /// Whether the connection is being made again without anybody's doing.
    pub reconnecting: bool,
    /// Empty when there is nothing to say.
    pub reason: String,
}

/// The service. Clones are the same one.
///
/// ```no_run
/// use sandcrate_host::{Query, Service};
/// use serde_json::json;
///
/// # async fn example() -> Result<(), sandcrate_host::HostError> {
/// let service = Service::builder()
///     .config(&json!({"box": {"runtime": {"endpoint": "ws://box:5410"}}}))
///     .build()?;
/// service.initialize().await;
/// let query = Query { query_id: Some(7.into()), ..Query::default() };
/// let result = service.execute_tool(&json!({"command": "echo hi"}), &query).await?;
/// assert_eq!(result["stdout"], "hi");
/// service.dispose().await;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Service {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    config: BoxConfig,
    client: Arc<dyn Client>,
    connection: Option<Arc<dyn Connection>>,
    output_limit: usize,
    shares_filesystem: Option<bool>,
    forced_template: RwLock<Option<SessionTemplate>>,
    /// None: the application has no skills at all.
    skills: RwLock<Option<Vec<SkillPackage>>>,
    skill_policy: SkillMounts,
    errors: Mutex<ErrorRing>,
    availability: watch::Sender<Availability>,
    /// Follows the connection; ends with the service.
    listener: Mutex<Option<AbortHandle>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        let listener = self.listener.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(listener) = listener.take() {
            listener.abort();
        }
    }
}

impl Service {
    pub fn builder() -> ServiceBuilder {
        ServiceBuilder::default()
    }

    pub fn config(&self) -> &BoxConfig {
        &self.inner.config
    }

    pub fn client(&self) -> &Arc<dyn Client> {
        &self.inner.client
    }

    /// The configuration's switch; see [`Self::is_available`] for whether it can be used.
    pub fn is_enabled(&self) -> bool {
        self.inner.config.enabled
    }

    /// Whether the runtime is connected. Its backend may be dead all the same: [`Self::status`] tells.
    pub fn is_available(&self) -> bool {
        self.inner.availability.borrow().available
    }

    /// Every change, for whatever depends on the Box: tools, skills, servers in boxes.
    pub fn availability(&self) -> watch::Receiver<Availability> {
        self.inner.availability.subscribe()
    }

    pub fn default_workspace(&self) -> Option<&Path> {
        self.inner.config.default_workspace.as_deref()
    }

    /// Whether paths that the runtime names can be looked at here. Not known means no.
    pub fn shares_filesystem(&self) -> bool {
        let known = self.inner.shares_filesystem;
        let connection = || self.inner.connection.as_ref().is_some_and(|line| line.shares_filesystem());
        known.unwrap_or_else(connection)
    }

    /// The session a query gets.
    ///
    /// # Errors
    /// When the pipeline's template is not valid, or gives an empty id.
    pub fn session_id(&self, query: &Query) -> Result<String> {
        let forced = self.inner.forced_template.read().unwrap_or_else(PoisonError::into_inner);
        session_id::session_id(query, forced.as_ref())
    }

    /// Forces one template on all pipelines from now on; blank or nothing ends that.
    ///
    /// # Errors
    /// When the template is not valid. The one before stays.
    pub fn force_session_template(&self, template: Option<&str>) -> Result<()> {
        let template = template.map(sandcrate_protocol::python_trim).filter(|text| !text.is_empty());
        let template = template.map(SessionTemplate::parse).transpose()?;
        *self.inner.forced_template.write().unwrap_or_else(PoisonError::into_inner) = template;
        Ok(())
    }

    /// Makes the default workspace and connects. Nothing fails: what is wrong is in [`Self::status`], and a
    /// connection that could not be made is tried again.
    pub async fn initialize(&self) {
        let workspace = self.ensure_default_workspace();
        if let Err(error) = &workspace {
            tracing::warn!(error = %error, "the default workspace cannot be used");
        }
        if !self.is_enabled() {
            tracing::info!("{DISABLED}");
            return self.set_unavailable(DISABLED, false);
        }
        if let Err(error) = workspace {
            return self.set_unavailable(&error.message, false);
        }
        let link = self.inner.connection.as_ref().map(|connection| connection.link());
        match self.connect().await {
            Ok(()) => {
                let workspace = self.default_workspace().map(|path| path.display().to_string());
                let workspace = workspace.as_deref().unwrap_or("(none)");
                tracing::info!(
                    profile = &*self.inner.config.profile.name,
                    workspace,
                    "Box runtime connected"
                );
                self.set_available();
            }
            Err(error) => {
                tracing::warn!(error = %error, "LangBot Box runtime unavailable, sandbox features disabled");
                self.set_unavailable(&error.message, link.is_some());
            }
        }
        if let Some(link) = link {
            self.listen(link);
        }
    }

    async fn connect(&self) -> Result<()> {
        match &self.inner.connection {
            Some(connection) => connection.connect().await,
            None => {
                let answered = self.inner.client.ping().await;
                answered.map_err(|error| HostError::unavailable(format!("box runtime unavailable: {error}")))
            }
        }
    }

    /// The connection says by itself when it is lost and found again.
    fn listen(&self, mut link: watch::Receiver<Link>) {
        let service = Arc::downgrade(&self.inner);
        let follow = |service: &Weak<Inner>, link: &Link| {
            let Some(inner) = service.upgrade() else { return false };
            let service = Self { inner };
            match link {
                Link::Idle => {}
                Link::Up => service.set_available(),
                Link::Down(reason) => service.disconnected(reason),
            }
            true
        };
        let task = tokio::spawn(async move {
            while link.changed().await.is_ok() {
                let now = link.borrow_and_update().clone();
                if !follow(&service, &now) {
                    return;
                }
            }
        });
        let mut listener = self.inner.listener.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(old) = listener.replace(task.abort_handle()) {
            old.abort();
        }
    }

    /// The line to the runtime is gone, and whoever keeps it is making another. Nothing when the Box is disabled.
    pub fn disconnected(&self, reason: &str) {
        if !self.is_enabled() {
            return;
        }
        if self.is_available() {
            tracing::warn!(reason, "the Box runtime is disconnected");
        }
        self.set_unavailable(reason, true);
    }

    /// Tells the runtime to end, then gives up the connection.
    pub async fn dispose(&self) {
        let listener = self.inner.listener.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(listener) = listener {
            listener.abort();
        }
        self.shutdown().await;
        if let Some(connection) = &self.inner.connection {
            connection.dispose().await;
        }
        self.set_unavailable("Box runtime connection was closed", false);
    }

    /// Ends the runtime's sessions. It has a few seconds to answer, while there is a line to answer on.
    pub async fn shutdown(&self) {
        if tokio::time::timeout(SHUTDOWN_TIME, self.inner.client.shutdown()).await.is_err() {
            tracing::warn!("the Box runtime did not answer its shutdown");
        }
    }

    fn set_available(&self) {
        self.change(Availability { available: true, ..Availability::default() });
    }

    fn set_unavailable(&self, reason: &str, reconnecting: bool) {
        self.change(Availability { available: false, reconnecting, reason: reason.to_owned() });
    }

    fn change(&self, now: Availability) {
        self.inner.availability.send_if_modified(|known| {
            let changed = *known != now;
            *known = now;
            changed
        });
    }
}
