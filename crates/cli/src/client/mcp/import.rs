//! `sandcrate mcp import`: the servers of Claude Desktop, Cursor or VS Code, in boxes.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use sandcrate_mcp::config::{Imported, NotImported, Rewritten, Values, import, rewrite};
use serde_json::{Value, json};

use super::super::address::Target;
use super::super::answer;
use super::super::http::Client;
use super::super::problem::ClientError;
use crate::args::OutputFormat;
use crate::failure::Failure;
use crate::output;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sandcrate mcp import ~/.config/Claude/claude_desktop_config.json
  sandcrate mcp import .vscode/mcp.json --input api-key=\"$KEY\"
  sandcrate mcp import --rewrite ~/.cursor/mcp.json      no server needed: each entry is prefixed by
                                                         `sandcrate mcp run`; the old file stays as .bak

The file is taken as it is: `mcpServers` or `servers`, comments, ${env:NAME} and ${input:ID}. Servers on
the network are named and left out. Exit codes: 0 when all stdio servers were taken, else 125; a server
that --only names must be taken.")]
pub(crate) struct ImportArgs {
    /// File of another program; `-` is standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Write the file back with every stdio server prefixed by `sandcrate mcp run`; `-` goes to stdout
    #[arg(long, conflicts_with_all = ["replace", "only"])]
    rewrite: bool,
    /// Also servers that are there already
    #[arg(long)]
    replace: bool,
    /// Only these servers of the file
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Value of an input that the file asks for
    #[arg(long = "input", value_name = "ID=VALUE", value_parser = pair)]
    inputs: Vec<(String, String)>,
    /// For people, or one document
    #[arg(short, long, value_name = "FORMAT", default_value = "raw")]
    pub(super) output: OutputFormat,
    #[command(flatten)]
    target: Target,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (id, value) = text.split_once('=').ok_or("write ID=VALUE")?;
    Ok((id.to_owned(), value.to_owned()))
}

/// Our own environment, and what was given by flag.
struct Given<'a>(&'a [(String, String)]);

impl Values for Given<'_> {
    fn variable(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }

    fn input(&self, id: &str) -> Option<String> {
        self.0.iter().find(|(known, _)| known == id).map(|(_, value)| value.clone())
    }
}

pub(super) async fn run(args: ImportArgs) -> anyhow::Result<ExitCode> {
    let text = read(&args.file)?;
    let unusable = |error| {
        Failure::invalid(format!("{}: {error}", args.file.display()))
            .hint("FILE is what Claude Desktop, Cursor or VS Code keep their MCP servers in")
    };
    if args.rewrite {
        let home = std::env::var_os("HOME").map(PathBuf::from);
        return write_back(&args, &rewrite(&text, home.as_deref()).map_err(unusable)?);
    }
    let mut found = import(&text, &Given(&args.inputs)).map_err(unusable)?;
    if !args.only.is_empty() {
        let wanted = |name: &String| args.only.contains(name);
        if let Some(unknown) = args.only.iter().find(|name| {
            !found.servers.iter().any(|server| server.original == **name)
                && !found.refused.iter().chain(&found.remote).any(|left_out| left_out.name == **name)
        }) {
            return Err(Failure::invalid(format!("--only {unknown}: the file has no such server")).into());
        }
        found.servers.retain(|server| wanted(&server.original));
        // Whoever names a server wants that one, wherever it is.
        found.refused.append(&mut found.remote);
        found.refused.retain(|refused| wanted(&refused.name));
    }
    let client = Client::new(&args.target)?;
    let (mut added, mut refused) = (Vec::new(), found.refused);
    for server in found.servers {
        match add(&client, &server, args.replace).await {
            Ok(()) => added.push(server),
            Err(ClientError::Server(error)) => {
                refused.push(NotImported { name: server.original, reason: error.to_string() });
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(report(&args, &added, &refused, &found.remote))
}

fn read(file: &Path) -> anyhow::Result<String> {
    if file.as_os_str() == "-" {
        let mut text = String::new();
        std::io::stdin().lock().read_to_string(&mut text).context("reading standard input")?;
        return Ok(text);
    }
    std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))
}

async fn add(client: &Client, server: &Imported, replace: bool) -> Result<(), ClientError> {
    let mut body = json!(server.registration);
    body["name"] = json!(server.name);
    let path = if replace { "/v1/mcp/servers?replace=1" } else { "/v1/mcp/servers" };
    client.post::<Value>(path, &body).await.map(drop)
}

fn report(
    args: &ImportArgs,
    added: &[Imported],
    refused: &[NotImported],
    remote: &[NotImported],
) -> ExitCode {
    let raw = args.output == OutputFormat::Raw;
    let mut text = String::new();
    for server in added {
        text.push_str(&server.name);
        text.push('\n');
        if raw && server.name != server.original {
            output::notice(&format!("note: {} is called {} here", server.original, server.name));
        }
        for note in server.notes.iter().filter(|_| raw) {
            output::notice(&format!("note: {}: {note}", server.original));
        }
    }
    for left_out in refused.iter().chain(remote).filter(|_| raw) {
        output::notice(&format!("not imported: {left_out}"));
    }
    let reasons = |list: &[NotImported]| -> Vec<Value> {
        list.iter().map(|one| json!({"name": one.name, "reason": one.reason})).collect()
    };
    let document = json!({
        "imported": added.iter().map(|server| json!({"name": server.name, "original": server.original,
            "notes": server.notes})).collect::<Vec<_>>(),
        "refused": reasons(refused),
        "remote": reasons(remote),
    });
    let written = answer(args.output, &document, &text);
    if refused.is_empty() { written } else { ExitCode::from(crate::failure::OUR_EXIT_CODE) }
}

fn write_back(args: &ImportArgs, rewritten: &Rewritten) -> anyhow::Result<ExitCode> {
    let Rewritten { text, count, left, warnings } = rewritten;
    for left in left {
        output::notice(&format!("left as it is: {left}"));
    }
    for warning in warnings {
        output::notice(&format!("warning: {warning}"));
    }
    if !warnings.is_empty() {
        output::notice("hint: flags of `sandcrate mcp run` go in front of `--` in the entry's `args`");
    }
    if args.file.as_os_str() == "-" {
        return Ok(output::print(text));
    }
    if *count > 0 {
        let mut backup = args.file.clone().into_os_string();
        backup.push(".bak");
        std::fs::copy(&args.file, &backup).with_context(|| format!("keeping {}", backup.display()))?;
        replace(&args.file, text).with_context(|| format!("writing {}", args.file.display()))?;
    }
    let document = json!({"file": args.file, "rewritten": count, "warnings": warnings});
    Ok(answer(
        args.output,
        &document,
        &format!("{count} servers of {} run in boxes now\n", args.file.display()),
    ))
}

/// A reader sees the earlier file or the whole new one, with the earlier one's rights: it may hold secrets.
fn replace(file: &Path, text: &str) -> std::io::Result<()> {
    let file = file.canonicalize()?;
    let dir = file.parent().unwrap_or(Path::new("/"));
    let mut new = tempfile::NamedTempFile::new_in(dir)?;
    new.write_all(text.as_bytes())?;
    new.as_file().set_permissions(std::fs::metadata(&file)?.permissions())?;
    new.as_file().sync_all()?;
    new.persist(&file)?;
    Ok(())
}
