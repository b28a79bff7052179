//! `-v SRC:DST[:ro]`: parsed, resolved on the host and checked against the rules before anything starts.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use sandcrate_backend::{BackendError, Mount, MountAccess, check_target, refused_source};
use sandcrate_protocol::ErrorKind;

use crate::failure::Failure;

/// One mount out of a flag. `own_state` are directories of ours that no box may see.
pub(crate) fn mount(flag: &OsStr, cwd: &Path, own_state: &[PathBuf]) -> anyhow::Result<Mount> {
    let (source, target, access) = split(flag)?;
    let place = || format!("--volume {}", flag.display());
    let target = check_target(target).with_context(place)?;
    let source = source_of(&cwd.join(source), own_state).with_context(place)?;
    Ok(Mount::new(source, target, access))
}

/// Source, target and mode as a server is asked for them. The source is the server's to check: it may be
/// another user's, or one that only the server sees.
pub(crate) fn request(flag: &OsStr, cwd: &Path) -> anyhow::Result<(String, String, &'static str)> {
    let (source, target, access) = split(flag)?;
    let target = check_target(target).with_context(|| format!("--volume {}", flag.display()))?;
    let source = cwd.join(source);
    // Without `.` and links where we can see it, as it stands where we cannot.
    let source = source.canonicalize().unwrap_or(source);
    let problem = || Failure::invalid(format!("--volume {}: the source must be UTF-8", flag.display()));
    let source = source.into_os_string().into_string().map_err(|_| problem())?;
    Ok((source, target, mode(access)))
}

/// The flag with a source that is the same from everywhere: a relative one starts at `cwd`.
pub(crate) fn absolute(flag: &str, cwd: &Path) -> anyhow::Result<String> {
    let (source, ..) = split(OsStr::new(flag))?;
    if source.is_absolute() {
        return Ok(flag.to_owned());
    }
    let found = source_of(&cwd.join(source), &[]).with_context(|| format!("--volume {flag}"))?;
    let found = found
        .to_str()
        .ok_or_else(|| Failure::invalid(format!("--volume {flag}: the source must be UTF-8")))?;
    Ok(format!("{found}{}", &flag[source.as_os_str().len()..]))
}

/// As a request for a session writes it.
pub(crate) fn mode(access: MountAccess) -> &'static str {
    match access {
        MountAccess::ReadOnly => "ro",
        MountAccess::ReadWrite => "rw",
    }
}

/// The source without links, when it is there and allowed.
pub(crate) fn source_of(path: &Path, own_state: &[PathBuf]) -> anyhow::Result<PathBuf> {
    let canonical = path.canonicalize().map_err(|error| {
        let missing = error.kind() == std::io::ErrorKind::NotFound;
        let problem = if missing { "does not exist".to_owned() } else { format!("cannot be used: {error}") };
        let hint = if missing {
            "create it first; sandcrate does not make host directories"
        } else {
            "check the permissions of the path"
        };
        Failure::new(ErrorKind::Validation, format!("host path `{}` {problem}", path.display())).hint(hint)
    })?;
    match refused_source(&canonical, own_state) {
        None => Ok(canonical),
        Some(rule) if canonical == path => Err(BackendError::MountDenied { path: canonical, rule }.into()),
        Some(rule) => {
            let rule = format!("it leads to `{}`, and {rule}", canonical.display());
            Err(BackendError::MountDenied { path: path.to_owned(), rule }.into())
        }
    }
}

/// From the right, because a path may hold colons on the left of the last absolute one.
fn split(flag: &OsStr) -> anyhow::Result<(&Path, &str, MountAccess)> {
    let malformed = |why: &str| {
        Failure::invalid(format!("--volume `{}`: {why}", flag.display())).hint(
            "the form is SRC:DST or SRC:DST:ro, such as `-v ./data:/data:ro`; DST is absolute, in the box",
        )
    };
    let text = flag.as_bytes();
    let (text, access) = match (text.strip_suffix(b":ro"), text.strip_suffix(b":rw")) {
        (Some(rest), _) => (rest, MountAccess::ReadOnly),
        (_, Some(rest)) => (rest, MountAccess::ReadWrite),
        _ => (text, MountAccess::ReadWrite),
    };
    let colon = text.iter().rposition(|byte| *byte == b':').ok_or_else(|| malformed("has no `:`"))?;
    let target =
        std::str::from_utf8(&text[colon + 1..]).map_err(|_| malformed("the target must be UTF-8"))?;
    if colon == 0 {
        return Err(malformed("the source is empty").into());
    }
    if !target.starts_with('/') {
        return Err(
            malformed("the target must be an absolute path, and the only options are `ro` and `rw`").into()
        );
    }
    Ok((Path::new(OsStr::from_bytes(&text[..colon])), target, access))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Shown;

    fn parse(flag: &str, cwd: &Path) -> anyhow::Result<Mount> {
        mount(OsStr::new(flag), cwd, &[])
    }

    #[test]
    fn relative_sources_start_at_the_current_directory() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap();
        std::fs::create_dir(real.join("da:ta")).unwrap();
        let found = parse(".:/workspace", &real).unwrap();
        assert_eq!((found.source, found.access), (real.clone(), MountAccess::ReadWrite));
        let found = parse("da:ta:/data/./x/:ro", &real).unwrap();
        assert_eq!((found.source, found.access), (real.join("da:ta"), MountAccess::ReadOnly));
        assert_eq!(found.target, "/data/x");
        let shown = real.display();
        assert_eq!(absolute(".:/workspace", &real).unwrap(), format!("{shown}:/workspace"));
        assert_eq!(absolute("da:ta:/data:ro", &real).unwrap(), format!("{shown}/da:ta:/data:ro"));
        assert_eq!(absolute("/x:/y", &real).unwrap(), "/x:/y");
    }

    #[test]
    fn every_refusal_names_the_path_and_the_rule() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/etc", dir.path().join("link")).unwrap();
        for (flag, words) in [
            ("./none:/x", vec!["none", "does not exist"]),
            ("/etc:/x", vec!["`/etc`", "belongs to the host's system"]),
            ("/:/x", vec!["`/`", "never shared"]),
            ("./link:/x", vec!["link", "leads to `/etc`", "belongs to the host's system"]),
            (".:/proc/x", vec!["--volume", "`/proc/x` is reserved"]),
            (".:/", vec!["--volume", "must not be the root"]),
            (".:/a/../b", vec!["/a/../b", "`..`"]),
            ("nocolon", vec!["nocolon", "has no `:`"]),
            (":/x", vec!["source is empty"]),
            (".:rel", vec!["absolute path"]),
            (".:/x:rx", vec!["`ro` and `rw`"]),
        ] {
            let shown = Shown::of(&parse(flag, dir.path()).unwrap_err());
            for word in words {
                assert!(shown.message.contains(word), "{flag}: `{word}` is not in: {}", shown.message);
            }
            assert_eq!(shown.exit_code(), 125, "{flag}");
        }
    }

    #[test]
    fn our_own_state_is_refused_from_above_and_below() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap();
        std::fs::create_dir_all(real.join("state/x")).unwrap();
        for flag in [".:/x", "state:/x", "state/x:/x"] {
            let error = mount(OsStr::new(flag), &real, &[real.join("state")]).unwrap_err();
            assert!(format!("{error:#}").contains("Sandcrate's own state"), "{flag}: {error:#}");
        }
    }
}
