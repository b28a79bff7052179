//! `sandcrate mcp run`: one stdio MCP server in a box of its own.
//!
//! `plan` checks the flags, `place` has the runtime, `sandcrate-mcp` installs and starts, `pump` moves bytes. Stdout
//! is the server's, but for log messages of the protocol while it is being installed, and errors when it cannot start.

mod args;
mod input;
mod place;
mod plan;
mod progress;
mod pump;
mod refusal;
mod toolbox;

use std::process::ExitCode;
use std::time::Duration;

use bytes::Bytes;
use sandcrate_mcp::{Launcher, Life, Phase, PhaseError, Start as _, Started};
use sandcrate_protocol::ErrorKind;
use sandcrate_protocol::network::NetworkRequest;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

pub(crate) use args::McpRunArgs;
use place::Place;
use plan::Plan;
use progress::Teller;
use pump::Ended;

use crate::args::OutputFormat;
use crate::client::address::{Address, Target};
use crate::failure::{self, Failure, OUR_EXIT_CODE};
use crate::native::{NativeConfig, NewLauncher};
use crate::output;
use crate::run::signals::{SIGTERM, Signals};
use crate::toolchain::Surroundings;

const SIGKILL: i32 = 9;
/// From end of file to SIGTERM: clients themselves wait for about 2 s.
const AFTER_INPUT: Duration = Duration::from_millis(1500);
/// The same when the input had ended before the server ran: it has to begin first, and to answer.
const AFTER_EARLY_INPUT: Duration = Duration::from_secs(15);
/// From SIGTERM to SIGKILL.
const AFTER_TERM: Duration = Duration::from_secs(5);
/// How long the orderly end of boxes may take; the launcher cleans up after us in any case.
const CLEAN_UP: Duration = Duration::from_secs(8);
/// For what a server that has ended said on stderr.
const LAST_WORDS: Duration = Duration::from_millis(200);
/// Messages that a client may send before there is a server.
const EARLY_MESSAGES: usize = 256;

pub(super) fn main(args: &McpRunArgs, launcher: Option<NewLauncher>) -> ExitCode {
    match prepare(args) {
        Ok((plan, config)) => run(args, &plan, config, launcher),
        Err(error) => failure::report(&error, OutputFormat::Raw),
    }
}

fn prepare(args: &McpRunArgs) -> anyhow::Result<(Plan, NativeConfig)> {
    let mut config = NativeConfig::for_this_user();
    // Mostly: what a server needs is there already, or installed in a box before its own.
    config.one_box = true;
    // Whoever names an image wants that one; without a name it is the host's root.
    config.require_image = args.image.is_some();
    let own_state = vec![config.state_dir.canonicalize().unwrap_or_else(|_| config.state_dir.clone())];
    let plan = plan::plan(args, Surroundings::of_this_process(), own_state)?;
    Ok((plan, config))
}

fn run(args: &McpRunArgs, plan: &Plan, config: NativeConfig, launcher: Option<NewLauncher>) -> ExitCode {
    if !plan.withheld.is_empty() && !plan.quiet {
        output::notice(&format!("not passed on to the server: {}", plan.withheld.join(" ")));
    }
    if plan.server.settings.network.as_deref() == Some(&*NetworkRequest::Host.to_string()) && !plan.quiet {
        output::notice("warning: --network host: the server reaches everything that this host reaches");
    }
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            let error = anyhow::Error::new(error).context("starting the runtime");
            return failure::report(&error, OutputFormat::Raw);
        }
    };
    let result = runtime.block_on(in_place(args, plan, config, launcher));
    // A thread may hang in a read or write of our own streams; it ends with the process.
    runtime.shutdown_background();
    match result {
        Ok(code) => ExitCode::from(code),
        Err(error) => failure::report(&error, OutputFormat::Raw),
    }
}

async fn in_place(
    args: &McpRunArgs,
    plan: &Plan,
    config: NativeConfig,
    launcher: Option<NewLauncher>,
) -> anyhow::Result<u8> {
    let mut signals = Signals::install()?;
    let opening = async {
        let Some(url) = &args.url else {
            return Place::own(config, plan.grants.clone(), launcher).await;
        };
        // Boxes are made over there.
        drop(launcher);
        match Target::at(url.clone(), args.token_file.clone()).resolve()? {
            (Address::Tcp(address), token) => Place::server(&address, token.as_deref()).await,
            (Address::Unix(path), _) => {
                Err(Failure::invalid(format!("--url unix:{}: mcp run needs http://", path.display()))
                    .hint("let the server listen on a port of loopback too")
                    .into())
            }
        }
    };
    let place = tokio::select! {
        place = opening => place,
        signal = signals.ending() => return Ok(by_signal(signal)),
    };
    let place = match place {
        Ok(place) => place,
        Err(error) => {
            let text = not_started_text(&PhaseError::new(Phase::BoxUnavailable, format!("{error:#}")));
            let mut reading = JoinSet::new();
            refusal::answer(Vec::new(), false, &mut input::read(&mut reading)?, &text).await;
            return Err(error);
        }
    };
    let launcher = Launcher::new(place.client(), plan.launch.clone());
    let result = tokio::select! {
        result = serve(&launcher, &place, plan) => result,
        signal = signals.ending() => Ok(by_signal(signal)),
    };
    let end = async {
        if let Err(error) = launcher.clean_up(&plan.identity).await {
            tracing::warn!(%error, "the server's box did not end cleanly");
        }
        launcher.close().await;
        drop(launcher);
        place.close().await;
    };
    tokio::select! {
        () = end => {}
        // A second Ctrl-C does not wait.
        _ = signals.ending() => {}
        () = tokio::time::sleep(CLEAN_UP) => tracing::warn!("the box did not end in time"),
    }
    result
}

fn by_signal(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(OUR_EXIT_CODE)
}

/// Starts the server and passes its messages on; its exit code.
async fn serve(launcher: &Launcher, place: &Place, plan: &Plan) -> anyhow::Result<u8> {
    let mut reading = JoinSet::new();
    let mut input = input::read(&mut reading)?;
    let teller = Teller::new(plan.quiet);
    let mut early = Early::default();
    let started = {
        let mut start = std::pin::pin!(launcher.start(&plan.server, &plan.identity, &teller));
        loop {
            tokio::select! {
                started = &mut start => break started,
                piece = early.next(&mut input) => early.take(piece),
            }
        }
    };
    let mut server = match started {
        Ok(server) => server,
        Err(error) => {
            let text = not_started_text(&error);
            refusal::answer(early.pieces, early.ended, &mut input, &text).await;
            return not_started(launcher, plan, error).await;
        }
    };
    let (session, process) = (&plan.identity.session_id, &plan.identity.process_id);
    let log = place.runtime().and_then(|runtime| runtime.process_log(session, process).ok());
    let errors = async {
        match log {
            Some(log) => pump::errors(log, plan.quiet).await,
            None => std::future::pending().await,
        }
    };
    let conversation = converse(launcher, place, plan, &mut server, early, &mut input);
    let mut errors = std::pin::pin!(errors);
    let mut conversation = std::pin::pin!(conversation);
    tokio::select! {
        code = &mut conversation => {
            // What it said last on stderr may still be on its way.
            let _ = tokio::time::timeout(LAST_WORDS, errors).await;
            code
        }
        () = &mut errors => conversation.await,
    }
}

/// What a client sends while there is no server. More than that many pieces wait where they are.
#[derive(Debug, Default)]
struct Early {
    pieces: Vec<Bytes>,
    /// Nothing more comes: requests that were piped in.
    ended: bool,
}

impl Early {
    async fn next(&self, input: &mut mpsc::Receiver<Bytes>) -> Option<Bytes> {
        if self.ended || self.pieces.len() >= EARLY_MESSAGES {
            std::future::pending().await
        } else {
            input.recv().await
        }
    }

    fn take(&mut self, piece: Option<Bytes>) {
        match piece {
            Some(piece) => self.pieces.push(piece),
            None => self.ended = true,
        }
    }
}

async fn converse(
    launcher: &Launcher,
    place: &Place,
    plan: &Plan,
    server: &mut Started,
    early: Early,
    input: &mut mpsc::Receiver<Bytes>,
) -> anyhow::Result<u8> {
    let after_input = if early.ended { AFTER_EARLY_INPUT } else { AFTER_INPUT };
    let ended = pump::run(server, early.pieces, input).await.map_err(|error| {
        Failure::new(ErrorKind::Internal, format!("the line to the server broke: {error}"))
    })?;
    if ended != Ended::Server {
        let _ = tokio::io::AsyncWriteExt::shutdown(&mut server.writer).await;
        if let Some(runtime) = place.runtime() {
            let (session, process) = (&plan.identity.session_id, &plan.identity.process_id);
            for (signal, time) in
                [(None, after_input), (Some(SIGTERM), AFTER_TERM), (Some(SIGKILL), AFTER_TERM)]
            {
                if let Some(signal) = signal {
                    let _ = runtime.signal_process(session, process, signal).await;
                }
                if pump::rest(server, time).await {
                    break;
                }
            }
        } else {
            // A server's own way: end of file, SIGTERM, SIGKILL.
            return Ok(if ended == Ended::Output { output::BROKEN_PIPE_EXIT_CODE } else { 0 });
        }
    }
    Ok(match launcher.look(&plan.identity).await {
        Ok(Life::Exited { code: Some(code) }) => u8::try_from(code).unwrap_or(OUR_EXIT_CODE),
        _ => OUR_EXIT_CODE,
    })
}

fn not_started_text(error: &PhaseError) -> String {
    format!("the server could not be started ({}): {}", error.phase, error.message)
}

/// The server's own code when it had one, and the reason in any case.
async fn not_started(launcher: &Launcher, plan: &Plan, error: PhaseError) -> anyhow::Result<u8> {
    let code = match launcher.look(&plan.identity).await {
        Ok(Life::Exited { code: Some(code) }) if error.phase == Phase::ProcessStart => {
            u8::try_from(code).ok()
        }
        _ => None,
    };
    let kind = match error.phase {
        Phase::BoxUnavailable => ErrorKind::RuntimeUnavailable,
        Phase::Staging => ErrorKind::Validation,
        _ => ErrorKind::Internal,
    };
    let failure = Failure::new(kind, not_started_text(&error));
    let failure = match hint(&error) {
        Some(hint) => failure.hint(hint),
        None => failure,
    };
    match code {
        Some(code) => {
            failure::report(&failure.into(), OutputFormat::Raw);
            Ok(code)
        }
        None => Err(failure.into()),
    }
}

fn hint(error: &PhaseError) -> Option<&'static str> {
    Some(match error.phase {
        Phase::BoxUnavailable | Phase::SessionCreate => {
            "`sandcrate doctor` says what is missing on this machine"
        }
        Phase::DepInstall if speaks_of_a_connection(&error.message) => {
            "an index that is not on the public Internet needs its name and its address: \
             --install-network 'allow NAME:443, allow ADDRESS:443'"
        }
        Phase::Staging => "--project names the server's directory, -v shows more of the host",
        _ => return None,
    })
}

/// Whether the output of pip, uv or npm says that a host was not found or not reached.
fn speaks_of_a_connection(output: &str) -> bool {
    const WORDS: [&str; 16] = [
        "name resolution",
        "name or service not known",
        "could not resolve",
        "failed to lookup address",
        "dns error",
        "getaddrinfo",
        "enotfound",
        "eai_again",
        "econn",
        "etimedout",
        "unreach",
        "no route to host",
        "connection refused",
        "connection reset",
        "timed out",
        "error sending request",
    ];
    let output = output.to_lowercase();
    WORDS.iter().any(|word| output.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_network_is_suggested_where_it_was_the_network() {
        let hinted = |output: &str| hint(&PhaseError::new(Phase::DepInstall, output)).is_some();
        for output in [
            "Failed to establish a new connection: [Errno -3] Temporary failure in name resolution",
            "npm error code ENOTFOUND",
            "npm error connect ECONNREFUSED 10.0.0.5:443",
            "error sending request for url (https://index.example/simple/a/)",
            "OSError: [Errno 101] Network is unreachable",
        ] {
            assert!(hinted(output), "{output}");
        }
        for output in [
            "ERROR: No matching distribution found for no-such-thing==9",
            "npm error 404 Not Found - GET https://index.example/no-such-thing",
            "error: command 'gcc' failed: No such file or directory",
        ] {
            assert!(!hinted(output), "{output}");
        }
    }
}
