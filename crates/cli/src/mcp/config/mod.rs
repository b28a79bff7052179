//! `sandcrate mcp config`: the entry that makes an MCP client start `sandcrate mcp serve`, printed or written.

mod clients;
mod edit;
mod file;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use serde_json::{Map, Value, json};

use clients::McpClient;

use super::McpVerb;
use crate::args::{self, OutputFormat, Verb};
use crate::failure::{self, Failure};
use crate::output;
use crate::run::volume;

const AFTER_HELP: &str = "\
Examples:
  sandcrate mcp config claude-code                          print what to paste
  sandcrate mcp config cursor --write                       write it into Cursor's own file
  sandcrate mcp config vscode --write -- -v .:/workspace    with flags of `sandcrate mcp serve`
  sandcrate mcp config claude-code --write --file .mcp.json for everybody who works on this project

What is after `--` is passed on to `sandcrate mcp serve`, which must take it. A relative SRC of -v
becomes absolute; with --file it stays, and starts where the client starts the server. --write keeps
everything else in the file as it is, and the file as it was beside it, as FILE.bak-N. A file that is
no JSON is left alone.";

/// Print, or write, the entry that makes a client use a box
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct ConfigArgs {
    /// The client
    #[arg(value_name = "CLIENT")]
    client: McpClient,

    /// Write it into the client's configuration instead of printing it
    #[arg(long)]
    write: bool,

    /// That file, instead of the client's usual one
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,

    /// Name of the entry
    #[arg(long, value_name = "NAME", default_value = "sandcrate")]
    name: String,

    /// Flags of `sandcrate mcp serve`
    #[arg(value_name = "FLAG", last = true)]
    flags: Vec<String>,
}

pub(super) fn main(args: &ConfigArgs) -> ExitCode {
    run(args).unwrap_or_else(|error| failure::report(&error, OutputFormat::Raw))
}

fn run(args: &ConfigArgs) -> anyhow::Result<ExitCode> {
    let name = args.name.trim();
    if name.is_empty() || name.chars().any(char::is_control) {
        let problem = format!(
            "--name `{}`: must have a character, and no control characters",
            args.name.escape_debug()
        );
        return Err(Failure::invalid(problem).into());
    }
    let program = std::env::current_exe().context("finding our own program")?;
    let flags = match checked(args)? {
        Ok(flags) => flags,
        Err(code) => return Ok(code),
    };
    let entry = entry(args.client, &program, &flags)?;
    let key = args.client.key();
    if !args.write {
        let document = json!({ key: { name: entry } });
        if let Some(place) = place(args) {
            output::notice(&format!("this belongs into {}; --write puts it there", place.display()));
        }
        return Ok(output::print(&format!("{document:#}\n")));
    }
    let place = place(args).ok_or_else(|| {
        Failure::invalid("the home directory is not known: set HOME").hint("or name the file with --file")
    })?;
    match file::write(&place, |text| edit::with_entry(text, key, name, &entry))? {
        file::Written::Unchanged => output::notice(&format!("{} has it already", place.display())),
        file::Written::Made => output::notice(&format!("made {}", place.display())),
        file::Written::Changed { backup } => {
            output::notice(&format!("changed {}; as it was: {}", place.display(), backup.display()));
        }
    }
    output::notice(args.client.afterwards());
    Ok(ExitCode::SUCCESS)
}

/// The flags, when `sandcrate mcp serve` takes them. Its parser has told the person what it does not.
fn checked(args: &ConfigArgs) -> anyhow::Result<Result<Vec<String>, ExitCode>> {
    let serve = ["sandcrate", "mcp", "serve"].into_iter().chain(args.flags.iter().map(String::as_str));
    let cli = match args::parse_from(&serve.map(OsString::from).collect::<Vec<_>>()) {
        Ok(cli) => cli,
        Err(code) => return Ok(Err(code)),
    };
    let Verb::Mcp(McpVerb::Serve(serve)) = cli.command else {
        return Err(Failure::invalid("these are no flags of `sandcrate mcp serve`").into());
    };
    let cwd = std::env::current_dir().context("finding the current directory")?;
    super::serve::check(&serve, &cwd)?;
    // A client starts servers wherever it likes. A file that people share names no directory of one of them.
    if args.file.is_some() {
        return Ok(Ok(args.flags.clone()));
    }
    let mut is_volume = false;
    let mut flags = Vec::new();
    for flag in &args.flags {
        let joined =
            ["--volume=", "-v=", "-v"].iter().find(|name| flag.len() > name.len() && flag.starts_with(*name));
        flags.push(match joined {
            _ if is_volume => volume::absolute(flag, &cwd)?,
            Some(name) => format!("{name}{}", volume::absolute(&flag[name.len()..], &cwd)?),
            None => flag.clone(),
        });
        is_volume = matches!(flag.as_str(), "-v" | "--volume");
    }
    Ok(Ok(flags))
}

fn place(args: &ConfigArgs) -> Option<PathBuf> {
    args.file.clone().or_else(|| args.client.file(&clients::Home::of_this_process()))
}

fn entry(client: McpClient, program: &Path, flags: &[String]) -> anyhow::Result<Value> {
    let program = program.to_str().ok_or_else(|| {
        let problem = format!("our own path {} is not UTF-8, which JSON needs", program.display());
        Failure::invalid(problem).hint("install sandcrate somewhere else")
    })?;
    let mut entry = Map::new();
    if client.wants_type() {
        entry.insert("type".to_owned(), json!("stdio"));
    }
    entry.insert("command".to_owned(), json!(program));
    let args: Vec<&str> = ["mcp", "serve"].into_iter().chain(flags.iter().map(String::as_str)).collect();
    entry.insert("args".to_owned(), json!(args));
    Ok(Value::Object(entry))
}
