//! `sandcrate image`: images of the native backend, in the state directory of this machine. No server is needed, and
//! one that runs sees what changes.

mod progress;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde_json::json;

use crate::args::OutputFormat;
use crate::client::table;
use crate::failure::{self, Failure};
use crate::native::NativeConfig;
use crate::native::image::{ImageError, ImageName, ImageRecord, ImageStore, ImportLimits, Replaced};
use crate::output;
use crate::units::{parse_size, show_size};
use progress::Meter;

#[derive(Debug, Subcommand)]
pub(crate) enum ImageVerb {
    /// Import a root file system under a name: a tar, an archive of `docker save`, an OCI layout or a directory
    #[command(after_help = "\
Examples:
  sandcrate image import debian ./rootfs                        a directory, such as debootstrap makes
  docker save python:3.13 | sandcrate image import python -     all layers of an image of Docker
  sandcrate image import tools ./tools.tar.zst                  a tar of a root, plain, gzip or zstd
  sandcrate image import langbot langbot.tar                    then, in sandcrate.toml:
                                                                [images]
                                                                \"rockchin/langbot-sandbox:latest\" = \"langbot\"

It is unpacked once and shared read-only by all boxes. An image of that name is replaced; boxes that
use it keep what they have. Device nodes outside /dev, paths with `..` and other machines' images are
refused; setuid bits are dropped. Exit codes: 0, or 125 when nothing was imported.")]
    Import(ImportArgs),
    /// List the images
    #[command(after_help = "\
Examples:
  sandcrate image ls
  sandcrate image ls -o json | jq '.images[] | {name, digest, config}'")]
    Ls(LsArgs),
    /// Remove images; one that boxes use is refused
    #[command(after_help = "\
Examples:
  sandcrate image rm python debian
  sandcrate image rm --force python       its boxes keep it until they end; new ones do not find it

Exit codes: 0 when all are removed, else 125.")]
    Rm(RmArgs),
}

/// Where the images are.
#[derive(Debug, Args)]
pub(crate) struct Place {
    /// State directory that has the images, when it is not that of this user; a server's is `runtime.state_dir`
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,

    /// For people, or one document
    #[arg(short, long, value_name = "FORMAT", default_value = "raw")]
    output: OutputFormat,
}

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// Name for sessions and `run --image`, such as `python` or `rockchin/langbot-sandbox:latest`
    #[arg(value_name = "NAME")]
    name: String,

    /// File or directory; `-` is standard input
    #[arg(value_name = "SOURCE")]
    source: PathBuf,

    /// Most bytes of all files, expanded
    #[arg(long, value_name = "SIZE", default_value = "32G", value_parser = parse_size)]
    max_size: u64,

    /// Most files, directories and links
    #[arg(long, value_name = "NUMBER", default_value_t = ImportLimits::default().entries)]
    max_entries: u64,

    /// Say nothing on stderr but errors
    #[arg(short, long)]
    quiet: bool,

    #[command(flatten)]
    place: Place,
}

#[derive(Debug, Args)]
pub(crate) struct LsArgs {
    #[command(flatten)]
    place: Place,
}

#[derive(Debug, Args)]
pub(crate) struct RmArgs {
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,

    /// Also an image that boxes use: the name goes now, the files with the last box
    #[arg(short, long)]
    force: bool,

    #[command(flatten)]
    place: Place,
}

impl Place {
    fn store(&self) -> ImageStore {
        let usual = || NativeConfig::for_this_user().state_dir;
        ImageStore::of_state_dir(&self.state_dir.clone().unwrap_or_else(usual))
    }
}

pub(crate) fn main(verb: ImageVerb) -> ExitCode {
    let (done, format) = match verb {
        ImageVerb::Import(args) => (import(&args), args.place.output),
        ImageVerb::Ls(args) => (list(&args), args.place.output),
        ImageVerb::Rm(args) => (remove(&args), args.place.output),
    };
    done.unwrap_or_else(|error| failure::report(&error, format))
}

fn import(args: &ImportArgs) -> anyhow::Result<ExitCode> {
    let name = ImageName::new(args.name.clone())?;
    let limits = ImportLimits { entries: args.max_entries, bytes: args.max_size };
    let store = args.place.store();
    let mut meter = Meter::new(&name, args.quiet);
    let mut report = |done| meter.show(done);
    let imported = if args.source.as_os_str() == "-" {
        store.import_stream(&name, &mut std::io::stdin().lock(), limits, &mut report)
    } else {
        if !args.source.exists() {
            return Err(Failure::invalid(format!("{}: there is no such file or directory", args.source.display()))
                .hint("SOURCE is a tar, an archive of `docker save`, an OCI layout, a directory, or - for standard input")
                .into());
        }
        store.import(&name, &args.source, limits, &mut report)
    };
    meter.clear();
    let (record, replaced) = imported?;
    if !args.quiet && record.left_out > 0 && args.place.output == OutputFormat::Raw {
        output::notice(&format!("note: {} devices, FIFOs or sockets were left out", record.left_out));
    }
    Ok(match args.place.output {
        OutputFormat::Raw => {
            let instead = if replaced == Replaced::Earlier { ", in the place of an earlier one" } else { "" };
            output::print(&format!(
                "imported {name} ({}): {} in {} entries, {}{instead}\n",
                record.source,
                show_size(record.bytes),
                record.entries,
                record.digest
            ))
        }
        OutputFormat::Json => output::print(&format!("{:#}\n", json!(record))),
    })
}

fn list(args: &LsArgs) -> anyhow::Result<ExitCode> {
    let images = args.place.store().list()?;
    Ok(match args.place.output {
        OutputFormat::Raw => {
            let now = Timestamp::now();
            let rows: Vec<_> = images.iter().map(|image| row(image, now)).collect();
            output::print(&table::render(["NAME", "DIGEST", "SOURCE", "SIZE", "ENTRIES", "AGE"], &rows))
        }
        OutputFormat::Json => output::print(&format!("{:#}\n", json!({"images": images}))),
    })
}

fn row(image: &ImageRecord, now: Timestamp) -> [String; 6] {
    let digest = image.digest.strip_prefix("sha256:").unwrap_or(&image.digest);
    [
        image.name.to_string(),
        digest.chars().take(12).collect(),
        image.source.to_string(),
        show_size(image.bytes),
        image.entries.to_string(),
        table::age(&image.imported_at.to_string(), now),
    ]
}

/// All that can be removed are; the first that cannot is the result.
fn remove(args: &RmArgs) -> anyhow::Result<ExitCode> {
    let store = args.place.store();
    let (mut removed, mut failed) = (Vec::new(), None);
    for name in &args.names {
        let done =
            ImageName::new(name.clone()).and_then(|name| store.remove(&name, args.force).map(|_| name));
        match done {
            Ok(name) => removed.push(name),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    match (failed, args.place.output) {
        (Some(error), OutputFormat::Raw) => {
            for name in &removed {
                output::notice(&format!("removed {name}"));
            }
            Err(error.into())
        }
        (Some(error), OutputFormat::Json) => Err(error.into()),
        (None, OutputFormat::Raw) => {
            Ok(output::print(&removed.iter().map(|name| format!("{name}\n")).collect::<String>()))
        }
        (None, OutputFormat::Json) => Ok(output::print(&format!("{:#}\n", json!({"removed": removed})))),
    }
}

/// What a person can do about it, where the words of the error do not say.
pub(crate) fn hint(error: &ImageError) -> Option<&'static str> {
    Some(match error {
        ImageError::Archive { .. } => {
            "SOURCE is a tar of a root, an archive of `docker save`, an OCI layout or a directory; gzip or zstd are fine"
        }
        ImageError::Failed { source, .. } if source.kind() == std::io::ErrorKind::StorageFull => {
            "images are unpacked into the state directory; --state-dir or SANDCRATE_STATE_DIR names another"
        }
        _ => return None,
    })
}
