//! `exec -t`: a terminal in the box over a WebSocket, ours raw in front of it.
//!
//! The command is started like any other; the connection shows its terminal, and the command ends with it.

use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use sandcrate_backend::Stream;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::Message as Frame;

use super::{ExecArgs, Variables, report};
use crate::client::events::Exit;
use crate::client::http::{Client, Message, WebSocket};
use crate::client::problem::{ClientError, ServerError};
use crate::client::text;
use crate::output::{self, BROKEN_PIPE_EXIT_CODE};
use crate::run::report::TIMEOUT_EXIT_CODE;
use crate::run::signals::{Asked, Signals};
use crate::run::streams::{self, AtEnd};
use crate::run::terminal::{RawTerminal, size};
use crate::units::show_duration;

/// How long the goodbye may take.
const GOODBYE: Duration = Duration::from_millis(500);

pub(super) async fn run(client: Client, args: &ExecArgs, mut env: Variables) -> anyhow::Result<ExitCode> {
    let mut signals = Signals::install()?;
    if !env.iter().any(|(key, _)| key == "TERM") {
        env.push(("TERM".to_owned(), std::env::var("TERM").unwrap_or_else(|_| "xterm".to_owned())));
    }
    let socket = tokio::select! {
        opened = open(&client, args, env) => opened?,
        signal = signals.ending() => return Ok(ExitCode::from(u8::try_from(128 + signal).unwrap_or(u8::MAX))),
    };
    let (outgoing, incoming) = socket.split();
    let raw = if args.interactive { RawTerminal::enter()? } else { None };
    let (sender, input) = mpsc::channel(4);
    // Held to the end without input: a terminal does not end because nobody types.
    let unused = if args.interactive {
        streams::feed(sender, AtEnd::TypeEof)?;
        None
    } else {
        Some(sender)
    };
    let ended = talk(&client, args, Ends { outgoing, incoming, input }, &mut signals).await;
    drop((raw, unused));
    let code = match ended? {
        Ended::Exit(exit) => {
            if !args.quiet {
                report::notices(&exit, args.timeout).iter().for_each(|line| output::notice(line));
            }
            report::exit_code(&exit)
        }
        Ended::TimedOut => {
            let limit = show_duration(args.timeout);
            output::notice(&format!("the time limit of {limit} was hit and the command was ended"));
            TIMEOUT_EXIT_CODE
        }
        Ended::Signal(signal) => u8::try_from(128 + signal).unwrap_or(u8::MAX),
        Ended::BrokenPipe => BROKEN_PIPE_EXIT_CODE,
    };
    Ok(ExitCode::from(code))
}

async fn open(client: &Client, args: &ExecArgs, env: Variables) -> Result<WebSocket, ClientError> {
    let started = super::start(client, args, env).await?;
    let id = super::command_id(client, &started)?;
    let path = text::path(&["v1", "sessions", &args.session, "terminal"]);
    client.websocket(&(path + &text::query(&[("command", &id)]))).await
}

struct Ends {
    outgoing: SplitSink<WebSocket, Frame>,
    incoming: SplitStream<WebSocket>,
    input: mpsc::Receiver<Bytes>,
}

enum Ended {
    Exit(Exit),
    /// The time that the caller gave is over; closing the connection ends the command.
    TimedOut,
    Signal(i32),
    BrokenPipe,
}

/// A text frame of the server.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum FromServer {
    Exit(Exit),
    Error {
        error: ServerError,
    },
    Gap {
        bytes: u64,
    },
    #[serde(other)]
    Unknown,
}

async fn talk(client: &Client, args: &ExecArgs, ends: Ends, signals: &mut Signals) -> anyhow::Result<Ended> {
    let Ends { mut outgoing, mut incoming, mut input } = ends;
    let deadline = async {
        match args.timeout {
            Duration::ZERO => std::future::pending().await,
            limit => tokio::time::sleep(limit).await,
        }
    };
    let mut deadline = std::pin::pin!(deadline);
    let mut showing = std::pin::pin!(show(client, &mut incoming));
    let ended = loop {
        let frame = tokio::select! {
            ended = &mut showing => return ended,
            Some(data) = input.recv() => Frame::Binary(data),
            asked = signals.next() => match asked {
                // In raw mode Ctrl-C is a key; this one came another way.
                Asked::Interrupt => control(&json!({"type": "signal", "signal": "INT"})),
                Asked::End(signal) => break Ended::Signal(signal),
                Asked::Resize if io::stdout().is_terminal() || io::stdin().is_terminal() => {
                    let size = size();
                    control(&json!({"type": "resize", "rows": size.rows, "cols": size.cols}))
                }
                Asked::Resize => continue,
            },
            () = &mut deadline => break Ended::TimedOut,
        };
        // What cannot be sent has its reason told by the other direction.
        let _ = outgoing.send(frame).await;
    };
    let _ = tokio::time::timeout(GOODBYE, outgoing.close()).await;
    Ok(ended)
}

fn control(frame: &Value) -> Frame {
    Frame::Text(frame.to_string().into())
}

/// Writes what the program writes, until it ends.
async fn show(client: &Client, incoming: &mut SplitStream<WebSocket>) -> anyhow::Result<Ended> {
    loop {
        match client.message(incoming).await {
            Some(Message::Binary(data)) => {
                let written =
                    tokio::task::spawn_blocking(move || streams::write(Stream::Stdout, &data)).await?;
                match written {
                    Ok(()) => {}
                    Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(Ended::BrokenPipe),
                    Err(error) => {
                        return Err(anyhow::Error::new(error).context("writing the command's output"));
                    }
                }
            }
            Some(Message::Text(text)) => {
                match serde_json::from_str(&text).map_err(|error| client.garbled(error.to_string()))? {
                    FromServer::Exit(exit) => return Ok(Ended::Exit(exit)),
                    FromServer::Error { error } => return Err(ClientError::from(error).into()),
                    FromServer::Gap { bytes } => {
                        tracing::warn!(bytes, "output was dropped because it was not read in time");
                    }
                    FromServer::Unknown => {}
                }
            }
            Some(Message::Close(reason)) => {
                return Err(client.lost(format!("it closed the terminal: {reason}")).into());
            }
            None => return Err(client.lost("the terminal's connection ended").into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_the_server_are_read() {
        let exit =
            r#"{"type":"exit","exit_code":5,"signal":null,"timed_out":false,"usage":{},"limits_hit":[]}"#;
        assert!(
            matches!(serde_json::from_str(exit).unwrap(), FromServer::Exit(exit) if exit.exit_code == Some(5))
        );
        let error = r#"{"type":"error","error":{"code":"command_not_found","message":"no"}}"#;
        assert!(matches!(serde_json::from_str(error).unwrap(), FromServer::Error { .. }));
        assert_eq!(
            serde_json::from_str::<FromServer>(r#"{"type":"new","x":1}"#).unwrap(),
            FromServer::Unknown
        );
        let gap = r#"{"type":"gap","bytes":9}"#;
        assert_eq!(serde_json::from_str::<FromServer>(gap).unwrap(), FromServer::Gap { bytes: 9 });
    }
}
