//! `sandcrate skill edit`: single texts by flags, or the whole SKILL.md in an editor.

use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::Context;
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use hyper::Method;
use hyper::header::{ACCEPT, ETAG, IF_MATCH};
use serde_json::{Map, Value, json};

use crate::args::OutputFormat;
use crate::client::address::Target;
use crate::client::http::{Client, Payload};
use crate::client::{answer, text};
use crate::failure::Failure;

/// Change what a skill says
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sandcrate skill edit pdf                         its SKILL.md, in $VISUAL or $EDITOR
  sandcrate skill edit pdf --description 'Reads PDF files'
  sandcrate skill edit pdf --instructions - < body.md

Other keys of the front matter are kept. What somebody else changed meanwhile is not overwritten.")]
pub(crate) struct EditArgs {
    /// Name of the skill
    #[arg(value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    name: String,

    /// Its title; empty removes it
    #[arg(long, value_name = "TEXT")]
    display_name: Option<String>,

    /// What it is for; empty removes it
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,

    /// A file with the body of its SKILL.md; - is standard input
    #[arg(long, value_name = "FILE")]
    instructions: Option<PathBuf>,

    /// The name, or the server's document
    #[arg(short, long, value_name = "FORMAT", default_value = "raw")]
    pub(super) output: OutputFormat,

    #[command(flatten)]
    target: Target,
}

pub(super) async fn run(args: EditArgs) -> anyhow::Result<ExitCode> {
    let client = Client::new(&args.target)?;
    let mut change = Map::new();
    for (key, value) in [("display_name", &args.display_name), ("description", &args.description)] {
        if let Some(value) = value {
            change.insert(key.to_owned(), json!(value));
        }
    }
    if let Some(path) = &args.instructions {
        change.insert("instructions".to_owned(), json!(body(path)?));
    }
    let at = text::path(&["v1", "skills", &args.name]);
    let document: Value = if change.is_empty() {
        in_editor(&client, &args.name).await?;
        client.get(&at).await?
    } else {
        let change = Value::Object(change).to_string();
        client.ask(Method::PATCH, &at, Payload::Whole(Some(change.into()))).await?
    };
    Ok(answer(args.output, &document, &format!("{}\n", args.name)))
}

fn body(path: &std::path::Path) -> anyhow::Result<String> {
    if path == std::path::Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).context("reading standard input")?;
        return Ok(text);
    }
    std::fs::read_to_string(path).with_context(|| path.display().to_string())
}

async fn in_editor(client: &Client, name: &str) -> anyhow::Result<()> {
    let skill: Value = client.get(&text::path(&["v1", "skills", name])).await?;
    let entry = skill["entry_file"].as_str().unwrap_or("SKILL.md");
    let at = text::path(&["v1", "skills", name, "files", entry]);
    let read = client.open(&at, &[(ACCEPT, "*/*")]).await?;
    let tag = read.headers().get(ETAG).and_then(|tag| tag.to_str().ok()).unwrap_or_default().to_owned();
    let before = client.collect(read.into_body()).await?;
    let after = edited(&before, entry)?;
    if after != before {
        client.put(&at, Payload::Whole(Some(after.into())), &[(IF_MATCH, &tag)]).await?;
    }
    Ok(())
}

/// The text after somebody had it in an editor.
fn edited(text: &[u8], name: &str) -> anyhow::Result<Vec<u8>> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let editor = variable("VISUAL").or_else(|| variable("EDITOR")).unwrap_or_else(|| "vi".into());
    let place = tempfile::tempdir().context("making a directory for the text")?;
    let file = place.path().join(plain(name));
    std::fs::write(&file, text).context("writing the text")?;
    // Through a shell, as everybody does: the variable may hold arguments.
    let ended = Command::new("sh").arg("-c").arg(r#"exec $0 "$1""#).arg(&editor).arg(&file).status();
    let ended = ended.context("starting a shell for the editor")?;
    if !ended.success() {
        let problem = format!("the editor `{}` ended with {ended}; nothing was changed", editor.display());
        return Err(Failure::invalid(problem)
            .hint("set $EDITOR, or use --description and --instructions")
            .into());
    }
    std::fs::read(&file).context("reading the text back")
}

/// The name is the server's word: only its last part is used, so it cannot lead out of the directory.
fn plain(name: &str) -> &std::ffi::OsStr {
    std::path::Path::new(name).file_name().unwrap_or("SKILL.md".as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_an_entry_file_stays_in_its_directory() {
        for (name, expected) in [
            ("SKILL.md", "SKILL.md"),
            ("../../.bashrc", ".bashrc"),
            ("/etc/cron.d/x", "x"),
            ("..", "SKILL.md"),
            ("", "SKILL.md"),
        ] {
            assert_eq!(plain(name), expected, "{name}");
        }
    }
}
