//! The calls: arguments to the server, results for people.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use serde_json::{Map, Value, json};

use super::Scope;
use crate::args::OutputFormat;
use crate::client::http::Client;
use crate::client::text;
use crate::output;
use crate::run::environment;
use crate::units::parse_duration;

#[derive(Debug, Args)]
pub(super) struct ExecArgs {
    /// What the shell of the box runs
    #[arg(value_name = "COMMAND")]
    command: String,
    /// Where it starts
    #[arg(short, long, value_name = "DIR")]
    workdir: Option<String>,
    /// Its time, such as 30s or 5m; the profile has the last word
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    timeout: Option<Duration>,
    /// A variable of its environment, ours when it has no value; may be repeated
    #[arg(short, long, value_name = "KEY[=VALUE]", value_parser = clap::value_parser!(OsString))]
    env: Vec<OsString>,
    #[command(flatten)]
    pub(super) scope: Scope,
}

#[derive(Debug, Args)]
pub(super) struct ReadArgs {
    /// Path in the box, below /workspace
    path: String,
    #[command(flatten)]
    pub(super) scope: Scope,
}

#[derive(Debug, Args)]
pub(super) struct WriteArgs {
    /// Path in the box, below /workspace
    path: String,
    /// What it is to hold; without it our standard input
    content: Option<String>,
    #[command(flatten)]
    pub(super) scope: Scope,
}

#[derive(Debug, Args)]
pub(super) struct EditArgs {
    /// Path in the box, below /workspace
    path: String,
    /// The text to replace; it must occur exactly once
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    old: String,
    /// What comes in its place
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    new: String,
    #[command(flatten)]
    pub(super) scope: Scope,
}

#[derive(Debug, Args)]
pub(super) struct GlobArgs {
    /// Names to find, such as '**/*.py'
    pattern: String,
    /// Where to look
    #[arg(long, value_name = "DIR")]
    path: Option<String>,
    #[command(flatten)]
    pub(super) scope: Scope,
}

#[derive(Debug, Args)]
pub(super) struct GrepArgs {
    /// The regular expression
    #[arg(allow_hyphen_values = true)]
    pattern: String,
    /// A directory to look in, or one file
    #[arg(long, value_name = "PATH")]
    path: Option<String>,
    /// Look into files of such names only, such as '*.py'
    #[arg(long, value_name = "PATTERN")]
    include: Option<String>,
    #[command(flatten)]
    pub(super) scope: Scope,
}

pub(super) async fn exec(args: ExecArgs) -> anyhow::Result<ExitCode> {
    let mut arguments = fields([("command", Some(&args.command)), ("workdir", args.workdir.as_ref())]);
    if let Some(timeout) = args.timeout {
        arguments.insert("timeout_sec".to_owned(), json!(timeout.as_secs().max(1)));
    }
    let env = environment::variables(&args.env, &[], |key| std::env::var_os(key))?;
    if !env.is_empty() {
        let env: Map<_, _> = env.into_iter().map(|(key, value)| (key, json!(value))).collect();
        arguments.insert("env".to_owned(), Value::Object(env));
    }
    let result = call(&args.scope, "exec", arguments).await?;
    let stream = |name: &str| match result[name].as_str().unwrap_or_default() {
        "" => String::new(),
        text => format!("{text}\n"),
    };
    let printed = match args.scope.output {
        OutputFormat::Json => output::print(&format!("{result:#}\n")),
        OutputFormat::Raw => {
            // Nobody is left to tell when stderr itself is gone.
            let _ = std::io::stderr().lock().write_all(stream("stderr").as_bytes());
            output::print(&stream("stdout"))
        }
    };
    match result["exit_code"].as_i64() {
        Some(0) => Ok(printed),
        Some(code) => Ok(ExitCode::from(u8::try_from(code).unwrap_or(1))),
        // As `timeout` has it.
        None => Ok(ExitCode::from(124)),
    }
}

pub(super) async fn read(args: ReadArgs) -> anyhow::Result<ExitCode> {
    let result = call(&args.scope, "read", fields([("path", Some(&args.path))])).await?;
    let mut content = result["content"].as_str().unwrap_or_default().to_owned();
    if result["is_directory"].as_bool() == Some(true) && !content.is_empty() {
        content.push('\n');
    }
    Ok(shown(&args.scope, &result, &content))
}

pub(super) async fn write(args: WriteArgs) -> anyhow::Result<ExitCode> {
    let content = match args.content {
        Some(content) => content,
        None => {
            let mut bytes = Vec::new();
            std::io::stdin().read_to_end(&mut bytes).context("reading standard input")?;
            String::from_utf8(bytes).context("the tool writes text: for other files use `sandcrate cp`")?
        }
    };
    let arguments = fields([("path", Some(&args.path)), ("content", Some(&content))]);
    let result = call(&args.scope, "write", arguments).await?;
    Ok(shown(&args.scope, &result, ""))
}

pub(super) async fn edit(args: EditArgs) -> anyhow::Result<ExitCode> {
    let arguments = fields([
        ("path", Some(&args.path)),
        ("old_string", Some(&args.old)),
        ("new_string", Some(&args.new)),
    ]);
    let result = call(&args.scope, "edit", arguments).await?;
    Ok(shown(&args.scope, &result, ""))
}

pub(super) async fn glob(args: GlobArgs) -> anyhow::Result<ExitCode> {
    let arguments = fields([("pattern", Some(&args.pattern)), ("path", args.path.as_ref())]);
    let result = call(&args.scope, "glob", arguments).await?;
    let mut lines = String::new();
    for path in result["matches"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        lines.push_str(path);
        lines.push('\n');
    }
    note_truncation(&result);
    Ok(shown(&args.scope, &result, &lines))
}

pub(super) async fn grep(args: GrepArgs) -> anyhow::Result<ExitCode> {
    let arguments = fields([
        ("pattern", Some(&args.pattern)),
        ("path", args.path.as_ref()),
        ("include", args.include.as_ref()),
    ]);
    let result = call(&args.scope, "grep", arguments).await?;
    let mut lines = String::new();
    for found in result["matches"].as_array().into_iter().flatten() {
        let text = |name: &str| found[name].as_str().unwrap_or_default().to_owned();
        lines.push_str(&format!("{}:{}:{}\n", text("file"), found["line"], text("content")));
    }
    note_truncation(&result);
    Ok(shown(&args.scope, &result, &lines))
}

fn note_truncation(result: &Value) {
    if result["truncated"].as_bool() == Some(true) {
        output::notice("there are more; narrow the search");
    }
}

fn fields<const N: usize>(named: [(&str, Option<&String>); N]) -> Map<String, Value> {
    named.into_iter().filter_map(|(name, value)| Some((name.to_owned(), json!(value?)))).collect()
}

async fn call(scope: &Scope, tool: &str, arguments: Map<String, Value>) -> anyhow::Result<Value> {
    let client = Client::new(&scope.target)?;
    Ok(client.post(&text::path(&["v1", "tools", tool]), &scope.call(arguments)).await?)
}

/// What a model would have been told as `ok: false` is an error here.
fn shown(scope: &Scope, result: &Value, text: &str) -> ExitCode {
    let ok = result["ok"].as_bool() == Some(true);
    let code = match scope.output {
        OutputFormat::Json => output::print(&format!("{result:#}\n")),
        OutputFormat::Raw if ok => output::print(text),
        OutputFormat::Raw => {
            let error = result["error"].as_str().unwrap_or("the tool gave no reason");
            output::notice(&format!("error: {error}"));
            ExitCode::FAILURE
        }
    };
    if ok { code } else { ExitCode::FAILURE }
}
