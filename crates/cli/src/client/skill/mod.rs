//! `sandcrate skill`: list, look at, add, edit, export, remove.

mod add;
mod edit;
mod export;
mod list;
mod remove;

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde::Deserialize;

use crate::args::OutputFormat;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sandcrate skill add ./pdf                        a directory with a SKILL.md
  sandcrate skill add skills.zip --select one --select two
  sandcrate skill ls
  sandcrate skill edit pdf                         its SKILL.md, in $EDITOR
  sandcrate skill export pdf
  sandcrate skill rm pdf")]
pub(crate) struct SkillArgs {
    #[command(subcommand)]
    verb: SkillVerb,
}

#[derive(Debug, Subcommand)]
enum SkillVerb {
    /// List skills
    #[command(visible_alias = "list")]
    Ls(list::ListArgs),
    /// Show what a skill says, and its files
    #[command(visible_alias = "inspect")]
    Show(list::ShowArgs),
    /// Add skills from a directory or a zip of this machine
    Add(add::AddArgs),
    /// Change what a skill says
    Edit(edit::EditArgs),
    /// Write a skill to a zip
    Export(export::ExportArgs),
    /// Remove skills
    Rm(remove::RemoveArgs),
}

impl SkillArgs {
    pub(super) fn output(&self) -> OutputFormat {
        match &self.verb {
            SkillVerb::Ls(args) => args.output,
            SkillVerb::Show(args) => args.output,
            SkillVerb::Add(args) => args.output,
            SkillVerb::Edit(args) => args.output,
            SkillVerb::Export(args) => args.output,
            SkillVerb::Rm(args) => args.output,
        }
    }
}

pub(super) async fn run(args: SkillArgs) -> anyhow::Result<ExitCode> {
    match args.verb {
        SkillVerb::Ls(args) => list::run(args).await,
        SkillVerb::Show(args) => list::show(args).await,
        SkillVerb::Add(args) => add::run(args).await,
        SkillVerb::Edit(args) => edit::run(args).await,
        SkillVerb::Export(args) => export::run(args).await,
        SkillVerb::Rm(args) => remove::run(args).await,
    }
}

/// What is shown of a skill.
#[derive(Debug, Deserialize)]
struct Shown {
    name: String,
    display_name: String,
    description: String,
    instructions: String,
    package_root: String,
    entry_file: String,
    updated_at: String,
    #[serde(default)]
    source_path: Option<String>,
}
