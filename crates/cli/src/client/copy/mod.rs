//! `sandcrate cp`: files and directories into a session and out of it, with the rules of `docker cp`.

mod download;
mod local;
mod place;
mod progress;
mod remote;
mod upload;

use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use place::Place;
use progress::Progress;

use super::address::Target;
use super::answer;
use super::http::Client;
use crate::args::OutputFormat;
use crate::failure::Failure;
use crate::output;
use crate::run::signals::Signals;

/// Copy files into a session or out of it
#[derive(Debug, Args)]
#[command(
    override_usage = "sandcrate cp [OPTIONS] SRC SESSION:DST\n       sandcrate cp [OPTIONS] SESSION:SRC DST",
    after_help = "\
Examples:
  sandcrate cp data.csv demo:/workspace/          into a directory that is there
  sandcrate cp demo:/workspace/out.png .
  sandcrate cp ./site demo:/srv                   a directory: /srv, or /srv/site when /srv is there
  sandcrate cp ./site/. demo:/srv                 what is in it
  tar c . | sandcrate cp - demo:/tmp/all.tar      from standard input, or to standard output

SESSION:PATH is split at its first `:/`; a PATH without a leading slash is below /workspace. A local
path with a colon in it is written with `./` in front. Permission bits travel both ways; on the way
out set-id bits and others' right to write do not, and links that lead out of the copied directory
are left out, as are devices and pipes."
)]
pub(crate) struct CopyArgs {
    /// A local path, SESSION:PATH, or - for standard input
    #[arg(value_name = "SRC")]
    source: String,

    /// A local path, SESSION:PATH, or - for standard output
    #[arg(value_name = "DST")]
    target: String,

    /// No progress on a terminal
    #[arg(short, long)]
    quiet: bool,

    /// Nothing, or what was copied
    #[arg(short, long, value_name = "FORMAT", default_value = "raw")]
    pub(super) output: OutputFormat,

    #[command(flatten)]
    server: Target,
}

/// What was copied.
#[derive(Debug, Default)]
struct Copied {
    files: u64,
    directories: u64,
    links: u64,
    bytes: u64,
    /// What was left out, with the reason.
    skipped: Vec<String>,
}

impl Copied {
    fn skip(&mut self, why: String) {
        self.skipped.push(why);
    }
}

pub(super) async fn run(args: CopyArgs) -> anyhow::Result<ExitCode> {
    let (source, target) = (Place::parse(&args.source)?, Place::parse(&args.target)?);
    if args.output == OutputFormat::Json && target == Place::Standard {
        return Err(Failure::invalid("-o json and DST `-` both want standard output").into());
    }
    let client = Client::new(&args.server)?;
    let mut signals = Signals::install()?;
    let mut progress = Progress::new(args.quiet || args.output == OutputFormat::Json);
    let copying = async {
        match (source, target) {
            (Place::Local(from), Place::Box { session, path }) => {
                upload::tree(&client, &from, &session, &path, &mut progress).await
            }
            (Place::Standard, Place::Box { session, path }) => {
                upload::standard_input(&client, &session, &path, &mut progress).await
            }
            (Place::Box { session, path }, Place::Local(to)) => {
                download::tree(&client, &session, &path, &to, &mut progress).await
            }
            (Place::Box { session, path }, Place::Standard) => {
                download::standard_output(&client, &session, &path, &mut progress).await
            }
            _ => Err(Failure::invalid("exactly one of SRC and DST must be in a session")
                .hint("such as `sandcrate cp ./a.txt demo:/workspace/`; SESSION:PATH is the form")
                .into()),
        }
    };
    // A signal drops what is under way, and with it the half of a file.
    let copied = tokio::select! {
        copied = copying => copied,
        signal = signals.ending() => return Ok(ExitCode::from(u8::try_from(128 + signal).unwrap_or(u8::MAX))),
    };
    progress.clear();
    let copied = copied?;
    if args.output == OutputFormat::Raw {
        copied.skipped.iter().for_each(|why| output::notice(&format!("left out: {why}")));
    }
    let document = json!({"files": copied.files, "directories": copied.directories, "links": copied.links,
        "bytes": copied.bytes, "skipped": copied.skipped});
    Ok(answer(args.output, &document, ""))
}
