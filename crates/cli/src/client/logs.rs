//! `sandcrate logs`: what is kept of a process's or a command's output, and what follows.
//!
//! Read as events, because those alone keep both the order and the streams apart.

use std::collections::VecDeque;
use std::io;
use std::process::ExitCode;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use sandcrate_backend::Stream;
use serde_json::Value;

use super::address::Target;
use super::events::{Event, Follower};
use super::http::Client;
use super::problem::ClientError;
use super::stop::is_no_process;
use super::{answer, text};
use crate::args::OutputFormat;
use crate::output::{self, BROKEN_PIPE_EXIT_CODE};
use crate::run::streams;
use crate::units::show_size;

/// Kept output comes at once; what has not come after so long is yet to be written.
const SILENCE: Duration = Duration::from_millis(300);

/// Print what a process or command wrote
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sandcrate logs demo                     the process `default`
  sandcrate logs -f --tail 20 demo web    the last lines, and what follows
  sandcrate logs demo 7                   a command that `exec -d` started

What was written to standard error comes to stderr. The server keeps the latest output only; what is
gone is said on stderr.")]
pub(crate) struct LogsArgs {
    /// Go on with what follows, until it ends
    #[arg(short, long)]
    follow: bool,

    /// Only the last lines of what is kept
    #[arg(short = 'n', long, value_name = "NUMBER")]
    tail: Option<usize>,

    /// Id of the session
    #[arg(value_name = "SESSION", value_parser = NonEmptyStringValueParser::new())]
    session: String,

    /// Id of a process or command
    #[arg(value_name = "PROCESS", default_value = "default", value_parser = NonEmptyStringValueParser::new())]
    process: String,

    /// The streams, or the server's document (of a process)
    #[arg(short, long, value_name = "FORMAT", default_value = "raw")]
    #[arg(conflicts_with = "follow")]
    pub(super) output: OutputFormat,

    #[command(flatten)]
    target: Target,
}

pub(super) async fn run(args: LogsArgs) -> anyhow::Result<ExitCode> {
    let client = Client::new(&args.target)?;
    let path =
        |kind: &str, rest: &str| text::path(&["v1", "sessions", &args.session, kind, &args.process, rest]);
    let logs = path("processes", "logs");
    if args.output == OutputFormat::Json {
        let tail = args.tail.map(|lines| format!("?tail={lines}")).unwrap_or_default();
        let document: Value = client.get(&(logs + &tail)).await?;
        return Ok(answer(args.output, &document, ""));
    }
    let (kept, events) = match client.get::<Value>(&format!("{logs}?tail=0")).await {
        Ok(document) => (Kept::of(&document), logs),
        Err(error) if is_no_process(&error) => {
            let command = text::path(&["v1", "sessions", &args.session, "commands", &args.process]);
            match client.get::<Value>(&command).await {
                Ok(document) if document["running"] == true => (Kept::Unknown, command + "/events"),
                Ok(_) => (Kept::All, command + "/events"),
                Err(ClientError::Server(_)) => return Err(error.into()),
                Err(error) => return Err(error.into()),
            }
        }
        Err(error) => return Err(error.into()),
    };
    let mut printer = Printer { tail: args.tail.map(Tail::new) };
    let printed = print(&mut Follower::new(&client, events), kept, args.follow, &mut printer).await;
    match printed {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) if is_broken_pipe(&error) => Ok(ExitCode::from(BROKEN_PIPE_EXIT_CODE)),
        Err(error) => Err(error),
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// How much output there is before what is yet to come.
#[derive(Debug, PartialEq, Eq)]
enum Kept {
    /// It ended.
    All,
    UpTo(u64),
    /// Whatever comes at once.
    Unknown,
}

impl Kept {
    fn of(document: &Value) -> Self {
        if !document["exit"].is_null() {
            return Self::All;
        }
        document["cursor"].as_str().and_then(|cursor| cursor.parse().ok()).map_or(Self::Unknown, Self::UpTo)
    }
}

async fn print(
    follower: &mut Follower<'_>,
    kept: Kept,
    follow: bool,
    printer: &mut Printer,
) -> anyhow::Result<()> {
    loop {
        let behind = matches!(kept, Kept::UpTo(end) if follower.position() >= end);
        if behind && printer.tail.is_some() {
            printer.end_tail().await?;
        }
        if behind && !follow {
            return Ok(());
        }
        // A silent log is at its end; a character that is cut in two may keep the last id from coming.
        let waits = kept == Kept::All || (follow && printer.tail.is_none());
        let event = if waits {
            follower.next().await?
        } else {
            match tokio::time::timeout(SILENCE, follower.next()).await {
                Ok(event) => event?,
                Err(_) => {
                    printer.end_tail().await?;
                    if follow {
                        continue;
                    }
                    return Ok(());
                }
            }
        };
        match event {
            Some(Event::Output(stream, data)) => printer.take(stream, data).await?,
            Some(Event::Gap(bytes)) => {
                output::notice(&format!("{} of older output are no longer kept", show_size(bytes)));
            }
            Some(Event::Exit(_)) | None => return printer.end_tail().await,
            Some(Event::Failed(error)) => {
                printer.end_tail().await?;
                return Err(ClientError::from(error).into());
            }
        }
    }
}

#[derive(Debug)]
struct Printer {
    /// Set while the kept output is read, when only its end is wanted.
    tail: Option<Tail>,
}

impl Printer {
    async fn take(&mut self, stream: Stream, data: Bytes) -> anyhow::Result<()> {
        match &mut self.tail {
            Some(tail) => tail.push(stream, data),
            None => write(stream, data).await?,
        }
        Ok(())
    }

    async fn end_tail(&mut self) -> anyhow::Result<()> {
        for (stream, data) in self.tail.take().map(Tail::lines).unwrap_or_default() {
            write(stream, data).await?;
        }
        Ok(())
    }
}

async fn write(stream: Stream, data: Bytes) -> anyhow::Result<()> {
    Ok(tokio::task::spawn_blocking(move || streams::write(stream, &data)).await??)
}

/// The last lines of output in the order of their arrival; bounded by what the server keeps.
#[derive(Debug)]
struct Tail {
    wanted: usize,
    pieces: VecDeque<(Stream, Bytes)>,
}

impl Tail {
    fn new(wanted: usize) -> Self {
        Self { wanted, pieces: VecDeque::new() }
    }

    fn push(&mut self, stream: Stream, data: Bytes) {
        self.pieces.push_back((stream, data));
    }

    fn lines(self) -> Vec<(Stream, Bytes)> {
        let mut kept = VecDeque::new();
        // A line that has no end yet counts as one.
        let open = self.pieces.back().is_some_and(|(_, data)| data.last() != Some(&b'\n'));
        let mut ends = self.wanted + usize::from(!open);
        if self.wanted == 0 {
            return Vec::new();
        }
        for (stream, data) in self.pieces.into_iter().rev() {
            let cut = data.iter().enumerate().rev().find_map(|(at, byte)| {
                if *byte == b'\n' {
                    ends -= 1;
                }
                (ends == 0).then_some(at + 1)
            });
            match cut {
                Some(cut) => {
                    kept.push_front((stream, data.slice(cut..)));
                    break;
                }
                None => kept.push_front((stream, data)),
            }
        }
        kept.into_iter().filter(|(_, data)| !data.is_empty()).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tail(wanted: usize, pieces: &[&'static str]) -> String {
        let mut tail = Tail::new(wanted);
        for (index, piece) in pieces.iter().enumerate() {
            let stream = if index % 2 == 0 { Stream::Stdout } else { Stream::Stderr };
            tail.push(stream, Bytes::from_static(piece.as_bytes()));
        }
        tail.lines().iter().map(|(_, data)| String::from_utf8_lossy(data).into_owned()).collect()
    }

    #[test]
    fn the_last_lines_over_both_streams() {
        let pieces = ["a\nb\n", "c\n", "d\ne"];
        for (wanted, expected) in
            [(0, ""), (1, "e"), (2, "d\ne"), (3, "c\nd\ne"), (4, "b\nc\nd\ne"), (9, "a\nb\nc\nd\ne")]
        {
            assert_eq!(tail(wanted, &pieces), expected, "{wanted}");
        }
        assert_eq!(tail(1, &["a\n", "b\n"]), "b\n");
        assert_eq!(tail(3, &[]), "");
    }

    #[test]
    fn what_is_kept_is_known_from_the_document() {
        assert_eq!(Kept::of(&json!({"exit": {"exit_code": 0}, "cursor": "9"})), Kept::All);
        assert_eq!(Kept::of(&json!({"exit": null, "cursor": "9"})), Kept::UpTo(9));
        assert_eq!(Kept::of(&json!({"exit": null})), Kept::Unknown);
    }
}
