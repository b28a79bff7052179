//! Paths of the host, and what they are called in a box.
//!
//! Of a path that is rewritten only the directory is resolved. The interpreter of a virtual environment is a link
//! to one of the system, and following it would lead out of the project it belongs to.

use std::path::{Component, Path, PathBuf};

const VENV_NAMES: [&str; 4] = [".venv", "venv", "env", ".env"];
const BIN_NAMES: [&str; 2] = ["bin", "Scripts"];
/// Where programs of the system are: no project lives there.
const SYSTEM_BINS: [&str; 12] = [
    "/bin",
    "/sbin",
    "/usr/bin",
    "/usr/sbin",
    "/usr/local/bin",
    "/usr/local/sbin",
    "/usr/games",
    "/snap/bin",
    "/opt/bin",
    "/opt/homebrew/bin",
    "/opt/local/bin",
    "/run/current-system/sw/bin",
];

/// Absolute, without `.` and `..`, without links as far as it exists; empty for a blank text.
pub fn normalize(path: &str) -> String {
    let path = path.trim();
    if path.is_empty() { String::new() } else { text(&real(Path::new(path))) }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Without `.` and `..`, by the text alone.
fn lexical(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                plain.pop();
            }
            part => plain.push(part),
        }
    }
    plain
}

/// The path without links, as far as it exists.
fn real(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    if let Ok(known) = path.canonicalize() {
        return known;
    }
    let path = lexical(&path);
    let known = path.ancestors().find_map(|known| {
        let below = path.strip_prefix(known).ok()?;
        Some(known.canonicalize().ok()?.join(below))
    });
    known.unwrap_or(path)
}

/// The path with its directory resolved and its own name left as it is.
fn in_real_directory(path: &Path) -> PathBuf {
    let path = lexical(path);
    match (path.parent(), path.file_name()) {
        (Some(directory), Some(name)) => real(directory).join(name),
        _ => path,
    }
}

/// What is left of a path below a directory; empty when it is that directory.
fn below(path: &Path, host: &Path) -> Option<PathBuf> {
    if real(path) == *host {
        return Some(PathBuf::new());
    }
    in_real_directory(path).strip_prefix(host).ok().map(Path::to_owned)
}

/// The name in the box of a path at or below `host`; any other text unchanged, a relative path too.
pub fn rewrite_mounted_path(path: &str, host: &str, mount: &str) -> String {
    if host.trim().is_empty() || !path.starts_with('/') {
        return path.to_owned();
    }
    let Some(rest) = below(Path::new(path), &real(Path::new(host.trim()))) else { return path.to_owned() };
    if rest.as_os_str().is_empty() {
        return mount.to_owned();
    }
    format!("{}/{}", mount.trim_end_matches('/'), rest.display())
}

/// The same for an argument: an absolute path, or one after `--name=`.
pub fn rewrite_argument(argument: &str, host: &str, mount: &str) -> String {
    if argument.starts_with("--")
        && let Some((name, value)) = argument.split_once('=')
        && value.starts_with('/')
    {
        return format!("{name}={}", rewrite_mounted_path(value, host, mount));
    }
    rewrite_mounted_path(argument, host, mount)
}

/// The directory that holds the virtual environment in which `directory` is; any other unchanged.
///
/// ```
/// use sandcrate_host::workspace::unwrap_venv_path;
///
/// assert_eq!(unwrap_venv_path("/a/.venv/bin"), "/a");
/// assert_eq!(unwrap_venv_path("/a/.venv/lib"), "/a/.venv/lib");
/// ```
pub fn unwrap_venv_path(directory: &str) -> String {
    let slashes = directory.replace('\\', "/");
    let parts: Vec<&str> = slashes.split('/').collect();
    let last = (1..parts.len())
        .rev()
        .find(|&at| BIN_NAMES.contains(&parts[at]) && VENV_NAMES.contains(&parts[at - 1]));
    let Some(at) = last else { return directory.to_owned() };
    let before = parts[..at - 1].join("/");
    if before.is_empty() { "/".to_owned() } else { before }
}

/// The directory that a command and its arguments are about: the longest that holds every absolute, existing one.
///
/// Programs of the system say nothing of a project and do not count; neither does what is outside the `roots`, if
/// there are any.
pub fn infer_host_path(command: &str, args: &[String], roots: &[PathBuf]) -> Option<String> {
    let roots: Vec<PathBuf> = roots.iter().map(|root| real(root)).collect();
    let named = std::iter::once(command).chain(args.iter().map(String::as_str));
    let directories =
        named.filter(|path| path.starts_with('/') && Path::new(path).exists()).filter_map(|path| {
            let directory = lexical(Path::new(path)).parent()?.to_owned();
            let project = real(Path::new(&unwrap_venv_path(&text(&directory))));
            let of_system = [&directory, &project]
                .iter()
                .any(|place| SYSTEM_BINS.iter().any(|bin| place.as_path() == Path::new(bin)));
            let allowed = roots.is_empty() || roots.iter().any(|root| project.starts_with(root));
            (!of_system && allowed).then_some(project)
        });
    let common = directories.reduce(|one, other| {
        one.components().zip(other.components()).take_while(|(a, b)| a == b).map(|(part, _)| part).collect()
    })?;
    (common != Path::new("/")).then(|| text(&common))
}

/// A command in the box: `python` for the interpreter of the project's own environment, which is not taken along;
/// else its rewritten path.
pub fn rewrite_venv_command(command: &str, host: &str, mount: &str) -> String {
    if host.trim().is_empty() || !command.starts_with('/') {
        return command.to_owned();
    }
    let Some(rest) = below(Path::new(command), &real(Path::new(host.trim()))) else {
        return command.to_owned();
    };
    let names: Vec<_> = rest.iter().map(|part| part.to_string_lossy()).collect();
    if let [venv, bin, name, ..] = names.as_slice()
        && VENV_NAMES.contains(&venv.as_ref())
        && BIN_NAMES.contains(&bin.as_ref())
        && name.starts_with("python")
    {
        return "python".to_owned();
    }
    rewrite_mounted_path(command, host, mount)
}

#[cfg(test)]
#[path = "path_tests.rs"]
mod tests;
