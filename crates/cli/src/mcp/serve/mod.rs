//! `sandcrate mcp serve`: an MCP server on stdin and stdout, with a box of its own in this process, or with one of a
//! running server.
//!
//! Stdout belongs to the protocol; what a person is told goes to stderr. The state of an unnamed session is a
//! directory that is removed as soon as it is open, so that no end can leave it behind.

mod args;
mod plan;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use sandcrate_backend::Backend;
use sandcrate_mcp::box_server::{BoxServer, LocalBoxes, serve_lines};
use sandcrate_protocol::ErrorKind;
use sandcrate_protocol::network::NetworkRequest;
use sandcrate_runtime::{Runtime, RuntimeConfig, RuntimeError};
use tokio_util::sync::CancellationToken;

pub(crate) use args::ServeArgs;
use plan::Plan;

use crate::args::OutputFormat;
use crate::client::address::Target;
use crate::client::mcp_bridge;
use crate::failure::{self, Failure};
use crate::native::NativeBackend;
use crate::output;
use crate::run::signals::Signals;

/// How long the orderly end of a box may take; the launcher cleans up after us in any case.
const SHUTDOWN_TIME: Duration = Duration::from_secs(5);

pub(super) fn main(args: ServeArgs) -> ExitCode {
    if let Some(url) = args.url {
        return mcp_bridge::main(url, args.token_file, args.session.as_deref());
    }
    let fail = |error: &anyhow::Error| failure::report(error, OutputFormat::Raw);
    let cwd = std::env::current_dir().unwrap_or_else(|_| Path::new("/").to_owned());
    let plan = match plan::plan(&args, &cwd, |key| std::env::var_os(key)) {
        Ok(plan) => plan,
        Err(error) => return fail(&error),
    };
    if plan.blueprint.options.network == Some(NetworkRequest::Host) {
        output::notice("warning: --network host: commands reach everything that this host reaches");
    }
    // Files and messages at the same time; boxes are processes of their own.
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&anyhow::Error::new(error).context("starting the runtime")),
    };
    let served = runtime.block_on(serve(plan));
    // A read of stdin may never return; it ends with the process.
    runtime.shutdown_background();
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

/// Whether a server could be begun with these flags, as far as can be known before.
pub(super) fn check(args: &ServeArgs, cwd: &Path) -> anyhow::Result<()> {
    match &args.url {
        Some(url) => Target::at(url.clone(), args.token_file.clone()).resolve().map(drop),
        // Variables that it is to pass on may come from the client.
        None => plan::plan(args, cwd, |_| None).map(drop),
    }
}

async fn serve(plan: Plan) -> anyhow::Result<()> {
    let mut signals = Signals::install().context("installing signal handlers")?;
    let backend: Arc<dyn Backend> = Arc::new(NativeBackend::open(plan.native.clone()).await?);
    let served = async {
        let runtime = open(&plan, Arc::clone(&backend)).await?;
        if !runtime.backend_status().await.available {
            output::notice(
                "no box can be made on this machine; `sandcrate doctor` says why and how to fix it",
            );
        }
        let boxes = Arc::new(LocalBoxes::new(runtime.clone(), plan.blueprint.clone()));
        let stop = CancellationToken::new();
        let server = BoxServer::new(boxes, plan.session.clone());
        let serving = serve_lines(server, tokio::io::stdin(), tokio::io::stdout(), stop.clone());
        let ended = tokio::select! {
            ended = serving => ended,
            _ = signals.ending() => Ok(()),
        };
        stop.cancel();
        tokio::select! {
            () = runtime.shutdown(Duration::ZERO) => {}
            // A second Ctrl-C does not wait.
            _ = signals.ending() => {}
            () = tokio::time::sleep(SHUTDOWN_TIME) => tracing::warn!("the box did not end in time"),
        }
        Ok(ended?)
    }
    .await;
    if served.is_err() {
        backend.shutdown().await;
    }
    served
}

async fn open(plan: &Plan, backend: Arc<dyn Backend>) -> anyhow::Result<Runtime> {
    let Some(directory) = &plan.kept else {
        let private = tempfile::tempdir().context("making a directory for the state")?;
        let config = RuntimeConfig { state_dir: private.path().join("state"), ..plan.runtime.clone() };
        // Only persistent sessions have files in it, and there are none.
        return Ok(Runtime::open(config, vec![backend]).await?);
    };
    let runtime =
        Runtime::open(plan.runtime.clone(), vec![backend]).await.map_err(|error| in_use(error, plan))?;
    let made = runtime.create_session(&plan.blueprint.spec, plan.blueprint.options.clone()).await;
    if let Err(error) = made {
        let problem = format!("--session {}: {error}", plan.session);
        let failure = match error.kind() {
            ErrorKind::SessionConflict => Failure::invalid(problem).hint(format!(
                "its files are kept with the flags it was made with: use the same, or remove {}",
                directory.display()
            )),
            kind => Failure::new(kind, problem),
        };
        runtime.shutdown(Duration::ZERO).await;
        return Err(failure.into());
    }
    Ok(runtime)
}

fn in_use(error: RuntimeError, plan: &Plan) -> anyhow::Error {
    match &error {
        RuntimeError::Failed { source, .. } if source.kind() == std::io::ErrorKind::ResourceBusy => {
            Failure::invalid(format!("--session {}: another server has it open", plan.session))
                .hint("end that one, or take another name")
                .into()
        }
        _ => error.into(),
    }
}
