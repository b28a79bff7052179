//! Listens, and gives each connection to the router: our own accept loop, so that heads are read against the
//! clock, open connections are bounded, and an end leaves nothing behind.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use sandcrate_runtime::Runtime;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::e2b;
use crate::placed::{Placed, Stream};
use crate::{App, ConfigError, Connection, Legacy, Peer, ServerConfig, TlsIdentity};

/// A bound socket.
#[derive(Debug)]
pub enum Listener {
    Tcp(TcpListener),
    /// The same behind TLS.
    Tls(TcpListener, TlsIdentity),
    Unix(UnixListener),
}

/// Why nothing is served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    #[error("the server's configuration is not usable")]
    Config(#[from] ConfigError),
    #[error(
        "{address} can be reached from other machines: set `token`, list networks in `legacy`, \
         or pass --insecure-no-auth"
    )]
    Unprotected { address: SocketAddr },
    #[error("the address of a listener cannot be told")]
    Address(#[source] io::Error),
}

/// Connection heads are small; more than this is not a client of ours.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// After commands had their grace, answers and goodbyes get this long.
const GOODBYE: Duration = Duration::from_secs(2);

/// MCP servers are ended before the runtime; a process that ignores its end is killed long before this.
const MCP_END: Duration = Duration::from_secs(15);

/// Serves every face on these listeners until `shutdown`, then ends the runtime too.
pub async fn serve(
    listeners: Vec<Listener>,
    runtime: Runtime,
    config: ServerConfig,
    shutdown: CancellationToken,
) -> Result<(), ServeError> {
    serve_app(listeners, App::new(runtime, config, shutdown)).await
}

/// The same, for an [`App`] that is shared with [`crate::serve_stdio`].
pub async fn serve_app(listeners: Vec<Listener>, app: App) -> Result<(), ServeError> {
    app.config.validate()?;
    for listener in &listeners {
        check_address(listener, &app.config)?;
    }
    let router = app.router();
    let places = Arc::new(Semaphore::new(app.config.limits.max_connections));
    for listener in listeners {
        app.tasks.spawn(accept_loop(listener, router.clone(), app.clone(), places.clone()));
    }
    app.mcp.manager.begin();
    let mcp = app.mcp.clone();
    app.tasks.spawn(async move { mcp.gateway.run().await });
    if app.config.e2b.enabled {
        app.tasks.spawn(e2b::keep_time(app.clone()));
    }
    app.shutdown.cancelled().await;
    app.tasks.close();
    // While there is still a runtime to end their processes and boxes.
    if tokio::time::timeout(MCP_END, app.mcp.shutdown()).await.is_err() {
        tracing::warn!("MCP servers did not end in time; their boxes end with the runtime");
    }
    let grace = app.config.shutdown_grace;
    let drained = tokio::time::timeout(grace + GOODBYE, app.tasks.wait());
    let ((), drained) = tokio::join!(app.runtime.shutdown(grace), drained);
    app.abort.cancel();
    if drained.is_err() && tokio::time::timeout(GOODBYE, app.tasks.wait()).await.is_err() {
        tracing::warn!(tasks = app.tasks.len(), "connections left behind at the end");
    }
    Ok(())
}

/// An address that other machines reach needs somebody to be asked for something.
fn check_address(listener: &Listener, config: &ServerConfig) -> Result<(), ServeError> {
    let (Listener::Tcp(listener) | Listener::Tls(listener, _)) = listener else { return Ok(()) };
    let address = listener.local_addr().map_err(ServeError::Address)?;
    let protected = config.token.is_some()
        || config.insecure_no_auth
        || matches!(config.legacy(), Legacy::Cidrs(_))
        || address.ip().to_canonical().is_loopback();
    if protected { Ok(()) } else { Err(ServeError::Unprotected { address }) }
}

async fn accept_loop(listener: Listener, router: Router, app: App, places: Arc<Semaphore>) {
    loop {
        let accepted = tokio::select! {
            () = app.shutdown.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors, or the peer is gone already; either passes by itself.
                tracing::warn!(error = &error as &dyn std::error::Error, "connection not accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        // One connection waits here for a place; more wait in the kernel's backlog, which is bounded too.
        let place = tokio::select! {
            () = app.shutdown.cancelled() => return,
            place = places.clone().acquire_owned() => place,
        };
        let Ok(place) = place else { return };
        let stream = Placed::new(stream, place, app.config.limits.write_timeout);
        app.tasks.spawn(serve_connection(stream, listener.identity(), peer, router.clone(), app.clone()));
    }
}

impl Listener {
    async fn accept(&self) -> io::Result<(Box<dyn Stream>, Peer)> {
        match self {
            Self::Tcp(listener) | Self::Tls(listener, _) => {
                let (stream, remote) = listener.accept().await?;
                // Replies are whole messages: waiting for more to send only adds delay.
                stream.set_nodelay(true)?;
                let local = stream.local_addr()?;
                Ok((Box::new(stream), Peer::Tcp { local, remote }))
            }
            Self::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                let peer = stream.peer_cred()?;
                let pid = peer.pid().and_then(|pid| u32::try_from(pid).ok());
                Ok((Box::new(stream), Peer::Unix { uid: peer.uid(), pid }))
            }
        }
    }

    fn identity(&self) -> Option<TlsIdentity> {
        match self {
            Self::Tls(_, identity) => Some(identity.clone()),
            Self::Tcp(_) | Self::Unix(_) => None,
        }
    }
}

async fn serve_connection(
    stream: Placed,
    identity: Option<TlsIdentity>,
    peer: Peer,
    router: Router,
    app: App,
) {
    let Some(identity) = identity else { return serve_stream(stream, peer, router, app).await };
    // A handshake is held to the clock like the head of a request, and does not outlive us.
    let handshake = tokio::time::timeout(app.config.limits.header_timeout, identity.accept(stream));
    match app.shutdown.run_until_cancelled(handshake).await {
        Some(Ok(Ok(stream))) => serve_stream(stream, peer, router, app).await,
        Some(Ok(Err(error))) => {
            tracing::debug!(%peer, error = &error as &dyn std::error::Error, "no TLS with this peer");
        }
        Some(Err(_)) | None => tracing::debug!(%peer, "a TLS handshake did not end in time"),
    }
}

async fn serve_stream(stream: impl Stream + 'static, peer: Peer, router: Router, app: App) {
    let connection = Arc::new(Connection::new(peer));
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(connection.clone());
        let answer = router.clone().oneshot(request);
        async move { Ok::<_, Infallible>(answer.await.unwrap_or_else(|never| match never {})) }
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(app.config.limits.header_timeout)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let mut serving = pin!(serving);
    let ended = tokio::select! {
        ended = serving.as_mut() => ended,
        () = app.abort.cancelled() => return,
        () = app.shutdown.cancelled() => {
            serving.as_mut().graceful_shutdown();
            tokio::select! {
                ended = serving.as_mut() => ended,
                () = app.abort.cancelled() => return,
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, error = &error as &dyn std::error::Error, "connection ended");
    }
}
