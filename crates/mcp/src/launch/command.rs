//! What a server's command line means: tools that install and run in one step are told apart from programs.

use std::path::Path;

use super::npx;
use super::uvx;

/// A command line, understood. Arguments are the program's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Understood {
    /// Packages of npm, then a program of theirs: the named one, or the one that the first package is known for.
    Npm {
        packages: Vec<String>,
        program: Option<String>,
        args: Vec<String>,
    },
    /// A Python package as a tool, with whatever else goes into its environment.
    Tool {
        package: String,
        with: Vec<String>,
        python: Option<String>,
        program: String,
        args: Vec<String>,
    },
    /// A program in the environment of a Python project.
    UvRun {
        directory: Option<String>,
        args: Vec<String>,
    },
    Python {
        interpreter: String,
        args: Vec<String>,
    },
    Node {
        program: String,
        args: Vec<String>,
    },
    Other {
        program: String,
        args: Vec<String>,
    },
}

/// Why a command line cannot be split into what installs and what runs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{tool}`: {problem}")]
pub struct CommandError {
    pub tool: &'static str,
    pub problem: String,
}

impl CommandError {
    pub(super) fn new(tool: &'static str, problem: impl Into<String>) -> Self {
        Self { tool, problem: problem.into() }
    }
}

/// # Errors
/// When an installing tool is asked for something that cannot be split.
pub fn understand(command: &str, args: &[String]) -> Result<Understood, CommandError> {
    let args = args.to_vec();
    Ok(match (name_of(command), args.first().map(String::as_str)) {
        ("npx", _) => npx::split("npx", &args)?,
        ("npm", Some("exec" | "x")) => npx::split("npm exec", &args[1..])?,
        ("uvx", _) => uvx::split_tool("uvx", &args)?,
        ("uv", _) => match uvx::split_uv(&args)? {
            Some(understood) => understood,
            None => Understood::Other { program: command.to_owned(), args },
        },
        (name, _) if is_python(name) => Understood::Python { interpreter: command.to_owned(), args },
        ("node" | "nodejs", _) => Understood::Node { program: command.to_owned(), args },
        _ => Understood::Other { program: command.to_owned(), args },
    })
}

fn name_of(command: &str) -> &str {
    Path::new(command).file_name().and_then(|name| name.to_str()).unwrap_or(command)
}

/// `python`, `python3`, `python3.12`.
pub(super) fn is_python(name: &str) -> bool {
    name.strip_prefix("python").is_some_and(|version| version.chars().all(|c| c.is_ascii_digit() || c == '.'))
}

/// Options of Python that take the next argument as theirs.
const PYTHON_VALUES: [&str; 3] = ["-W", "-X", "--check-hash-based-pycs"];
/// The same of Node.
const NODE_VALUES: [&str; 7] =
    ["-r", "--require", "--import", "--loader", "--experimental-loader", "-C", "--conditions"];

impl Understood {
    /// The file that an interpreter is to run, if it is one.
    pub(super) fn script(&self) -> Option<&str> {
        let (args, values, ends): (_, &[&str], &[&str]) = match self {
            Self::Python { args, .. } => (args, &PYTHON_VALUES, &["-m", "-c", "-"]),
            Self::Node { args, .. } => (args, &NODE_VALUES, &["-e", "--eval", "-p", "--print", "-"]),
            Self::UvRun { args, .. } => {
                return args.first().map(String::as_str).filter(|arg| arg.ends_with(".py"));
            }
            _ => return None,
        };
        let mut args = args.iter().map(String::as_str);
        while let Some(arg) = args.next() {
            if ends.contains(&arg) {
                return None;
            }
            if values.contains(&arg) {
                args.next();
            } else if !arg.starts_with('-') {
                return Some(arg);
            }
        }
        None
    }
}

#[cfg(test)]
#[path = "command_tests.rs"]
mod tests;
