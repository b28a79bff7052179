//! `sandcrate attach`: lines to a process and from it.

use std::io;
use std::process::ExitCode;

use bytes::Bytes;
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use futures_util::stream::SplitStream;
use futures_util::{SinkExt, StreamExt};
use sandcrate_backend::Stream;
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::Message as Frame;

use super::address::Target;
use super::http::{Client, Message, WebSocket};
use super::text;
use crate::output::{self, BROKEN_PIPE_EXIT_CODE};
use crate::run::signals::Signals;
use crate::run::streams::{self, AtEnd};

/// The server closes a connection with a longer line.
const MAX_LINE_BYTES: usize = 16 << 20;

/// Talk to a process: lines of ours to it, its lines to us
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sandcrate start demo --id mcp -- npx some-mcp-server
  sandcrate attach demo mcp

Lines of standard output come to stdout; standard error is at `sandcrate logs`. Ctrl-C detaches and
exits with 130, the process goes on. The end of our own input does not end the process. Exits with
the process's code when it ends: 128+N for signal N, so 143 after `sandcrate stop`.")]
pub(crate) struct AttachArgs {
    /// Id of the session
    #[arg(value_name = "SESSION", value_parser = NonEmptyStringValueParser::new())]
    session: String,

    /// Id of the process
    #[arg(value_name = "PROCESS", default_value = "default", value_parser = NonEmptyStringValueParser::new())]
    process: String,

    /// Wait until whoever is attached now leaves, instead of failing
    #[arg(long)]
    wait: bool,

    #[command(flatten)]
    target: Target,
}

pub(super) async fn run(args: AttachArgs) -> anyhow::Result<ExitCode> {
    let mut signals = Signals::install()?;
    let client = Client::new(&args.target)?;
    let path = text::path(&["v1", "sessions", &args.session, "managed-process", &args.process, "ws"]);
    let path = if args.wait { path + "?wait=1" } else { path };
    let socket = tokio::select! {
        socket = client.websocket(&path) => socket?,
        signal = signals.ending() => return Ok(ExitCode::from(signal_code(signal))),
    };
    let (mut outgoing, mut incoming) = socket.split();
    let (sender, mut pieces) = mpsc::channel::<Bytes>(4);
    streams::feed(sender, AtEnd::Close)?;
    let sending = async {
        let mut lines = Lines::default();
        while let Some(piece) = pieces.recv().await {
            for line in lines.push(&piece)? {
                // Why it cannot be sent is told by the other direction.
                let _ = outgoing.send(Frame::Text(line.into())).await;
            }
        }
        if let Some(line) = lines.rest() {
            let _ = outgoing.send(Frame::Text(line.into())).await;
        }
        std::future::pending::<anyhow::Result<u8>>().await
    };
    let code = tokio::select! {
        code = receive(&client, &mut incoming) => code?,
        code = sending => code?,
        signal = signals.ending() => {
            output::notice(&format!("detached; process {} goes on", args.process));
            signal_code(signal)
        }
    };
    Ok(ExitCode::from(code))
}

fn signal_code(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}

async fn receive(client: &Client, incoming: &mut SplitStream<WebSocket>) -> anyhow::Result<u8> {
    loop {
        match client.message(incoming).await {
            Some(Message::Text(mut line)) => {
                line.push('\n');
                let write = move || streams::write(Stream::Stdout, line.as_bytes());
                match tokio::task::spawn_blocking(write).await? {
                    Ok(()) => {}
                    Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                        return Ok(BROKEN_PIPE_EXIT_CODE);
                    }
                    Err(error) => return Err(anyhow::Error::new(error).context("writing to stdout")),
                }
            }
            Some(Message::Binary(_)) => {}
            Some(Message::Close(reason)) => match exit_code(&reason) {
                Some(code) => return Ok(code),
                None => return Err(client.lost(format!("it closed the relay: {reason}")).into()),
            },
            None => return Err(client.lost("the relay's connection ended").into()),
        }
    }
}

/// The exit code that the server's goodbye stands for; `None` when it is no end of the process.
fn exit_code(reason: &str) -> Option<u8> {
    match reason.strip_prefix("exited with code ") {
        Some(code) => code.parse::<i32>().ok().and_then(|code| u8::try_from(code & 0xff).ok()),
        None if reason == "stopped" || reason == "session deleted" => {
            output::notice(&format!("the process is gone: {reason}"));
            Some(0)
        }
        None => None,
    }
}

/// Cuts our input into lines.
#[derive(Debug, Default)]
struct Lines {
    open: Vec<u8>,
}

impl Lines {
    fn push(&mut self, piece: &[u8]) -> anyhow::Result<Vec<String>> {
        self.open.extend_from_slice(piece);
        let mut lines = Vec::new();
        while let Some(end) = self.open.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.open.drain(..=end).collect();
            lines.push(String::from_utf8_lossy(&line[..end]).into_owned());
        }
        anyhow::ensure!(self.open.len() <= MAX_LINE_BYTES, "a line of standard input is longer than 16 MiB");
        Ok(lines)
    }

    /// What follows the last line end.
    fn rest(self) -> Option<String> {
        (!self.open.is_empty()).then(|| String::from_utf8_lossy(&self.open).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_whole_however_they_are_cut() {
        let mut lines = Lines::default();
        assert_eq!(lines.push(b"a\nb").unwrap(), ["a"]);
        assert_eq!(lines.push("ä".as_bytes()).unwrap(), [""; 0]);
        assert_eq!(lines.push(b"\n\nc").unwrap(), ["bä", ""]);
        assert_eq!(lines.rest().as_deref(), Some("c"));
        assert_eq!(Lines::default().rest(), None);
    }

    #[test]
    fn the_goodbye_says_how_it_ended() {
        assert_eq!(exit_code("exited with code 3"), Some(3));
        assert_eq!(exit_code("stopped"), Some(0));
        assert_eq!(exit_code("message is longer than 16 MiB"), None);
        assert_eq!(exit_code(""), None);
    }
}
