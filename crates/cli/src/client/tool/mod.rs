//! `sandcrate tool`: the tools of an agent, called by hand.

mod call;
mod show;

use std::process::ExitCode;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use super::address::Target;
use crate::args::OutputFormat;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sandcrate tool ls --format openai
  sandcrate tool exec -s demo 'python3 -c \"print(2**64)\"'
  echo 'print(1)' | sandcrate tool write -s demo /workspace/a.py
  sandcrate tool edit -s demo /workspace/a.py --old 'print(1)' --new 'print(2)'
  sandcrate tool grep --launcher-type group --launcher-id room-1 'TODO' --include '*.py'

With -s a tool works in that session; with --launcher-id and its like in the one that the server's
template gives such a caller. A session that is not there is made with the profile of [tools].")]
pub(crate) struct ToolArgs {
    #[command(subcommand)]
    verb: ToolVerb,
}

#[derive(Debug, Subcommand)]
enum ToolVerb {
    /// List the tools with their schemas
    #[command(visible_alias = "list")]
    Ls(show::ListArgs),
    /// Run a command
    Exec(call::ExecArgs),
    /// Print a file, or the names in a directory
    Read(call::ReadArgs),
    /// Write a file
    Write(call::WriteArgs),
    /// Replace a text that occurs once in a file
    Edit(call::EditArgs),
    /// Find files by their names, the newest first
    Glob(call::GlobArgs),
    /// Find lines by a regular expression
    Grep(call::GrepArgs),
}

/// Where a tool works, and how its result is shown.
#[derive(Debug, Args)]
pub(super) struct Scope {
    /// Id of the session
    #[arg(short, long, value_name = "SESSION", value_parser = NonEmptyStringValueParser::new(),
        conflicts_with = "caller")]
    session: Option<String>,

    #[command(flatten)]
    caller: Caller,

    /// What the tool says, or the server's document
    #[arg(short, long, value_name = "FORMAT", default_value = "raw")]
    output: OutputFormat,

    #[command(flatten)]
    target: Target,
}

#[derive(Debug, Args)]
#[group(id = "caller", multiple = true)]
struct Caller {
    /// Kind of the conversation, such as `person` or `group`
    #[arg(long, value_name = "TYPE")]
    launcher_type: Option<String>,
    /// Id of the conversation
    #[arg(long, value_name = "ID")]
    launcher_id: Option<String>,
    /// Id of who speaks in it
    #[arg(long, value_name = "ID")]
    sender_id: Option<String>,
    /// Id of one exchange in it
    #[arg(long, value_name = "ID")]
    conversation_id: Option<String>,
}

impl Scope {
    /// The body of a call.
    fn call(&self, arguments: Map<String, Value>) -> Value {
        let mut body = json!({});
        body["arguments"] = Value::Object(arguments);
        match &self.session {
            Some(session) => body["session_id"] = json!(session),
            None => {
                let Caller { launcher_type, launcher_id, sender_id, conversation_id } = &self.caller;
                let fields = [
                    ("launcher_type", launcher_type),
                    ("launcher_id", launcher_id),
                    ("sender_id", sender_id),
                    ("conversation_id", conversation_id),
                ];
                let said = fields
                    .into_iter()
                    .filter_map(|(name, value)| Some((name.to_owned(), json!(value.as_ref()?))));
                let said: Map<_, _> = said.collect();
                if !said.is_empty() {
                    body["caller"] = Value::Object(said);
                }
            }
        }
        body
    }
}

impl ToolArgs {
    pub(super) fn output(&self) -> OutputFormat {
        match &self.verb {
            ToolVerb::Ls(_) => OutputFormat::Json,
            ToolVerb::Exec(args) => args.scope.output,
            ToolVerb::Read(args) => args.scope.output,
            ToolVerb::Write(args) => args.scope.output,
            ToolVerb::Edit(args) => args.scope.output,
            ToolVerb::Glob(args) => args.scope.output,
            ToolVerb::Grep(args) => args.scope.output,
        }
    }
}

pub(super) async fn run(args: ToolArgs) -> anyhow::Result<ExitCode> {
    match args.verb {
        ToolVerb::Ls(args) => show::list(args).await,
        ToolVerb::Exec(args) => call::exec(args).await,
        ToolVerb::Read(args) => call::read(args).await,
        ToolVerb::Write(args) => call::write(args).await,
        ToolVerb::Edit(args) => call::edit(args).await,
        ToolVerb::Glob(args) => call::glob(args).await,
        ToolVerb::Grep(args) => call::grep(args).await,
    }
}
