//! `sandcrate exec`: a command in a session of a server, live or collected.
//!
//! The command is started by one request and followed by another, so that a dropped connection costs nothing:
//! it goes on, and following it resumes. With `-t` it belongs to a WebSocket, as a terminal does to its window.

mod live;
mod report;
mod terminal;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use serde_json::{Map, Value, json};

use super::address::Target;
use super::http::Client;
use super::problem::ClientError;
use super::session::{is_missing, whole_seconds};
use super::{answer, text};
use crate::args::OutputFormat;
use crate::failure::Failure;
use crate::run::environment;
use crate::run::terminal::size;
use crate::units::parse_duration;

const AFTER_HELP: &str = "\
Examples:
  sandcrate exec demo -- python3 -c 'print(2**64)'
  sandcrate exec -it demo -- bash                   a shell on a terminal
  echo hello | sandcrate exec -i demo -- cat        standard input
  sandcrate exec -d demo -- ./long-job              prints the command's id and leaves
  sandcrate exec -o json demo -- ./solve | jq .usage

A session that is not there is made, with the server's defaults (see --no-create). The command goes
on when the connection drops, and is followed again; Ctrl-C kills it, or goes to the program with -t.
What a -d command writes is at `sandcrate logs SESSION COMMAND-ID`.

Exit codes: the command's own; 128+N when signal N ended it; 124 timeout; 125 sandcrate or the
server failed or refused; 126 not executable; 127 not found; 130 Ctrl-C; 141 the reader of stdout
went away. With -o json, `exit_code` is the same number.";

/// Run a command in a session of a server, and exit with its code
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP, override_usage = "sandcrate exec [OPTIONS] SESSION -- COMMAND [ARG]...")]
pub(crate) struct ExecArgs {
    /// Pass standard input on; otherwise the command reads end of file
    #[arg(short, long)]
    interactive: bool,

    /// Give the command a terminal; stdout carries stderr too
    #[arg(short, long)]
    tty: bool,

    /// Start the command, print its id and leave
    #[arg(short, long, conflicts_with_all = ["interactive", "tty"])]
    detach: bool,

    /// Set a variable; a bare KEY passes the caller's value on
    #[arg(short, long, value_name = "KEY[=VALUE]", value_parser = clap::value_parser!(OsString))]
    env: Vec<OsString>,

    /// Directory of the box to start in [default: the session's]
    #[arg(short, long, value_name = "DIR")]
    workdir: Option<String>,

    /// Wall time after which the command is killed, in whole seconds; 0 for none
    #[arg(long, value_name = "DURATION", default_value = "0", value_parser = parse_duration)]
    #[arg(hide_default_value = true)]
    timeout: Duration,

    /// Fail when there is no session of that name, instead of making one
    #[arg(long)]
    no_create: bool,

    /// Result as live streams, or as one document
    #[arg(short, long, value_name = "FORMAT", default_value = "raw")]
    pub(super) output: OutputFormat,

    /// Say nothing on stderr but errors
    #[arg(short, long)]
    quiet: bool,

    #[command(flatten)]
    target: Target,

    /// Id of the session
    #[arg(value_name = "SESSION", value_parser = NonEmptyStringValueParser::new())]
    session: String,

    /// The program and its arguments
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true)]
    command: Vec<String>,
}

pub(super) async fn run(args: ExecArgs) -> anyhow::Result<ExitCode> {
    if args.tty && args.output == OutputFormat::Json {
        return Err(Failure::invalid("--tty cannot be combined with --output json")
            .hint("a terminal is live; leave out -t to have the streams in the document")
            .into());
    }
    let env = environment::variables(&args.env, &[], |key| std::env::var_os(key))?;
    let client = Client::new(&args.target)?;
    if args.tty {
        return terminal::run(client, &args, env).await;
    }
    if args.detach {
        let started: Value = start(&client, &args, env).await?;
        let id = command_id(&client, &started)?;
        return Ok(answer(args.output, &started, &format!("{id}\n")));
    }
    live::run(client, &args, env).await
}

type Variables = Vec<(String, String)>;

/// Starts the command, in a session that is made for it where that is allowed.
async fn start(client: &Client, args: &ExecArgs, env: Variables) -> Result<Value, ClientError> {
    let path = text::path(&["v1", "sessions", &args.session, "commands"]);
    let mut body = body(args, env);
    if args.tty {
        let size = size();
        body["pty"] = json!({"rows": size.rows, "cols": size.cols});
    }
    match client.post(&path, &body).await {
        Err(error) if is_missing(&error) && !args.no_create => {
            create(client, &args.session).await?;
            client.post(&path, &body).await
        }
        started => started,
    }
}

/// Makes a session with the server's defaults.
async fn create(client: &Client, session: &str) -> Result<(), ClientError> {
    client.post::<Value>("/v1/sessions", &json!({"session_id": session})).await.map(drop)
}

fn body(args: &ExecArgs, env: Variables) -> Value {
    let env: Map<_, _> = env.into_iter().map(|(key, value)| (key, Value::String(value))).collect();
    let mut body = json!({"argv": args.command, "env": env, "keep_stdin_open": args.interactive});
    if let Some(dir) = &args.workdir {
        body["workdir"] = json!(dir);
    }
    if !args.timeout.is_zero() {
        body["timeout_sec"] = json!(whole_seconds(args.timeout));
    }
    body
}

fn command_id(client: &Client, started: &Value) -> Result<String, ClientError> {
    let id = started["command_id"].as_str();
    id.map(str::to_owned).ok_or_else(|| client.garbled("a command without an id"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Parsed {
        #[command(flatten)]
        args: ExecArgs,
    }

    fn parse(argv: &[&str]) -> Result<ExecArgs, clap::Error> {
        Parsed::try_parse_from(["exec"].iter().chain(argv)).map(|parsed| parsed.args)
    }

    #[test]
    fn the_body_is_what_was_typed() {
        let args =
            parse(&["-i", "-w", "/tmp", "--timeout", "1500ms", "s", "--", "ls", "-o", "json"]).unwrap();
        assert_eq!(
            body(&args, vec![("A".to_owned(), "1".to_owned())]),
            json!({"argv": ["ls", "-o", "json"], "env": {"A": "1"}, "keep_stdin_open": true, "workdir": "/tmp",
                "timeout_sec": 2})
        );
        assert_eq!((args.session.as_str(), args.output), ("s", OutputFormat::Raw));
        let args = parse(&["s", "true"]).unwrap();
        assert_eq!(body(&args, Vec::new()), json!({"argv": ["true"], "env": {}, "keep_stdin_open": false}));
    }

    #[test]
    fn what_does_not_fit_together_is_refused() {
        for argv in [
            &["s"][..],
            &[],
            &["-d", "-t", "s", "x"],
            &["-d", "-i", "s", "x"],
            &["", "x"],
            &["--frob", "s", "x"],
        ] {
            assert!(parse(argv).is_err(), "{argv:?}");
        }
    }
}
