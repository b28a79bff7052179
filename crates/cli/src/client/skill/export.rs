//! `sandcrate skill export`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use hyper::header::ACCEPT;
use serde_json::json;
use tempfile::NamedTempFile;

use crate::args::OutputFormat;
use crate::client::address::Target;
use crate::client::http::Client;
use crate::client::{answer, text};
use crate::failure::Failure;
use crate::output;

/// Write a skill to a zip
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sandcrate skill export pdf                       writes pdf.zip
  sandcrate skill export pdf --to backup/pdf.zip --force
  sandcrate skill export pdf --to - | bsdtar -tf -

`sandcrate skill add` takes the zip back.")]
pub(crate) struct ExportArgs {
    /// Name of the skill
    #[arg(value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    name: String,

    /// The file to write; - is standard output [default: NAME.zip]
    #[arg(long, value_name = "FILE")]
    to: Option<PathBuf>,

    /// Replace a file that is there
    #[arg(short, long)]
    force: bool,

    /// The file's name, or a document
    #[arg(short, long, value_name = "FORMAT", default_value = "raw")]
    pub(super) output: OutputFormat,

    #[command(flatten)]
    target: Target,
}

pub(super) async fn run(args: ExportArgs) -> anyhow::Result<ExitCode> {
    let client = Client::new(&args.target)?;
    let to = match args.to {
        Some(to) => to,
        None if args.name.contains('/') => {
            return Err(Failure::invalid("the name is no file name; say where with --to").into());
        }
        None => PathBuf::from(format!("{}.zip", args.name)),
    };
    let at = text::path(&["v1", "skills", &args.name, "archive"]);
    let mut body = client.open(&at, &[(ACCEPT, "*/*")]).await?.into_body();
    if to == Path::new("-") {
        while let Some(piece) = client.piece(&mut body).await? {
            let written = output::print_bytes(&piece);
            if written.is_err() {
                return Ok(output::exit_code_after(written, 0));
            }
        }
        return Ok(ExitCode::SUCCESS);
    }
    let shown = || to.display().to_string();
    let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Beside its place, so that taking it is one step: whole or not at all.
    let mut file = tempfile::NamedTempFile::new_in(parent).with_context(shown)?;
    let mut bytes = 0;
    while let Some(piece) = client.piece(&mut body).await? {
        file.write_all(&piece).with_context(shown)?;
        bytes += piece.len();
    }
    place(file, &to, args.force)?;
    let document = json!({"ok": true, "name": args.name, "file": to, "bytes": bytes});
    Ok(answer(args.output, &document, &format!("{}\n", to.display())))
}

fn place(file: NamedTempFile, to: &Path, force: bool) -> anyhow::Result<()> {
    let shown = || to.display().to_string();
    if force {
        file.persist(to).with_context(shown)?;
        return Ok(());
    }
    match file.persist_noclobber(to) {
        Ok(_) => Ok(()),
        Err(error) if error.error.kind() == std::io::ErrorKind::AlreadyExists => {
            Err(Failure::invalid(format!("{} is there already", shown())).hint("--force replaces it").into())
        }
        Err(error) => Err(error).with_context(shown),
    }
}
