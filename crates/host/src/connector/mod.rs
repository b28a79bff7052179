//! The way to a runtime, made once and kept: over a WebSocket, or over the pipes of a child.
//!
//! [`Connector`] has one supervisor for both. It shakes hands, looks after the line, and makes another whenever
//! the old one is gone, for whatever reason. The service hears of it by [`Connection::link`].

mod client;
mod endpoint;
mod files;
mod line;
mod relay;
mod supervisor;
mod translate;
mod wire;

use std::ffi::OsString;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::config::BoxConfig;
use crate::{Client, HostError, Result};

pub use client::RpcClient;
pub use endpoint::Endpoint;

use endpoint::DEFAULT_PORT;
use supervisor::Supervisor;

/// How the line to a runtime fares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Link {
    /// Nobody has asked for it yet.
    Idle,
    Up,
    /// With the reason; another is being made.
    Down(String),
}

/// Something that makes a connection, and keeps it.
#[async_trait]
pub trait Connection: Send + Sync + std::fmt::Debug {
    /// The client over whatever line there is at the moment.
    fn client(&self) -> Arc<dyn Client>;
    /// Makes the connection; the outcome of the first attempt. More follow by themselves when it fails.
    async fn connect(&self) -> Result<()>;
    /// Gives the connection up, with whatever was started for it.
    async fn dispose(&self);
    /// Whether paths that the runtime names can be looked at here.
    fn shares_filesystem(&self) -> bool;
    fn link(&self) -> watch::Receiver<Link>;
    /// Where to attach to a managed process, if that can be done from outside.
    fn attach_url(&self, session: &str, process: &str) -> Option<String>;
}

/// A program that serves the RPC on its standard input and output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildCommand {
    pub program: OsString,
    pub args: Vec<OsString>,
}

impl Default for ChildCommand {
    fn default() -> Self {
        let port = DEFAULT_PORT.to_string();
        let args = ["box", "-s", "--ws-control-port", &port].map(OsString::from);
        Self { program: "sandcrate".into(), args: args.into() }
    }
}

/// Where the application runs, as far as that decides how a runtime is reached.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Deployment {
    /// In a container of its own; the runtime is in another.
    pub in_docker: bool,
    /// Somebody else starts the runtime on this machine.
    pub standalone_box: bool,
    /// What is started when none of that holds.
    pub child: ChildCommand,
}

impl Deployment {
    /// By the marks that containers have.
    pub fn detect() -> Self {
        let told = std::env::var_os("DOCKER_ENV").is_some_and(|value| value == "true");
        Self { in_docker: told || Path::new("/.dockerenv").exists(), ..Self::default() }
    }
}

/// How patient a connector is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// For a connection with its handshake.
    pub connect: Duration,
    /// For the opening of a WebSocket.
    pub open: Duration,
    pub heartbeat: Duration,
    /// For the answer to one.
    pub ping: Duration,
    /// Unanswered in a row, before the line is given up.
    pub missed_pings: u32,
    /// Before another attempt; doubled by each that fails.
    pub first_delay: Duration,
    pub longest_delay: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(30),
            open: Duration::from_secs(10),
            heartbeat: Duration::from_secs(20),
            ping: Duration::from_secs(15),
            missed_pings: 2,
            first_delay: Duration::from_secs(3),
            longest_delay: Duration::from_secs(60),
        }
    }
}

#[derive(Debug, Clone)]
enum Transport {
    WebSocket(Endpoint),
    Child(ChildCommand),
}

/// The way to a runtime. Made without any I/O; [`Connection::connect`] begins.
#[derive(Debug)]
pub struct Connector {
    transport: Transport,
    relay: Endpoint,
    forwarded: serde_json::Value,
    timing: Timing,
    client: Arc<RpcClient>,
    link: watch::Sender<Link>,
    running: Mutex<Option<Running>>,
}

#[derive(Debug)]
struct Running {
    end: CancellationToken,
    task: JoinHandle<()>,
}

impl Connector {
    /// # Errors
    /// When the configured endpoint is no address.
    pub fn new(config: &BoxConfig, deployment: Deployment) -> Result<Self> {
        let (transport, relay) = match &config.endpoint {
            Some(text) => {
                let endpoint = Endpoint::parse(text)?;
                (Transport::WebSocket(endpoint.clone()), endpoint)
            }
            None if deployment.in_docker => {
                let endpoint = Endpoint::parse("ws://langbot_box")?;
                (Transport::WebSocket(endpoint.clone()), endpoint)
            }
            None if deployment.standalone_box => {
                (Transport::WebSocket(Endpoint::parse("ws://localhost")?), Endpoint::parse("ws://127.0.0.1")?)
            }
            None => (Transport::Child(deployment.child), Endpoint::parse("ws://127.0.0.1")?),
        };
        Ok(Self {
            transport,
            client: Arc::new(RpcClient::with_relay(relay.clone())),
            relay,
            forwarded: config.forwarded.clone(),
            timing: Timing::default(),
            link: watch::Sender::new(Link::Idle),
            running: Mutex::new(None),
        })
    }

    #[must_use]
    pub fn with_timing(mut self, timing: Timing) -> Self {
        self.timing = timing;
        self
    }

    pub fn uses_websocket(&self) -> bool {
        matches!(self.transport, Transport::WebSocket(_))
    }

    /// Where the RPC is; a child has none.
    pub fn rpc_url(&self) -> Option<String> {
        match &self.transport {
            Transport::WebSocket(endpoint) => Some(endpoint.rpc_url()),
            Transport::Child(_) => None,
        }
    }

    pub fn relay_url(&self) -> String {
        self.relay.relay_url()
    }

    fn start(&self) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if running.as_ref().is_some_and(|running| !running.task.is_finished()) {
            return;
        }
        let end = CancellationToken::new();
        let supervisor = Supervisor {
            transport: self.transport.clone(),
            forwarded: self.forwarded.clone(),
            timing: self.timing,
            client: Arc::clone(&self.client),
            link: self.link.clone(),
            end: end.clone(),
        };
        *running = Some(Running { end, task: tokio::spawn(supervisor.run()) });
    }
}

#[async_trait]
impl Connection for Connector {
    fn client(&self) -> Arc<dyn Client> {
        Arc::clone(&self.client) as Arc<dyn Client>
    }

    async fn connect(&self) -> Result<()> {
        let mut link = self.link.subscribe();
        if *link.borrow_and_update() == Link::Up {
            return Ok(());
        }
        self.start();
        while link.changed().await.is_ok() {
            match &*link.borrow_and_update() {
                Link::Idle => {}
                Link::Up => return Ok(()),
                Link::Down(reason) => return Err(HostError::unavailable(reason.clone())),
            }
        }
        Err(HostError::unavailable("Box runtime is not connected"))
    }

    async fn dispose(&self) {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Running { end, task }) = running {
            end.cancel();
            // It ends by itself, after the child.
            let _ = task.await;
        }
        self.link.send_replace(Link::Idle);
    }

    fn shares_filesystem(&self) -> bool {
        !self.uses_websocket()
    }

    fn link(&self) -> watch::Receiver<Link> {
        self.link.subscribe()
    }

    fn attach_url(&self, session: &str, process: &str) -> Option<String> {
        Some(self.relay.attach_url(session, process))
    }
}

impl Drop for Connector {
    fn drop(&mut self) {
        let running = self.running.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(running) = running {
            running.end.cancel();
        }
    }
}
