//! Ports of boxes that are reached from outside: listeners that belong to a session, and single connections.
//!
//! Accepted streams are handed to the backend, which carries them; how many a box may have open is the bound of
//! its network (`network.limits.connections`).

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use sandcrate_backend::{Backend, SessionId};
use sandcrate_protocol::network::PortRequest;
use serde::Serialize;
use tokio::net::{TcpListener, UnixStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::RuntimeError;
use crate::config::PublishOn;
use crate::exec::is_gone;
use crate::runtime::{Inner, Runtime};
use crate::session::{Busy, LiveBox, Session, locked};

type Result<T> = std::result::Result<T, RuntimeError>;

/// Streams of one listener that a backend has not taken yet; more wait in the kernel's queue.
const HANDED_AT_ONCE: usize = 64;
/// For a backend to take one.
const HAND_OVER: Duration = Duration::from_secs(10);
/// After an accept that failed, usually for want of descriptors.
const PAUSE: Duration = Duration::from_millis(100);
/// Below it are the ports of the host's own services.
const FIRST_PORT: u16 = 1024;

/// A port of a box, and where it is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct PortView {
    pub address: std::net::IpAddr,
    pub host_port: u16,
    pub box_port: u16,
}

/// While it lives, the session does not expire.
#[derive(Debug)]
pub struct InUse {
    _busy: Busy,
}

#[derive(Debug)]
struct Published {
    view: PortView,
    end: CancellationToken,
}

/// The published ports of one session.
#[derive(Debug, Default)]
pub(crate) struct Ports {
    open: Mutex<Vec<Published>>,
    tasks: TaskTracker,
}

impl Ports {
    pub(crate) fn views(&self) -> Vec<PortView> {
        locked(&self.open).iter().map(|port| port.view).collect()
    }

    fn find(&self, wanted: &PortRequest) -> Option<PortView> {
        self.views().into_iter().find(|view| {
            view.address == wanted.address
                && view.box_port == wanted.box_port
                && (wanted.host_port == 0 || view.host_port == wanted.host_port)
        })
    }

    /// Closes those that `which` says; how many.
    fn close(&self, which: impl Fn(&PortView) -> bool) -> usize {
        let mut open = locked(&self.open);
        let before = open.len();
        open.retain(|port| {
            let goes = which(&port.view);
            if goes {
                port.end.cancel();
            }
            !goes
        });
        before - open.len()
    }

    /// Closes all, and waits until nothing listens any more.
    pub(crate) async fn end(&self) {
        self.close(|_| true);
        self.tasks.close();
        self.tasks.wait().await;
        self.tasks.reopen();
    }
}

impl Runtime {
    /// Listens for a port of the session's box. The same again is the one that is there.
    pub async fn publish_port(&self, session: &str, wanted: PortRequest) -> Result<PortView> {
        let session = self.inner.existing(session)?;
        self.inner.publish(&session, wanted).await
    }

    pub fn ports(&self, session: &str) -> Result<Vec<PortView>> {
        Ok(self.inner.existing(session)?.ports.views())
    }

    /// Closes ports by where they are reached; all of them without a port. What is connected stays so.
    pub fn close_ports(
        &self,
        session: &str,
        host_port: Option<u16>,
        address: Option<std::net::IpAddr>,
    ) -> Result<usize> {
        let ports = &self.inner.existing(session)?.ports;
        Ok(ports.close(|view| {
            host_port.is_none_or(|port| port == view.host_port)
                && address.is_none_or(|address| address == view.address)
        }))
    }

    /// A stream to a TCP port of the session's box. Where nothing listens, it ends at once.
    pub async fn connect_port(&self, session: &str, port: u16) -> Result<(UnixStream, InUse)> {
        if port == 0 {
            return Err(RuntimeError::invalid("port", "must be from 1 to 65535"));
        }
        let session = self.inner.existing(session)?;
        let busy = session.use_now();
        let live = self.inner.live_or_gone(&session).await?;
        check_isolated(&live)?;
        let made = StdUnixStream::pair().and_then(|(ours, theirs)| {
            ours.set_nonblocking(true)?;
            Ok((UnixStream::from_std(ours)?, theirs))
        });
        let (ours, theirs) = made.map_err(|error| RuntimeError::failed("making a stream", error))?;
        let taken = live.backend.forward(&session.id, port, OwnedFd::from(theirs)).await;
        taken.map_err(
            |error| {
                if is_gone(&error) { self.inner.ended(&session, &error) } else { error.into() }
            },
        )?;
        Ok((ours, InUse { _busy: busy }))
    }
}

impl Inner {
    pub(crate) async fn publish(
        self: &Arc<Self>,
        session: &Arc<Session>,
        wanted: PortRequest,
    ) -> Result<PortView> {
        self.check_port(&wanted)?;
        let _busy = session.use_now();
        check_isolated(&*self.live_or_gone(session).await?)?;
        if let Some(known) = session.ports.find(&wanted) {
            return Ok(known);
        }
        let limit = self.config.network.ports;
        if session.ports.views().len() >= limit {
            return Err(RuntimeError::LimitExceeded {
                what: "another port of this session".to_owned(),
                limit: format!("{limit} (network.ports)"),
            });
        }
        let asked = SocketAddr::new(wanted.address, wanted.host_port);
        let unusable =
            |error| RuntimeError::invalid("ports", format!("cannot have {asked} of the host: {error}"));
        let listener = TcpListener::bind(asked).await.map_err(unusable)?;
        let bound = listener.local_addr().map_err(unusable)?;
        let view = PortView { address: bound.ip(), host_port: bound.port(), box_port: wanted.box_port };
        let end = CancellationToken::new();
        locked(&session.ports.open).push(Published { view, end: end.clone() });
        if !session.is_open() {
            // Closed meanwhile: whoever closed it may have looked at the ports already.
            session.ports.close(|_| true);
            return Err(RuntimeError::SessionNotFound { session: session.id.to_string() });
        }
        let weak = Arc::downgrade(session);
        let carrying = carry_port(listener, wanted.box_port, move || box_of(&weak));
        session.ports.tasks.spawn(end.run_until_cancelled_owned(carrying));
        Ok(view)
    }

    /// Whether a port may be had at all.
    pub(crate) fn check_port(&self, wanted: &PortRequest) -> Result<()> {
        if !wanted.address.is_loopback() && self.config.network.publish == PublishOn::Loopback {
            return Err(RuntimeError::NetworkDenied {
                asked: format!("port {wanted}"),
                why: "ports are published on 127.0.0.1 only, unless the operator sets [network] publish = \"any\""
                    .to_owned(),
            });
        }
        if (1..FIRST_PORT).contains(&wanted.host_port) {
            let problem = format!("must have a host port of 0 (any) or from {FIRST_PORT}, not {wanted}");
            return Err(RuntimeError::invalid("ports", problem));
        }
        Ok(())
    }
}

fn check_isolated(live: &LiveBox) -> Result<()> {
    if live.is_isolated() {
        return Ok(());
    }
    Err(RuntimeError::Unsupported {
        hint: "this session's box has no network of its own to come in by: create it with `ports`, or with \
               `network` on or a policy"
            .to_owned(),
    })
}

fn box_of(session: &Weak<Session>) -> Option<(Arc<dyn Backend>, SessionId)> {
    let session = session.upgrade()?;
    let live = session.live()?;
    session.clock.touch();
    Some((Arc::clone(&live.backend), session.id.clone()))
}

/// Hands every connection to the port of a box, for as long as it is polled. While there is no box, connections
/// are closed.
pub async fn carry_port(
    listener: TcpListener,
    box_port: u16,
    of: impl Fn() -> Option<(Arc<dyn Backend>, SessionId)>,
) {
    let mut handing = JoinSet::new();
    loop {
        while handing.len() >= HANDED_AT_ONCE || handing.try_join_next().is_some() {
            if handing.len() >= HANDED_AT_ONCE {
                handing.join_next().await;
            }
        }
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!(%error, "a connection to a published port was not accepted");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let Some((backend, session)) = of() else { continue };
        let _ = stream.set_nodelay(true);
        let Ok(stream) = stream.into_std() else { continue };
        handing.spawn(async move {
            let handed = backend.forward(&session, box_port, OwnedFd::from(stream));
            match tokio::time::timeout(HAND_OVER, handed).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(%error, "a published port leads nowhere"),
                Err(_) => tracing::debug!("a connection to a published port was not taken in time"),
            }
        });
    }
}
