//! The life of a server: take what it needs, serve, end in order.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use rustix::process::{Resource, getrlimit, setrlimit};
use sandcrate_backend::Backend;
use sandcrate_protocol::ErrorKind;
use sandcrate_runtime::{Runtime, RuntimeError};
use sandcrate_server::{App, TlsIdentity, serve_app, serve_stdio};
use tokio_util::sync::CancellationToken;

use super::bind::{self, Bound, Patience};
use super::log::Voice;
use super::signals::Signals;
use super::{greeting, langbot};
use crate::backends;
use crate::config::{Config, Outside, Role};
use crate::failure::Failure;

/// A predecessor that was told to end has this long to leave its state and its port to us.
const PREDECESSOR: Duration = Duration::from_secs(5);
/// By then everything is open, and the first boxes are prepared.
const STARTED: Duration = Duration::from_secs(1);

/// Serves until a signal, or the end of stdin with `box -s`. The code is 0 after an orderly end.
pub(super) async fn run(config: &Config, outside: &Outside, voice: Voice) -> anyhow::Result<u8> {
    let mut signals = Signals::install().context("installing signal handlers")?;
    let stop = CancellationToken::new();
    let mut served = pin!(serve(config, outside, voice, stop.clone()));
    tokio::select! {
        served = served.as_mut() => return served.map(|()| 0),
        _ = signals.next() => stop.cancel(),
    }
    tracing::info!("stopping; a second signal does not wait");
    tokio::select! {
        served = served => served.map(|()| 0),
        signal = signals.next() => Ok(128 + signal),
    }
}

async fn serve(
    config: &Config,
    outside: &Outside,
    voice: Voice,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    raise_open_files();
    let (wait, flag) = match config.role {
        Role::Serve => (Duration::ZERO, "--listen ADDRESS:PORT"),
        Role::Box { .. } => (PREDECESSOR, "--ws-control-port PORT"),
    };
    let patience = Patience::for_a(wait, stop.clone());
    // Before anything is started: the most likely failure leaves the least behind.
    let identity = bind::tls_identity(config)?;
    let mut bound = match &identity {
        _ if config.is_stdio() => Vec::new(),
        identity => bind::tcp(config.listen(), identity.as_ref(), &patience, flag).await?,
    };
    let backends = backends::open(config).await?;
    let result = async {
        let runtime = open_runtime(config, &backends, &patience).await?;
        langbot::apply(&runtime, outside, voice);
        if config.settings.server.insecure_no_auth {
            voice.warn("server.insecure_no_auth: whoever reaches us may run commands here");
        }
        let app = App::new(runtime, config.server(), stop);
        app.tasks.spawn(look_at_backend(app.runtime.clone(), voice));
        app.tasks.spawn(forget_the_start(app.shutdown.clone()));
        if config.is_stdio() {
            with_parent(config, app, identity.as_ref(), &patience, flag, voice).await
        } else {
            // Now that the state is ours, a socket in it can only be a dead one's.
            bound.extend(bind::unix(config.listen(), socket_mode(config))?);
            with_listeners(config, app, bound, voice).await
        }
    }
    .await;
    if result.is_err() {
        for backend in &backends {
            backend.shutdown().await;
        }
    }
    result
}

async fn with_listeners(config: &Config, app: App, bound: Vec<Bound>, voice: Voice) -> anyhow::Result<()> {
    greeting::print(config, &bound, voice);
    let (listeners, _files): (Vec<_>, Vec<_>) =
        bound.into_iter().map(|bound| (bound.listener, bound.file)).unzip();
    Ok(serve_app(listeners, app).await?)
}

/// RPC on stdin and stdout at once; the relay's port as soon as it is free, or not at all.
async fn with_parent(
    config: &Config,
    app: App,
    identity: Option<&TlsIdentity>,
    patience: &Patience,
    flag: &str,
    voice: Voice,
) -> anyhow::Result<()> {
    let relay = async {
        let bound = match bind::tcp(config.listen(), identity, patience, flag).await {
            Ok(bound) => bound,
            Err(error) => {
                voice.warn(&format!("{error:#}; attaching to processes does not work"));
                Vec::new()
            }
        };
        with_listeners(config, app.clone(), bound, voice).await
    };
    let parent = serve_stdio(app.clone(), tokio::io::stdin(), tokio::io::stdout());
    let (served, spoken) = tokio::join!(relay, parent);
    served?;
    Ok(spoken?)
}

async fn open_runtime(
    config: &Config,
    backends: &[Arc<dyn Backend>],
    patience: &Patience,
) -> anyhow::Result<Runtime> {
    loop {
        match Runtime::open(config.runtime(), backends.to_vec()).await {
            Ok(runtime) => return Ok(runtime),
            Err(error) if is_in_use(&error) => {
                if !patience.wait().await {
                    let hint = "end the other server, or give this one its own: --state-dir DIR, \
                                runtime.state_dir, SANDCRATE_STATE_DIR";
                    return Err(Failure::new(ErrorKind::Internal, error.to_string()).hint(hint).into());
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn is_in_use(error: &RuntimeError) -> bool {
    matches!(error, RuntimeError::Failed { source, .. } if source.kind() == std::io::ErrorKind::ResourceBusy)
}

/// Says it early when no box can be made here. Serving goes on: what is missing may come.
async fn look_at_backend(runtime: Runtime, voice: Voice) {
    if !runtime.backend_status().await.available {
        voice.warn("no box can be made on this machine; `sandcrate doctor` says why and how to fix it");
    }
}

/// Most of a start's code is not needed again, and a server is idle most of its life.
async fn forget_the_start(shutdown: CancellationToken) {
    if shutdown.run_until_cancelled(tokio::time::sleep(STARTED)).await.is_some() {
        let _ = sandcrate_sys::memory::release_code();
    }
}

/// Who may connect is told by the peer's credentials; the file's mode only spares the others the attempt.
fn socket_mode(config: &Config) -> u32 {
    if config.settings.server.allow_uids.is_empty() { 0o600 } else { 0o666 }
}

/// An idle session costs about four descriptors, and the usual limit is 1024. Best effort.
fn raise_open_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
}
