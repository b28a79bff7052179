//! The few things an engine is asked for, and its failures in our words.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bollard::errors::Error;
use bollard::models::{ContainerCreateBody, ContainerInspectResponse, SystemInfo};
use bollard::query_parameters::{
    CreateContainerOptions, CreateImageOptions, InspectContainerOptions, ListContainersOptions,
    RemoveContainerOptions, StartContainerOptions, WaitContainerOptions,
};
use bollard::{API_DEFAULT_VERSION, Docker};
use futures_util::StreamExt;
use sandcrate_backend::{BackendError, StartNotice};
use sandcrate_driver::lock;
use tokio::time::timeout;

use crate::config::{EngineConfig, EngineKind};

const PING_LIMIT: Duration = Duration::from_secs(10);
/// Longer than a container takes from its end to its removal.
const LIST_TRIES: u32 = 40;
const LIST_PAUSE: Duration = Duration::from_millis(250);
/// A pull that says nothing for so long has stalled.
const PULL_SILENCE: Duration = Duration::from_secs(120);
/// Containers that are remembered for a later removal; what is beyond goes when another instance sweeps.
const MOST_LEFT: usize = 4096;
/// Images that are remembered.
const MOST_IMAGES: usize = 256;

/// One engine. Every request has a connection of its own, so an engine that went and came back is simply there
/// again; what both sides speak is found out by the first that reaches it.
#[derive(Debug, Clone)]
pub(crate) struct Engine {
    pub(crate) kind: EngineKind,
    config: Arc<EngineConfig>,
    known: Arc<Mutex<Option<Docker>>>,
    /// Containers that may be there and could not be removed, by id or name.
    left: Arc<Mutex<BTreeSet<String>>>,
    /// What images set for commands, by their ids.
    environments: Arc<Mutex<HashMap<String, Environment>>>,
}

/// Pairs of names and values.
pub(crate) type Environment = Vec<(String, String)>;

/// A container as a list shows it.
#[derive(Debug)]
pub(crate) struct Listed {
    pub(crate) id: String,
    pub(crate) labels: HashMap<String, String>,
}

impl Engine {
    pub(crate) fn new(kind: EngineKind, config: Arc<EngineConfig>) -> Self {
        Self { kind, config, known: Arc::default(), left: Arc::default(), environments: Arc::default() }
    }

    /// The client; finds the socket and the version that both sides speak when nobody has yet.
    async fn docker(&self) -> Result<Docker, BackendError> {
        if let Some(known) = lock(&self.known).clone() {
            return Ok(known);
        }
        let path: PathBuf = self.config.socket(self.kind)?;
        let text = path.to_str().ok_or_else(|| BackendError::invalid("socket", "must be UTF-8"))?;
        let docker =
            Docker::connect_with_unix(text, self.config.request_limit.as_secs().max(1), API_DEFAULT_VERSION)
                .map_err(|error| self.unavailable(error.to_string()))?;
        let silent = || format!("{} gave no sign of life for {} s", path.display(), PING_LIMIT.as_secs());
        let docker = timeout(PING_LIMIT, docker.negotiate_version())
            .await
            .map_err(|_| self.unavailable(silent()))?
            .map_err(|error| self.unavailable(format!("{}: {}", path.display(), chain(&error))))?;
        *lock(&self.known) = Some(docker.clone());
        Ok(docker)
    }

    pub(crate) async fn ping(&self) -> Result<(), BackendError> {
        let docker = self.docker().await?;
        match timeout(PING_LIMIT, docker.ping()).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) if !matches!(error, Error::RequestTimeoutError) => {
                Err(self.failed("asking for a sign of life", &error))
            }
            Ok(Err(_)) | Err(_) => {
                Err(self.unavailable(format!("it gave no sign of life for {} s", PING_LIMIT.as_secs())))
            }
        }
    }

    pub(crate) async fn info(&self) -> Result<SystemInfo, BackendError> {
        let docker = self.docker().await?;
        self.bounded(docker.info()).await.map_err(|error| self.failed("asking about the engine", &error))
    }

    pub(crate) async fn has_image(&self, image: &str) -> Result<bool, BackendError> {
        let docker = self.docker().await?;
        match self.bounded(docker.inspect_image(image)).await {
            Ok(_) => Ok(true),
            Err(error) if status(&error) == Some(404) => Ok(false),
            Err(error) => Err(self.failed("looking for an image", &error)),
        }
    }

    /// Makes a container; its id.
    pub(crate) async fn create(&self, name: &str, body: &ContainerCreateBody) -> Result<String, CreateError> {
        let options = CreateContainerOptions { name: Some(name.to_owned()), ..Default::default() };
        let docker = self.docker().await.map_err(CreateError::Other)?;
        match self.bounded(docker.create_container(Some(options), body.clone())).await {
            Ok(made) => Ok(made.id),
            Err(error) if status(&error) == Some(404) => Err(CreateError::NoImage),
            Err(error) => Err(CreateError::Other(self.create_failed(body, &error))),
        }
    }

    fn create_failed(&self, body: &ContainerCreateBody, error: &Error) -> BackendError {
        if ["invalid reference", "normalizing name", "must be lowercase"]
            .iter()
            .any(|sign| message(error).contains(sign))
        {
            let image = body.image.as_deref().unwrap_or_default();
            return BackendError::invalid(
                "image",
                format!("`{}` is no name of an image", image.escape_debug()),
            );
        }
        self.failed("making a container", error)
    }

    pub(crate) async fn start(&self, id: &str, image: &str) -> Result<(), BackendError> {
        let docker = self.docker().await?;
        let started = self.bounded(docker.start_container(id, None::<StartContainerOptions>)).await;
        started.map_err(|error| match message(&error) {
            // The loader that the guest names is not in the image.
            text if text.contains("no such file") && text.contains("exec") => self.without_loader(image),
            _ => self.failed("starting a container", &error),
        })
    }

    /// The error for an image that our program cannot run in.
    pub(crate) fn without_loader(&self, image: &str) -> BackendError {
        BackendError::Unsupported {
            backend: self.kind.name(),
            what: format!("image `{image}`"),
            hint: "this build of sandcrate is linked to a C library that the image does not have; use the static \
                   build, or another image"
                .to_owned(),
        }
    }

    /// Waits until a container has ended, or is not there any more; its exit code where the engine knows it.
    pub(crate) async fn ended(&self, id: &str) -> Option<i64> {
        let docker = self.docker().await.ok()?;
        let mut steps = std::pin::pin!(docker.wait_container(id, None::<WaitContainerOptions>));
        match steps.next().await {
            Some(Ok(ended)) => Some(ended.status_code),
            Some(Err(Error::DockerContainerWaitError { code, .. })) => Some(code),
            _ => None,
        }
    }

    pub(crate) async fn inspect(&self, id: &str) -> Result<ContainerInspectResponse, BackendError> {
        let docker = self.docker().await?;
        self.bounded(docker.inspect_container(id, None::<InspectContainerOptions>))
            .await
            .map_err(|error| self.failed("looking at a container", &error))
    }

    /// Ends and removes a container. One that is gone, or going, is no error; whether it was there.
    pub(crate) async fn remove(&self, id: &str) -> Result<bool, BackendError> {
        let options = RemoveContainerOptions { force: true, v: true, ..Default::default() };
        let docker = self.docker().await?;
        match self.bounded(docker.remove_container(id, Some(options))).await {
            Ok(()) => Ok(true),
            Err(error) if status(&error) == Some(409) => Ok(true),
            Err(error) if status(&error) == Some(404) => Ok(false),
            // Podman's own cleaner was there first, or is at it.
            Err(error) if message(&error).contains("no such container") => Ok(false),
            Err(error) if message(&error).contains("container state improper: stopped") => Ok(true),
            Err(error) => Err(self.failed("removing a container", &error)),
        }
    }

    /// Remembers a container that may be there for [`Self::remove_left`].
    pub(crate) fn leave(&self, name: String) {
        let mut left = lock(&self.left);
        if left.len() < MOST_LEFT {
            left.insert(name);
        }
    }

    pub(crate) fn has_left(&self) -> bool {
        !lock(&self.left).is_empty()
    }

    /// Tries again to remove what could not be removed; how many were still there.
    pub(crate) async fn remove_left(&self) -> u32 {
        let left = lock(&self.left).clone();
        let mut removed = 0;
        for name in left {
            match self.remove(&name).await {
                Ok(there) => {
                    lock(&self.left).remove(&name);
                    removed += u32::from(there);
                }
                Err(error) => tracing::warn!(
                    container = name,
                    error = &error as &dyn std::error::Error,
                    "a container cannot be removed"
                ),
            }
        }
        removed
    }

    /// What an image sets for commands, home and host name apart: those are the box's.
    pub(crate) async fn environment(&self, image: &str) -> Result<Environment, BackendError> {
        if let Some(known) = lock(&self.environments).get(image).cloned() {
            return Ok(known);
        }
        let docker = self.docker().await?;
        let found = self.bounded(docker.inspect_image(image)).await;
        let found = found.map_err(|error| self.failed("looking at an image", &error))?;
        let pairs = found.config.and_then(|config| config.env).unwrap_or_default();
        let pairs = pairs.iter().filter_map(|pair| pair.split_once('=')).filter(|(name, value)| {
            !["", "HOME", "HOSTNAME"].contains(name) && !name.contains('\0') && !value.contains('\0')
        });
        let own: Environment = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let mut known = lock(&self.environments);
        if known.len() >= MOST_IMAGES {
            known.clear();
        }
        known.insert(image.to_owned(), own.clone());
        Ok(own)
    }

    /// Whether it runs as an ordinary user.
    pub(crate) async fn is_rootless(&self) -> Result<bool, BackendError> {
        let options = self.info().await?.security_options.unwrap_or_default();
        Ok(options.iter().any(|option| option.split(',').any(|part| part == "name=rootless")))
    }

    /// All containers with a label, ended ones included.
    pub(crate) async fn list(&self, label: &str) -> Result<Vec<Listed>, BackendError> {
        let filters = HashMap::from([("label".to_owned(), vec![label.to_owned()])]);
        let options = ListContainersOptions { all: true, filters: Some(filters), ..Default::default() };
        let docker = self.docker().await?;
        let mut tries = 0;
        let listed = loop {
            match self.bounded(docker.list_containers(Some(options.clone()))).await {
                // Podman has a word of its own for a container that is about to be over.
                Err(Error::JsonDataError { .. } | Error::JsonSerdeError { .. }) if tries < LIST_TRIES => {
                    tries += 1;
                    tokio::time::sleep(LIST_PAUSE).await;
                }
                listed => break listed.map_err(|error| self.failed("listing containers", &error))?,
            }
        };
        Ok(listed
            .into_iter()
            .filter_map(|summary| {
                Some(Listed { id: summary.id?, labels: summary.labels.unwrap_or_default() })
            })
            .collect())
    }

    /// Pulls an image, and tells how far it is.
    pub(crate) async fn pull(&self, image: &str, tell: impl Fn(StartNotice)) -> Result<(), BackendError> {
        let missing = |why: String| BackendError::ImageUnavailable {
            backend: self.kind.name(),
            image: image.to_owned(),
            why: format!("{why}; pull or import it by hand, or name another"),
        };
        if !self.config.pull {
            return Err(missing("pulling is off".to_owned()));
        }
        tracing::info!(backend = self.kind.name(), image, "pulling an image");
        // Without a tag, an engine would pull them all.
        let tagged = image.contains('@') || image.rsplit('/').next().is_some_and(|name| name.contains(':'));
        let options = CreateImageOptions {
            from_image: Some(image.to_owned()),
            tag: (!tagged).then(|| "latest".to_owned()),
            ..Default::default()
        };
        let docker = self.docker().await?;
        let mut steps = std::pin::pin!(docker.create_image(Some(options), None, None));
        loop {
            let step = timeout(PULL_SILENCE, steps.next());
            match step.await.map_err(|_| missing(format!("nothing came for {} s", PULL_SILENCE.as_secs())))? {
                None => return Ok(()),
                Some(Err(error)) if is_absent(&error) => return Err(self.failed("pulling an image", &error)),
                Some(Err(error)) => return Err(missing(message(&error))),
                Some(Ok(step)) => {
                    if let Some(problem) = step.error_detail.and_then(|detail| detail.message) {
                        return Err(missing(problem));
                    }
                    let bytes = |count: Option<i64>| count.and_then(|count| u64::try_from(count).ok());
                    let detail = step.progress_detail.unwrap_or_default();
                    let progress = StartNotice {
                        image: image.to_owned(),
                        layer: step.id,
                        status: step.status.unwrap_or_default(),
                        done_bytes: bytes(detail.current),
                        total_bytes: bytes(detail.total),
                    };
                    tracing::debug!(image, status = progress.status, "pulling");
                    tell(progress);
                }
            }
        }
    }

    async fn bounded<T>(&self, request: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        timeout(self.config.request_limit, request).await.unwrap_or(Err(Error::RequestTimeoutError))
    }

    pub(crate) fn unavailable(&self, why: impl Into<String>) -> BackendError {
        BackendError::Unavailable { backend: self.kind.name(), why: why.into() }
    }

    /// A failed request: of an engine that is not there, or of one that said no.
    fn failed(&self, step: &str, error: &Error) -> BackendError {
        match error {
            error if is_absent(error) => self.unavailable(format!("{step}: {}", chain(error))),
            Error::RequestTimeoutError => BackendError::Timeout {
                what: format!("{step} with {}", self.kind),
                limit: self.config.request_limit,
            },
            error => BackendError::failed(
                format!("{step} with {}", self.kind),
                std::io::Error::other(message(error)),
            ),
        }
    }
}

#[derive(Debug)]
pub(crate) enum CreateError {
    NoImage,
    Other(BackendError),
}

fn status(error: &Error) -> Option<u16> {
    match error {
        Error::DockerResponseServerError { status_code, .. } => Some(*status_code),
        _ => None,
    }
}

/// What the engine said, short enough for a message.
fn message(error: &Error) -> String {
    const MOST: usize = 300;
    let text = match error {
        Error::DockerResponseServerError { message, .. } => message.clone(),
        Error::DockerStreamError { error } => error.clone(),
        other => chain(other),
    };
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match text.char_indices().nth(MOST) {
        Some((cut, _)) => format!("{}…", &text[..cut]),
        None => text,
    }
}

fn chain(error: &Error) -> String {
    let causes = std::iter::successors(std::error::Error::source(error), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// No answer at all: the engine is gone, or its socket is.
fn is_absent(error: &Error) -> bool {
    matches!(
        error,
        Error::HyperResponseError { .. }
            | Error::HyperLegacyError { .. }
            | Error::SocketNotFoundError(_)
            | Error::IOError { .. }
    )
}
