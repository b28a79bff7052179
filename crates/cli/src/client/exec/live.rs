//! Follows a command: its streams to ours as they come, or kept for the document.

use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use hyper::Method;
use sandcrate_backend::Stream;
use serde_json::Value;
use tokio::sync::mpsc;

use super::report::{self, Collected};
use super::{ExecArgs, Variables};
use crate::args::OutputFormat;
use crate::client::events::{Event, Exit, Follower};
use crate::client::http::{Client, Payload};
use crate::client::problem::ClientError;
use crate::client::text;
use crate::output::{self, BROKEN_PIPE_EXIT_CODE};
use crate::run::signals::Signals;
use crate::run::streams::{self, AtEnd, Kept};
use crate::units::show_size;

/// How much standard input goes with one request.
const INPUT_BYTES: usize = 1 << 20;
/// How long a server may take to kill a command before we leave anyway.
const KILL_TIME: Duration = Duration::from_secs(5);

/// How following ended, when nothing failed.
#[derive(Debug)]
enum Ending {
    Exit(Exit),
    /// Nobody reads our output any more.
    BrokenPipe,
    /// A signal to us.
    Signal(i32),
}

pub(super) async fn run(client: Client, args: &ExecArgs, env: Variables) -> anyhow::Result<ExitCode> {
    let mut signals = Signals::install()?;
    let client = Arc::new(client);
    let started = {
        let mut starting = std::pin::pin!(super::start(&client, args, env));
        tokio::select! {
            started = &mut starting => started?,
            signal = signals.ending() => {
                // It may be running already: then it is known in a moment, and killed.
                if let Ok(Ok(started)) = tokio::time::timeout(KILL_TIME, starting).await {
                    let path = command_path(args, &super::command_id(&client, &started)?, &[]);
                    let _ = tokio::time::timeout(KILL_TIME, client.delete::<Value>(&path)).await;
                }
                return Ok(ExitCode::from(signal_code(signal)));
            }
        }
    };
    let id = super::command_id(&client, &started)?;
    let path = |rest: &[&str]| command_path(args, &id, rest);
    if args.interactive {
        feed(client.clone(), path(&["stdin"]))?;
    }
    let mut sink = match args.output {
        OutputFormat::Raw => Sink::Live { quiet: args.quiet },
        OutputFormat::Json => Sink::Keep(Collected::default()),
    };
    let mut follower = Follower::new(&client, path(&["events"]));
    let followed = tokio::select! {
        followed = follow(&mut follower, &mut sink) => followed,
        signal = signals.ending() => Ok(Ending::Signal(signal)),
    };
    let ending = match followed {
        Ok(ending) => ending,
        Err(error) => {
            let lost = error.downcast_ref::<ClientError>().is_some_and(ClientError::is_connection);
            let session = &args.session;
            return Err(if lost {
                error.context(format!("command {id} in session {session}"))
            } else {
                error
            });
        }
    };
    if !matches!(ending, Ending::Exit(_)) {
        // Or it would go on with nobody to read it.
        let path = path(&[]);
        tokio::select! {
            _ = tokio::time::timeout(KILL_TIME, client.delete::<Value>(&path)) => {}
            // A second Ctrl-C does not wait.
            _ = signals.ending() => {}
        }
    }
    Ok(finish(args, &id, &ending, sink))
}

fn command_path(args: &ExecArgs, id: &str, rest: &[&str]) -> String {
    text::path(&[&["v1", "sessions", args.session.as_str(), "commands", id], rest].concat())
}

fn signal_code(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}

/// Where output goes.
#[derive(Debug)]
enum Sink {
    Live { quiet: bool },
    Keep(Collected),
}

async fn follow(follower: &mut Follower<'_>, sink: &mut Sink) -> anyhow::Result<Ending> {
    loop {
        match follower.next().await? {
            Some(Event::Output(stream, data)) => {
                if let Some(ending) = take(sink, stream, data).await? {
                    return Ok(ending);
                }
            }
            Some(Event::Gap(bytes)) => match sink {
                Sink::Live { quiet: true } => {}
                Sink::Live { quiet: false } => output::notice(&format!(
                    "{} of output were dropped because they were not read in time",
                    show_size(bytes)
                )),
                Sink::Keep(collected) => collected.dropped_bytes += bytes,
            },
            Some(Event::Exit(exit)) => return Ok(Ending::Exit(exit)),
            Some(Event::Failed(error)) => return Err(ClientError::from(error).into()),
            None => anyhow::bail!("the server no longer knows how the command ended"),
        }
    }
}

async fn take(sink: &mut Sink, stream: Stream, data: Bytes) -> anyhow::Result<Option<Ending>> {
    let collected = match sink {
        Sink::Live { .. } => return write(stream, data).await,
        Sink::Keep(collected) => collected,
    };
    let kept: &mut Kept = match stream {
        Stream::Stdout => &mut collected.stdout,
        Stream::Stderr => &mut collected.stderr,
    };
    kept.push(&data);
    Ok(None)
}

async fn write(stream: Stream, data: Bytes) -> anyhow::Result<Option<Ending>> {
    match tokio::task::spawn_blocking(move || streams::write(stream, &data)).await? {
        Ok(()) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Some(Ending::BrokenPipe)),
        Err(error) => Err(anyhow::Error::new(error).context("writing the command's output")),
    }
}

/// Passes our standard input on, a request for each piece: one long request would be cut off when nobody types.
fn feed(client: Arc<Client>, path: String) -> io::Result<()> {
    let (sender, mut pieces) = mpsc::channel(4);
    streams::feed(sender, AtEnd::Close)?;
    tokio::spawn(async move {
        while let Some(first) = pieces.recv().await {
            let mut data = BytesMut::from(first.as_ref());
            while data.len() < INPUT_BYTES
                && let Ok(more) = pieces.try_recv()
            {
                data.extend_from_slice(&more);
            }
            let payload = Payload::Whole(Some(data.freeze()));
            // A program may well end, or close its input, before it has read all of ours.
            if let Err(error) = client.ask::<Value>(Method::POST, &path, payload).await {
                tracing::debug!(error = &error as &dyn std::error::Error, "standard input not taken");
                return;
            }
        }
        let closed = client.ask::<Value>(Method::POST, &format!("{path}?eof=1"), Payload::Whole(None)).await;
        if let Err(error) = closed {
            tracing::debug!(error = &error as &dyn std::error::Error, "standard input not closed");
        }
    });
    Ok(())
}

fn finish(args: &ExecArgs, id: &str, ending: &Ending, sink: Sink) -> ExitCode {
    let code = match ending {
        Ending::Exit(exit) => report::exit_code(exit),
        Ending::BrokenPipe => BROKEN_PIPE_EXIT_CODE,
        Ending::Signal(signal) => signal_code(*signal),
    };
    match (sink, ending) {
        (Sink::Live { quiet: false }, Ending::Exit(exit)) => {
            report::notices(exit, args.timeout).iter().for_each(|line| output::notice(line));
            ExitCode::from(code)
        }
        (Sink::Live { .. }, _) => ExitCode::from(code),
        (Sink::Keep(collected), ending) => {
            let exit = match ending {
                Ending::Exit(exit) => Some(exit),
                _ => None,
            };
            let document = report::document(&args.session, id, code, exit, &collected);
            output::exit_code_after(output::print_bytes(format!("{document:#}\n").as_bytes()), code)
        }
    }
}
