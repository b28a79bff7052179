//! What a program may be started with: arguments, environment, working directory.
//!
//! Pure rules. The bounds are the kernel's (execve(2), "Limits on size of arguments and environment"), checked
//! here so that a caller gets a typed error instead of a failed start.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use crate::mounts::{check_box_path, check_target, shown};
use crate::{BackendError, Command, ExecRequest, FileRequest, SessionSpec, check_mounts};

/// The kernel's MAX_ARG_STRLEN (32 pages) without the closing NUL; for a variable, `KEY=VALUE` together.
pub const MAX_STRING_BYTES: usize = (128 << 10) - 1;
/// All arguments and variables, each with its NUL and its pointer. A quarter of the usual 8 MiB stack is the
/// kernel's bound; the rest is headroom for the program's name and a smaller stack limit.
pub const MAX_START_BYTES: usize = 1536 << 10;
/// More than any real environment; it bounds what a peer makes us sort and copy.
pub const MAX_VARIABLES: usize = 20_000;
/// A script travels as a file in the box; the bound is that of one file operation.
pub const MAX_SCRIPT_BYTES: usize = FileRequest::MAX_BYTES as usize;

/// Checks one variable; errors name its key.
pub fn check_env(key: &str, value: &str) -> Result<(), BackendError> {
    let refuse = |problem: &str| Err(BackendError::invalid(format!("env key `{}`", shown(key)), problem));
    if key.is_empty() {
        return refuse("must not be empty");
    }
    if key.contains('=') {
        return refuse("must not contain `=`");
    }
    if key.chars().any(char::is_control) {
        return refuse("must not contain NUL, newlines or control characters");
    }
    if value.contains('\0') {
        return Err(BackendError::invalid(format!("env value of `{}`", shown(key)), "must not contain NUL"));
    }
    if key.len() + 1 + value.len() > MAX_STRING_BYTES {
        return Err(too_long(format!("env variable `{}`", shown(key))));
    }
    Ok(())
}

/// Checks a program and its arguments, without the environment.
pub fn check_argv(argv: &[OsString]) -> Result<(), BackendError> {
    if argv.first().is_none_or(|program| program.is_empty()) {
        return Err(BackendError::invalid("command", "must name a program"));
    }
    for (index, argument) in argv.iter().enumerate() {
        if argument.as_bytes().contains(&0) {
            return Err(BackendError::invalid(format!("command argument {index}"), "must not contain NUL"));
        }
        if argument.len() > MAX_STRING_BYTES {
            return Err(too_long(format!("command argument {index}")));
        }
    }
    check_start_size(argv, &[])
}

/// Checks that arguments and environment fit together. A backend calls this with what [`merge_env`] gave,
/// since no single request knows the whole environment.
pub fn check_start_size(argv: &[OsString], env: &[(String, String)]) -> Result<(), BackendError> {
    const POINTER: usize = 8;
    if env.len() > MAX_VARIABLES {
        return Err(BackendError::LimitExceeded {
            what: format!("an environment of {} variables", env.len()),
            limit: MAX_VARIABLES.to_string(),
        });
    }
    let arguments: usize = argv.iter().map(|argument| argument.len() + 1 + POINTER).sum();
    let variables: usize = env.iter().map(|(key, value)| key.len() + value.len() + 2 + POINTER).sum();
    if arguments + variables > MAX_START_BYTES {
        return Err(BackendError::LimitExceeded {
            what: format!("command and environment of {} bytes", arguments + variables),
            limit: format!("{MAX_START_BYTES} bytes"),
        });
    }
    Ok(())
}

/// Checks a directory that commands start in.
pub fn check_workdir(text: &str) -> Result<(), BackendError> {
    check_box_path("workdir", text).map(drop)
}

/// One environment out of layers; a later entry wins and takes the earlier one's place.
pub fn merge_env(layers: &[&[(String, String)]]) -> Vec<(String, String)> {
    let mut merged: Vec<(String, String)> = Vec::new();
    let mut places: HashMap<&str, usize> = HashMap::new();
    for (key, value) in layers.iter().copied().flatten() {
        match places.entry(key.as_str()) {
            Entry::Occupied(place) => merged[*place.get()].1.clone_from(value),
            Entry::Vacant(place) => {
                place.insert(merged.len());
                merged.push((key.clone(), value.clone()));
            }
        }
    }
    merged
}

fn check_environment(env: &[(String, String)]) -> Result<(), BackendError> {
    // The size first: it bounds the work below.
    check_start_size(&[], env)?;
    env.iter().try_for_each(|(key, value)| check_env(key, value))
}

fn too_long(what: String) -> BackendError {
    BackendError::LimitExceeded { what, limit: format!("{MAX_STRING_BYTES} bytes") }
}

impl SessionSpec {
    /// Checks everything that can be known without the machine. Every backend's `start` calls it first.
    pub fn validate(&self) -> Result<(), BackendError> {
        check_workdir(&self.workdir)?;
        check_environment(&self.env)?;
        check_mounts(&self.mounts)?;
        check_target(&self.workspace)?;
        let limits = &self.limits;
        for (field, value) in [
            ("memory_bytes", limits.memory_bytes),
            ("cpu_millis", limits.cpu_millis.into()),
            ("pids", limits.pids.into()),
            ("open_files", limits.open_files),
        ] {
            if value == 0 {
                return Err(BackendError::invalid(field, "must be greater than zero"));
            }
        }
        Ok(())
    }
}

impl ExecRequest {
    /// Checks everything that can be known without the box. Every backend's `exec` calls it first.
    pub fn validate(&self) -> Result<(), BackendError> {
        check_environment(&self.env)?;
        if let Some(cwd) = &self.cwd {
            check_workdir(cwd)?;
        }
        if self.memory_bytes == Some(0) {
            return Err(BackendError::invalid("memory_bytes", "must be greater than zero"));
        }
        match &self.command {
            Command::Argv(argv) => {
                check_argv(argv)?;
                check_start_size(argv, &self.env)
            }
            Command::Shell(script) if script.contains('\0') => {
                Err(BackendError::invalid("command", "must not contain NUL"))
            }
            Command::Shell(script) if script.len() > MAX_SCRIPT_BYTES => Err(BackendError::LimitExceeded {
                what: format!("a script of {} bytes", script.len()),
                limit: format!("{MAX_SCRIPT_BYTES} bytes"),
            }),
            Command::Shell(_) => Ok(()),
        }
    }

    /// The program as messages name it.
    pub fn program(&self) -> String {
        match &self.command {
            Command::Argv(argv) => {
                shown(&argv.first().map(OsString::as_os_str).unwrap_or(OsStr::new("")).to_string_lossy())
            }
            Command::Shell(_) => "sh".to_owned(),
        }
    }
}

impl FileRequest {
    /// Checks the paths and the size of what is written. Every backend's `files` calls it first.
    pub fn validate(&self) -> Result<(), BackendError> {
        match self {
            Self::Stat { path }
            | Self::List { path }
            | Self::Read { path, .. }
            | Self::MakeDir { path }
            | Self::Remove { path } => check_file_path(path),
            Self::Rename { from, to } => {
                check_file_path(from)?;
                check_file_path(to)
            }
            Self::Write { path, data } | Self::Append { path, data } => {
                check_file_path(path)?;
                if data.len() as u64 > Self::MAX_BYTES {
                    let what = format!("a write of {} bytes", data.len());
                    return Err(BackendError::LimitExceeded {
                        what,
                        limit: format!("{} bytes", Self::MAX_BYTES),
                    });
                }
                Ok(())
            }
        }
    }
}

/// File names may hold anything the kernel takes, `..` included: the root of the box bounds them.
fn check_file_path(path: &str) -> Result<(), BackendError> {
    if path.is_empty() || path.contains('\0') || path.len() > crate::mounts::MAX_PATH_BYTES {
        let problem = "must not be empty, contain NUL or have more than 4095 bytes";
        return Err(BackendError::invalid(format!("path `{}`", shown(path)), problem));
    }
    Ok(())
}

#[cfg(test)]
#[path = "arguments_tests.rs"]
mod tests;
