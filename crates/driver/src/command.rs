//! What a request means for the box, and what a failed start means for the caller.

use std::io;
use std::os::unix::ffi::OsStrExt;

use sandcrate_backend::{BackendError, Command, ExecRequest, MAX_STRING_BYTES, check_start_size, merge_env};
use sandcrate_jail::EXECUTING;
use sandcrate_jail::message::{Failure, StartCommand};

use crate::DEFAULT_PATH;
use crate::link::{Fittings, step_failed};

pub fn start_command(fittings: &Fittings, request: &ExecRequest) -> Result<StartCommand, BackendError> {
    let home = &fittings.home;
    let mut base = vec![
        ("PATH".to_owned(), format!("{DEFAULT_PATH}:{home}/.local/bin")),
        ("HOME".to_owned(), home.clone()),
        ("LANG".to_owned(), "C.UTF-8".to_owned()),
    ];
    if request.pty.is_some() {
        base.push(("TERM".to_owned(), "xterm-256color".to_owned()));
    }
    let env = merge_env(&[&base, &fittings.env, &request.env]);
    if let Command::Argv(argv) = &request.command {
        check_start_size(argv, &env)?;
    } else {
        check_start_size(&[], &env)?;
    }
    let mut script = None;
    let argv = match &request.command {
        Command::Argv(argv) => argv.iter().map(|part| part.as_bytes().to_vec()).collect(),
        Command::Shell(text) if text.len() < MAX_STRING_BYTES => {
            vec![b"/bin/sh".to_vec(), b"-c".to_vec(), text.clone().into_bytes()]
        }
        Command::Shell(text) => {
            script = Some(text.clone().into_bytes());
            vec![b"/bin/sh".to_vec()]
        }
    };
    Ok(StartCommand {
        argv,
        env: env.into_iter().map(|(key, value)| format!("{key}={value}").into_bytes()).collect(),
        cwd: request.cwd.as_ref().unwrap_or(&fittings.workdir).clone().into_bytes(),
        terminal: request.pty.map(|size| (size.rows, size.cols)),
        script,
    })
}

/// A failure to start, in the caller's words.
pub fn start_error(failure: &Failure, program: &str) -> BackendError {
    let why = || io::Error::from_raw_os_error(failure.errno).to_string();
    if failure.step.starts_with(EXECUTING) {
        return match failure.errno {
            libc::ENOENT | libc::ENOTDIR => BackendError::CommandNotFound { program: program.to_owned() },
            libc::E2BIG => BackendError::LimitExceeded {
                what: "the command's arguments and environment together".to_owned(),
                limit: "what the kernel takes for one program".to_owned(),
            },
            libc::EAGAIN => too_many(),
            _ => BackendError::CommandNotExecutable { program: program.to_owned(), why: why() },
        };
    }
    if let Some(path) = failure.step.strip_prefix("entering ") {
        return BackendError::invalid("workdir", format!("`{path}` cannot be entered: {}", why()));
    }
    if failure.errno == libc::EAGAIN {
        return too_many();
    }
    step_failed(failure)
}

pub fn too_many() -> BackendError {
    BackendError::LimitExceeded {
        what: "starting another process".to_owned(),
        limit: "the session's process limit".to_owned(),
    }
}
