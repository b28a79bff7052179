//! The command's environment: `-e`, `--env-file`, and PATH with a toolchain in front.
//!
//! Nothing of the caller's environment passes unless it is named. The box adds its own PATH, HOME and LANG.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::Context;
use sandcrate_backend::{RootAccess, check_env, merge_env};
use sandcrate_backend_native::DEFAULT_PATH;

use crate::failure::Failure;

type Variables = Vec<(String, String)>;

/// All variables in the order of precedence: files first, then flags.
pub(crate) fn variables(
    flags: &[OsString],
    files: &[PathBuf],
    inherited: impl Fn(&str) -> Option<OsString>,
) -> anyhow::Result<Variables> {
    let mut variables = Variables::new();
    for file in files {
        let text = std::fs::read_to_string(file).map_err(|error| {
            Failure::invalid(format!("--env-file {}: {error}", file.display()))
                .hint("the file must exist, be readable, and be UTF-8 text with KEY=VALUE lines")
        })?;
        for (index, line) in text.lines().enumerate() {
            let line = line.trim_start();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let place = || format!("--env-file {} line {}", file.display(), index + 1);
            variables.extend(variable(line, &inherited).with_context(place)?);
        }
    }
    for flag in flags {
        let text = flag.to_str().ok_or_else(|| Failure::invalid(format!("--env {flag:?}: must be UTF-8")))?;
        variables.extend(variable(text, &inherited).with_context(|| format!("--env {}", key_of(text)))?);
    }
    Ok(merge_env(&[&variables]))
}

/// One `KEY=VALUE`, or a bare `KEY` with the caller's value; nothing when the caller has none, as docker does.
fn variable(
    text: &str,
    inherited: impl Fn(&str) -> Option<OsString>,
) -> anyhow::Result<Option<(String, String)>> {
    let (key, value) = match text.split_once('=') {
        Some((key, value)) => (key, value.to_owned()),
        None => {
            check_env(text, "")?;
            let Some(value) = inherited(text) else { return Ok(None) };
            let value =
                value.into_string().map_err(|_| Failure::invalid("the caller's value is not UTF-8"))?;
            (text, value)
        }
    };
    check_env(key, &value)?;
    Ok(Some((key.to_owned(), value)))
}

/// The part that may stand in a message: values can be secrets.
fn key_of(text: &str) -> String {
    text.split('=').next().unwrap_or_default().chars().take(80).flat_map(char::escape_debug).collect()
}

/// Puts directories in front of PATH, whoever set it.
pub(super) fn prepend_path(
    variables: &mut Variables,
    dirs: &[PathBuf],
    root: RootAccess,
) -> anyhow::Result<()> {
    if dirs.is_empty() {
        return Ok(());
    }
    // As the box has it: what `pip install --user` puts into HOME comes last.
    let home = match root {
        RootAccess::ReadOnly => "/home/box",
        RootAccess::Writable => "/root",
    };
    let default = format!("{DEFAULT_PATH}:{home}/.local/bin");
    let rest = variables.iter().find(|(key, _)| key == "PATH").map_or(&default, |(_, value)| value);
    let mut path = String::new();
    for dir in dirs {
        path.push_str(utf8(dir)?);
        path.push(':');
    }
    path.push_str(rest);
    variables.retain(|(key, _)| key != "PATH");
    variables.push(("PATH".to_owned(), path));
    Ok(())
}

fn utf8(dir: &Path) -> anyhow::Result<&str> {
    let text = dir.to_str().filter(|text| !text.contains(':'));
    Ok(text.ok_or_else(|| {
        Failure::invalid(format!("the directory {} of the program cannot be put into PATH", dir.display()))
    })?)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn parse(flags: &[&str]) -> anyhow::Result<Variables> {
        let flags: Vec<OsString> = flags.iter().map(OsString::from).collect();
        variables(&flags, &[], |key| (key == "KNOWN").then(|| "caller's".into()))
    }

    fn pair(key: &str, value: &str) -> (String, String) {
        (key.to_owned(), value.to_owned())
    }

    #[test]
    fn values_are_taken_literally_and_bare_keys_inherit() {
        let found = parse(&["A=1", "B==x y", "C=", "KNOWN", "UNKNOWN", "A=2"]).unwrap();
        assert_eq!(found, [pair("A", "2"), pair("B", "=x y"), pair("C", ""), pair("KNOWN", "caller's")]);
    }

    #[test]
    fn a_bad_key_is_named_and_its_value_is_not() {
        let error = format!("{:#}", parse(&["A\nB=secret"]).unwrap_err());
        assert!(error.contains("--env") && error.contains("A\\nB") && !error.contains("secret"), "{error}");
        assert!(parse(&["=x"]).is_err());
        assert!(parse(&[""]).is_err());
    }

    #[test]
    fn files_have_comments_and_flags_win() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        write!(file, "# comment\n\nA=file\n  B=2 # kept\nKNOWN\n").unwrap();
        let files = [file.path().to_owned()];
        let found = variables(&["A=flag".into()], &files, |_| Some("caller's".into())).unwrap();
        assert_eq!(found, [pair("A", "flag"), pair("B", "2 # kept"), pair("KNOWN", "caller's")]);

        writeln!(file, "=broken").unwrap();
        let error = format!("{:#}", variables(&[], &files, |_| None).unwrap_err());
        assert!(error.contains("line 6") && error.contains(&*file.path().to_string_lossy()), "{error}");
        let missing = variables(&[], &["/no/such/file".into()], |_| None).unwrap_err();
        assert!(missing.to_string().contains("--env-file /no/such/file"), "{missing}");
    }

    #[test]
    fn toolchain_directories_lead_path() {
        let mut variables = vec![pair("A", "1")];
        let dirs = ["/opt/x/bin".into(), "/opt/y/bin".into()];
        prepend_path(&mut variables, &dirs, RootAccess::ReadOnly).unwrap();
        let expected = format!("/opt/x/bin:/opt/y/bin:{DEFAULT_PATH}:/home/box/.local/bin");
        assert_eq!(variables[1], pair("PATH", &expected));
        let mut own = vec![pair("PATH", "/mine")];
        prepend_path(&mut own, &dirs[..1], RootAccess::Writable).unwrap();
        assert_eq!(own, [pair("PATH", "/opt/x/bin:/mine")]);
    }
}
