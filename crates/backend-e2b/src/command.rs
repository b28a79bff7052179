//! What a sandbox is asked to run for a request: strings of JSON, where the kernel takes any bytes and a script may be
//! larger than an argument.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;

use bytes::Bytes;
use sandcrate_backend::{BackendError, Command, ExecRequest, MAX_STRING_BYTES, check_start_size, merge_env};

const SHELL: &str = "/bin/sh";

/// A program and its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Invocation {
    pub(crate) program: String,
    pub(crate) arguments: Vec<String>,
    /// Text for the shell that has to be a file first; its path is then the last argument.
    pub(crate) script: Option<Bytes>,
}

impl Invocation {
    pub(crate) fn shell(script: &str, arguments: &[&str]) -> Self {
        let words = ["-c", script, "sh"].into_iter().chain(arguments.iter().copied());
        Self { program: SHELL.to_owned(), arguments: words.map(str::to_owned).collect(), script: None }
    }

    pub(crate) fn of(command: &Command) -> Self {
        match command {
            Command::Shell(text) => Self::text(text.clone()),
            Command::Argv(argv) => {
                let words: Option<Vec<String>> =
                    argv.iter().map(|word| word.to_str().map(str::to_owned)).collect();
                match words.as_deref() {
                    Some([program, arguments @ ..]) => {
                        Self { program: program.clone(), arguments: arguments.to_vec(), script: None }
                    }
                    _ => Self::text(spelled(argv)),
                }
            }
        }
    }

    fn text(text: String) -> Self {
        let (arguments, script) = match text.len() < MAX_STRING_BYTES {
            true => (vec!["-c".to_owned(), text], None),
            false => (Vec::new(), Some(text.into())),
        };
        Self { program: SHELL.to_owned(), arguments, script }
    }
}

/// A script that executes words of any bytes. What is no plain letter is spelled in octal; a last letter keeps the
/// newlines that a substitution would strip.
fn spelled(argv: &[OsString]) -> String {
    let mut script = String::new();
    for (index, word) in argv.iter().enumerate() {
        let _ = write!(script, "w{index}=$(printf '");
        for byte in word.as_bytes() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'_' => {
                    script.push(char::from(*byte))
                }
                _ => {
                    let _ = write!(script, "\\{byte:03o}");
                }
            }
        }
        script.push_str("_')\n");
    }
    script.push_str("exec");
    for index in 0..argv.len() {
        let _ = write!(script, " \"${{w{index}%_}}\"");
    }
    script
}

/// The environment of a command, over what the template has.
pub(crate) fn environment(
    session: &[(String, String)],
    request: &ExecRequest,
) -> Result<Vec<(String, String)>, BackendError> {
    let terminal = request.pty.map(|_| ("TERM".to_owned(), "xterm-256color".to_owned()));
    let base: Vec<_> = terminal.into_iter().collect();
    let env = merge_env(&[&base, session, &request.env]);
    match &request.command {
        Command::Argv(argv) => check_start_size(argv, &env)?,
        Command::Shell(_) => check_start_size(&[], &env)?,
    }
    Ok(env)
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    #[test]
    fn text_that_fits_is_an_argument_and_other_text_a_file() {
        let small = Invocation::of(&Command::Shell("echo hi".to_owned()));
        assert_eq!(
            (small.program.as_str(), small.arguments),
            ("/bin/sh", vec!["-c".to_owned(), "echo hi".to_owned()])
        );
        let large = Invocation::of(&Command::Shell("#".repeat(MAX_STRING_BYTES)));
        assert!(large.arguments.is_empty() && large.script.is_some());
    }

    #[test]
    fn words_are_passed_on_as_they_are() {
        let argv = ["printf", "%s", "a b", "$HOME", ""].map(OsString::from).to_vec();
        let plain = Invocation::of(&Command::Argv(argv));
        assert_eq!((plain.program.as_str(), plain.arguments.len()), ("printf", 4));
        assert_eq!(plain.arguments[2], "$HOME");
    }

    /// By this machine's own shell.
    #[test]
    fn words_of_any_bytes_arrive() {
        let odd: [&[u8]; 5] = [b"\xff\xfe", b"line\n\n", b"", b"'\"$(id)\\", "ü".as_bytes()];
        let mut argv = vec![OsString::from("printf"), OsString::from("%s\\0")];
        argv.extend(odd.iter().map(|word| OsString::from_vec(word.to_vec())));
        let made = Invocation::of(&Command::Argv(argv));
        let output = std::process::Command::new(&made.program).args(&made.arguments).output().unwrap();
        let expected: Vec<u8> = odd.iter().flat_map(|word| [word, &b"\0"[..]].concat()).collect();
        assert_eq!(output.stdout, expected, "{}", String::from_utf8_lossy(&output.stderr));
    }
}
