//! `uvx`, `uv tool run` and `uv run` as an install and a run.

use super::command::{CommandError, Understood};

/// Options that change nothing about what is installed or run.
const IDLE: [&str; 8] =
    ["-q", "--quiet", "-v", "--verbose", "--no-progress", "--no-config", "--isolated", "--refresh"];

struct Options<'a> {
    tool: &'static str,
    rest: std::slice::Iter<'a, String>,
}

impl Options<'_> {
    /// The value of an option: behind `=`, or the next argument.
    fn value(&mut self, option: &str, inline: Option<&str>) -> Result<String, CommandError> {
        match inline {
            Some(value) => Ok(value.to_owned()),
            None => {
                let next = self.rest.next().cloned();
                next.ok_or_else(|| CommandError::new(self.tool, format!("`{option}` has no value")))
            }
        }
    }

    fn unknown(&self, option: &str, known: &str) -> CommandError {
        let problem = format!(
            "the option `{option}` cannot be split into an install and a run; what is known: {known}, and uv's own \
             settings as UV_ variables"
        );
        CommandError::new(self.tool, problem)
    }
}

pub(super) fn split_tool(tool: &'static str, args: &[String]) -> Result<Understood, CommandError> {
    let mut options = Options { tool, rest: args.iter() };
    let (mut from, mut python, mut with) = (None, None, Vec::new());
    while let Some(arg) = options.rest.next() {
        let (option, inline) = match arg.split_once('=') {
            Some((option, value)) if option.starts_with("--") => (option, Some(value)),
            _ => (arg.as_str(), None),
        };
        match option {
            "--from" => from = Some(options.value(option, inline)?),
            "--with" => {
                let value = options.value(option, inline)?;
                with.extend(
                    value.split(',').map(|part| part.trim().to_owned()).filter(|part| !part.is_empty()),
                );
            }
            "-p" | "--python" => python = Some(options.value(option, inline)?),
            option if IDLE.contains(&option) => {}
            option if option.starts_with('-') => {
                return Err(options.unknown(option, "--from, --with, --python, -q"));
            }
            _ => {
                let args: Vec<String> = options.rest.cloned().collect();
                let package = requirement(from.as_deref().unwrap_or(arg));
                check(tool, &package)?;
                let program = if from.is_some() { arg.clone() } else { name_of(arg) };
                return Ok(Understood::Tool { package, with, python, program, args });
            }
        }
    }
    Err(CommandError::new(tool, "names nothing to run"))
}

/// `uv` itself: `tool run` and `run`; `None` for the rest of it.
pub(super) fn split_uv(args: &[String]) -> Result<Option<Understood>, CommandError> {
    let mut directory = None;
    let mut options = Options { tool: "uv run", rest: args.iter() };
    let mut runs = false;
    while let Some(arg) = options.rest.next() {
        let (option, inline) = match arg.split_once('=') {
            Some((option, value)) if option.starts_with("--") => (option, Some(value)),
            _ => (arg.as_str(), None),
        };
        match option {
            "--directory" | "--project" => directory = Some(options.value(option, inline)?),
            "tool" if !runs => {
                return match options.rest.next().map(String::as_str) {
                    Some("run") => {
                        let rest: Vec<String> = options.rest.cloned().collect();
                        split_tool("uv tool run", &rest).map(Some)
                    }
                    _ => Ok(None),
                };
            }
            "run" if !runs => runs = true,
            "--" if runs => {
                let args: Vec<String> = options.rest.cloned().collect();
                return nothing_or(directory, args).map(Some);
            }
            "--frozen" | "--locked" | "--no-sync" | "--no-dev" => {}
            option if IDLE.contains(&option) => {}
            option if option.starts_with('-') => {
                return Err(options.unknown(option, "--directory, --project, --frozen, --no-dev, -q"));
            }
            _ if runs => {
                let args: Vec<String> = std::iter::once(arg).chain(options.rest).cloned().collect();
                return nothing_or(directory, args).map(Some);
            }
            _ => return Ok(None),
        }
    }
    nothing_or(directory, Vec::new()).map(Some)
}

fn nothing_or(directory: Option<String>, args: Vec<String>) -> Result<Understood, CommandError> {
    if args.is_empty() {
        return Err(CommandError::new("uv run", "names nothing to run"));
    }
    Ok(Understood::UvRun { directory, args })
}

/// `name@1.2` is uvx's own way to say `name==1.2`; a URL behind `@` is not.
fn requirement(text: &str) -> String {
    match text.split_once('@') {
        Some((name, "latest")) => name.to_owned(),
        Some((name, version))
            if !name.is_empty() && !version.contains([':', '/', ' ']) && !name.contains([' ', '/']) =>
        {
            format!("{name}=={version}")
        }
        _ => text.to_owned(),
    }
}

/// The name before extras and versions.
fn name_of(package: &str) -> String {
    let end = package
        .find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')))
        .unwrap_or(package.len());
    package[..end].to_owned()
}

fn check(tool: &'static str, package: &str) -> Result<(), CommandError> {
    let is_path = package.starts_with(['/', '.', '~']) || package.starts_with("file:");
    if is_path || package.is_empty() || package.starts_with('-') {
        let problem = format!(
            "`{package}` is a folder of this machine or no package: run it as `uv --directory DIR run PROGRAM`"
        );
        return Err(CommandError::new(tool, problem));
    }
    Ok(())
}
