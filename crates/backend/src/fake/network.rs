//! The fake's isolated network: a policy that is stored, figures that a test sets, and ports that a test serves.

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use tokio::net::UnixStream;

use super::{FakeBackend, FakeSession};
use crate::{Backend, BackendError, Network, NetworkReport, SessionId};

/// Serves one connection to a port of a box; it does not wait for its end.
pub(super) type Serve = dyn Fn(u16, UnixStream) + Send + Sync;

impl FakeBackend {
    /// Boxes can have an isolated network.
    #[must_use]
    pub fn with_network(mut self) -> Self {
        self.capabilities.isolated_network = true;
        self
    }

    /// Connections to ports are given to this; without it every port echoes.
    #[must_use]
    pub fn with_ports(mut self, serve: impl Fn(u16, UnixStream) + Send + Sync + 'static) -> Self {
        self.serve = Box::new(serve);
        self
    }

    /// What a live session's network will be said to have done.
    pub fn set_report(&self, session: &SessionId, report: NetworkReport) {
        if let Some(live) = self.state().sessions.get_mut(session) {
            live.report = report;
        }
    }
}

pub(super) fn isolated<'a>(
    sessions: &'a mut HashMap<SessionId, FakeSession>,
    session: &SessionId,
    backend: &FakeBackend,
) -> Result<&'a mut FakeSession, BackendError> {
    match sessions.get_mut(session) {
        None => Err(BackendError::SessionNotFound { session: session.clone() }),
        Some(live) if matches!(live.spec.network, Network::Isolated(_)) => Ok(live),
        Some(_) => Err(backend.without_network("the network of a box without one")),
    }
}

/// Reading and writing are the same for every kind of stream socket.
pub(super) fn stream(stream: OwnedFd) -> Result<UnixStream, BackendError> {
    let stream = std::os::unix::net::UnixStream::from(stream);
    stream
        .set_nonblocking(true)
        .and_then(|()| UnixStream::from_std(stream))
        .map_err(|error| BackendError::failed("taking a stream over", error))
}

/// Ends with the stream.
pub(super) async fn echo(mut stream: UnixStream) {
    let (mut from, mut to) = stream.split();
    // A peer that leaves early ends it as well.
    let _ = tokio::io::copy(&mut from, &mut to).await;
}
