//! `sandcrate skill add`: a directory or a zip of this machine, whichever machine the server is on.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use hyper::Method;
use sandcrate_skills::{Limits, pack_directory};
use serde_json::Value;

use super::list;
use crate::args::OutputFormat;
use crate::client::address::Target;
use crate::client::http::{Client, Payload};
use crate::client::{answer, table, text};
use crate::failure::Failure;

/// Add skills from a directory or a zip of this machine
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sandcrate skill add ./pdf                        a directory with a SKILL.md
  sandcrate skill add repo.zip --preview           what is in it
  sandcrate skill add repo.zip --select skills/pdf --select skills/docx

The directory is named after DIR or ZIP. A skill or directory that is there already is not touched.
Links that stay in DIR are sent as what they lead to; others are refused.")]
pub(crate) struct AddArgs {
    /// A directory, or a zip
    #[arg(value_name = "DIR|ZIP")]
    source: PathBuf,

    /// Which of several skills, by its place as --preview shows it; may be given several times
    #[arg(long, value_name = "PATH")]
    select: Vec<String>,

    /// Look only below this directory
    #[arg(long, value_name = "PATH")]
    subdir: Option<String>,

    /// Say what is in it, and add nothing
    #[arg(long)]
    preview: bool,

    /// Names, or the server's document
    #[arg(short, long, value_name = "FORMAT", default_value = "raw")]
    pub(super) output: OutputFormat,

    #[command(flatten)]
    target: Target,
}

pub(super) async fn run(args: AddArgs) -> anyhow::Result<ExitCode> {
    let client = Client::new(&args.target)?;
    let source = args.source.clone();
    let (filename, bytes) = tokio::task::spawn_blocking(move || read(&source)).await.context("reading")??;
    let mut pairs = vec![("filename", filename.as_str())];
    pairs.extend(args.select.iter().map(|path| ("source_path", path.as_str())));
    pairs.extend(args.subdir.iter().map(|path| ("source_subdir", path.as_str())));
    if args.preview {
        pairs.push(("preview", "1"));
    }
    let path = format!("/v1/skill-archives{}", text::query(&pairs));
    let document: Value = client.ask(Method::POST, &path, Payload::Whole(Some(bytes.into()))).await?;
    let skills = list::all(&client, &document)?;
    let text = if args.preview {
        let place = |path: &Option<String>| match path.as_deref() {
            None | Some("") => "-".to_owned(),
            Some(path) => path.to_owned(),
        };
        let rows: Vec<_> = skills
            .iter()
            .map(|skill| [skill.name.clone(), place(&skill.source_path), skill.description.clone()])
            .collect();
        table::render(["NAME", "PLACE", "DESCRIPTION"], &rows)
    } else {
        skills.iter().map(|skill| format!("{}\n", table::clean(&skill.name))).collect()
    };
    Ok(answer(args.output, &document, &text))
}

/// The archive to send, and the name it has.
fn read(source: &Path) -> anyhow::Result<(String, Vec<u8>)> {
    let shown = || source.display().to_string();
    let kind = std::fs::metadata(source).with_context(shown)?;
    let real = source.canonicalize().with_context(shown)?;
    let name = real.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    if kind.is_dir() {
        // The server has limits of its own; here only memory is at stake.
        let bytes = pack_directory(&real, &Limits::default()).with_context(shown)?;
        return Ok((format!("{name}.zip"), bytes));
    }
    let bytes = std::fs::read(&real).with_context(shown)?;
    if !bytes.starts_with(b"PK") {
        let failure = Failure::invalid(format!("{} is neither a directory nor a zip", shown()));
        return Err(failure.hint("a skill is a directory with a SKILL.md, or a zip of such").into());
    }
    Ok((name, bytes))
}
