//! Makes a program that the caller has outside /usr work in a box: finds what it stands on, as read-only
//! mounts at the same paths, and the directories to put in front of PATH.
//!
//! The program is followed as the kernel would: symbolic links hop by hop, `#!` lines, `env`; version managers'
//! shims are replaced by what they would start. Reads the host only; decides nothing about whether a mount is
//! allowed. What lies in /usr is in every box and adds nothing.

mod root;
mod shim;

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use serde::Serialize;

/// What the search depends on, apart from the file system.
#[derive(Debug, Clone, Default)]
pub(crate) struct Surroundings {
    /// Directories of PATH, absolute ones only: a relative entry means another place in the box.
    pub(crate) path: Vec<PathBuf>,
    pub(crate) cwd: PathBuf,
    pub(crate) home: Option<PathBuf>,
    pub(crate) vars: HashMap<OsString, OsString>,
}

impl Surroundings {
    pub(crate) fn of_this_process() -> Self {
        let vars: HashMap<_, _> = std::env::vars_os().collect();
        let path = vars.get(OsStr::new("PATH")).map(|path| std::env::split_paths(path).collect::<Vec<_>>());
        Self {
            path: path.unwrap_or_default().into_iter().filter(|dir| dir.is_absolute()).collect(),
            cwd: std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/")),
            home: vars.get(OsStr::new("HOME")).map(PathBuf::from).filter(|home| home.is_absolute()),
            vars,
        }
    }

    fn var(&self, name: &str) -> Option<&str> {
        self.vars.get(OsStr::new(name))?.to_str().filter(|value| !value.is_empty())
    }
}

/// One piece of the host that a program stands on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct ToolRoot {
    /// Where it appears in the box: as the program's links and scripts name it.
    pub(crate) path: PathBuf,
    /// The same without symbolic links.
    pub(crate) source: PathBuf,
}

/// What has to be added to a box for one program.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Toolchain {
    pub(crate) roots: Vec<ToolRoot>,
    /// Directories for the front of PATH, in order.
    pub(crate) path: Vec<PathBuf>,
    /// What to start instead of the program as given, when that was the path of a shim.
    pub(crate) program: Option<PathBuf>,
}

/// Links and interpreters that are followed: what the kernel allows is of the same order.
const MAX_HOPS: usize = 40;

/// Finds the toolchain of `program`. One that is found nowhere has none: the box will say so.
pub(crate) fn resolve(program: &OsStr, around: &Surroundings) -> Toolchain {
    let mut search = Search { around, hops: 0, found: Toolchain::default() };
    if program.as_bytes().contains(&b'/') {
        // A relative path is one in the box's workdir, of which the host knows nothing.
        let path = Path::new(program);
        if path.is_absolute() && !root::is_system(path) && is_program(path) {
            match shim::target(path, around) {
                shim::Target::Not => search.follow(path),
                shim::Target::Program(target) => {
                    search.follow(&target);
                    search.found.program = Some(target);
                }
                shim::Target::Unknown => {}
            }
        }
    } else if let Some(found) = look_up(program, around) {
        search.add_to_path(&found);
        search.follow(&found);
    }
    let mut found = search.found;
    root::drop_covered(&mut found.roots);
    found
}

/// Where a program is: the first on PATH, or the path itself; what a shim would start in its place.
pub(crate) fn find(program: &OsStr, around: &Surroundings) -> Option<PathBuf> {
    if !program.as_bytes().contains(&b'/') {
        return look_up(program, around);
    }
    let path = Path::new(program);
    match shim::target(path, around) {
        shim::Target::Not => (path.is_absolute() && is_program(path)).then(|| path.to_owned()),
        shim::Target::Program(target) => Some(target),
        shim::Target::Unknown => None,
    }
}

struct Search<'a> {
    around: &'a Surroundings,
    hops: usize,
    found: Toolchain,
}

impl Search<'_> {
    fn follow(&mut self, path: &Path) {
        self.hops += 1;
        if self.hops > MAX_HOPS {
            return;
        }
        let path = normalised(path);
        self.add_root(&path);
        if let Ok(target) = std::fs::read_link(&path) {
            // The kernel resolves a link's text from the real directory that the link is in.
            let dir = path.parent().and_then(|dir| dir.canonicalize().ok()).unwrap_or_default();
            return self.follow(&dir.join(target));
        }
        let Ok(real) = path.canonicalize() else { return };
        if real != path {
            self.add_root(&real);
        }
        if let Some((interpreter, argument)) = shebang(&real) {
            self.follow(&interpreter);
            if interpreter.file_name() == Some(OsStr::new("env"))
                && let Some(name) = argument.and_then(|argument| env_program(&argument))
                && let Some(found) = look_up(&name, self.around)
            {
                self.add_to_path(&found);
                self.follow(&found);
            }
        }
    }

    fn add_root(&mut self, program: &Path) {
        let Some(path) = root::root_of(program, self.around.home.as_deref()) else { return };
        let Ok(source) = path.canonicalize() else { return };
        let root = ToolRoot { path, source };
        if self.found.roots.contains(&root) {
            return;
        }
        // A virtual environment made with copies has no link to what it was made from, only a note.
        let base = root::venv_base(&root.source);
        self.found.roots.push(root);
        if let Some(bin) = base {
            self.follow(&bin.join("python3"));
        }
    }

    fn add_to_path(&mut self, program: &Path) {
        let Some(dir) = program.parent() else { return };
        if !root::is_on_box_path(dir) && !self.found.path.iter().any(|known| known == dir) {
            self.found.path.push(dir.to_owned());
        }
    }
}

/// The first program of that name on the caller's PATH, with shims replaced by what they start. A shim that
/// leads nowhere does not count, so that the next directory has its turn.
fn look_up(name: &OsStr, around: &Surroundings) -> Option<PathBuf> {
    around.path.iter().map(|dir| dir.join(name)).filter(|path| is_program(path)).find_map(|path| {
        match shim::target(&path, around) {
            shim::Target::Not => Some(path),
            shim::Target::Program(target) => Some(target),
            shim::Target::Unknown => None,
        }
    })
}

fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// Interpreter and the rest of a `#!` line.
fn shebang(path: &Path) -> Option<(PathBuf, Option<OsString>)> {
    // The kernel looks at 256 bytes (BINPRM_BUF_SIZE).
    let mut head = Vec::new();
    std::fs::File::open(path).ok()?.take(256).read_to_end(&mut head).ok()?;
    let line = head.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?.trim_ascii();
    let end = line.iter().position(u8::is_ascii_whitespace).unwrap_or(line.len());
    let interpreter = PathBuf::from(OsStr::from_bytes(&line[..end]));
    let rest = line[end..].trim_ascii();
    let argument = (!rest.is_empty()).then(|| OsStr::from_bytes(rest).to_owned());
    interpreter.is_absolute().then_some((interpreter, argument))
}

/// The program in the arguments of `env`: behind options and assignments.
fn env_program(arguments: &OsStr) -> Option<OsString> {
    arguments
        .as_bytes()
        .split(u8::is_ascii_whitespace)
        .map(|word| word.strip_prefix(b"-S").unwrap_or(word))
        .find(|word| !word.is_empty() && !word.starts_with(b"-") && !word.contains(&b'='))
        .map(|word| OsStr::from_bytes(word).to_owned())
}

/// Without `.` and with `..` folded; links are left alone.
fn normalised(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                clean.pop();
            }
            other => clean.push(other),
        }
    }
    clean
}

#[cfg(test)]
#[path = "toolchain_tests.rs"]
mod tests;
