//! An image made of programs of this host, so that no registry is needed: a shell, coreutils, python.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

const PROGRAMS: [&str; 40] = [
    "sh", "cat", "ls", "head", "tail", "wc", "seq", "sleep", "mkdir", "chmod", "ln", "mkfifo", "touch",
    "printf", "env", "date", "stty", "id", "tr", "rm", "rmdir", "mv", "cp", "yes", "true", "false", "pwd",
    "echo", "test", "setsid", "dd", "stat", "kill", "python3", "[", "tty", "sort", "uname", "du", "readlink",
];

/// Makes a tar of a small root below `scratch`.
pub(crate) fn build(scratch: &Path) -> io::Result<Vec<u8>> {
    let root = scratch.join("root");
    for directory in [
        "usr/bin",
        "usr/sbin",
        "usr/lib",
        "usr/lib64",
        "usr/local/bin",
        "etc",
        "tmp",
        "proc",
        "sys",
        "dev",
        "root",
        "var",
        "opt",
        "run",
    ] {
        fs::create_dir_all(root.join(directory))?;
    }
    for (link, target) in
        [("bin", "usr/bin"), ("sbin", "usr/sbin"), ("lib", "usr/lib"), ("lib64", "usr/lib64")]
    {
        symlink(target, root.join(link))?;
    }
    fs::write(root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n")?;
    fs::write(root.join("etc/hosts"), "127.0.0.1 localhost\n")?;
    let mut files: BTreeSet<PathBuf> = BTreeSet::new();
    for program in PROGRAMS {
        let found = which(program)?;
        copy(&found.canonicalize()?, &root.join("usr/bin").join(program))?;
        files.extend(libraries(&found)?);
    }
    // The test program is the guest.
    files.extend(libraries(&std::env::current_exe()?)?);
    let stdlib =
        output(&text(&which("python3")?), &["-c", "import sysconfig; print(sysconfig.get_path('stdlib'))"])?;
    let stdlib = PathBuf::from(stdlib.trim());
    copy_tree(&stdlib, &root.join(stdlib.strip_prefix("/").map_err(io::Error::other)?))?;
    for file in files {
        copy(&file.canonicalize()?, &root.join(file.strip_prefix("/").map_err(io::Error::other)?))?;
    }
    let tar = scratch.join("root.tar");
    run("tar", &["-C", &text(&root), "-cf", &text(&tar), "."])?;
    fs::read(tar)
}

/// A tar with nothing that a program linked to a C library could run on.
pub(crate) fn build_without_libraries(scratch: &Path) -> io::Result<Vec<u8>> {
    let root = scratch.join("bare");
    for directory in ["bin", "etc", "tmp", "proc", "sys", "dev", "root"] {
        fs::create_dir_all(root.join(directory))?;
    }
    copy(&which("busybox")?, &root.join("bin/busybox"))?;
    let tar = scratch.join("bare.tar");
    run("tar", &["-C", &text(&root), "-cf", &text(&tar), "."])?;
    fs::read(tar)
}

fn which(program: &str) -> io::Result<PathBuf> {
    let places = ["/usr/bin", "/bin", "/usr/sbin", "/sbin"];
    let found = places.iter().map(|place| Path::new(place).join(program)).find(|path| path.exists());
    found.ok_or_else(|| io::Error::other(format!("{program} is not on this host")))
}

/// What the loader would load, with the loader itself.
fn libraries(program: &Path) -> io::Result<Vec<PathBuf>> {
    let out = Command::new("ldd").arg(program).output()?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    Ok(text
        .split_ascii_whitespace()
        .filter(|word| word.starts_with('/') && !word.ends_with(':'))
        .map(PathBuf::from)
        .collect())
}

fn copy_tree(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let name = entry.file_name();
        let skipped =
            ["test", "site-packages", "dist-packages", "__pycache__", "idlelib", "tkinter", "ensurepip"];
        if skipped.iter().any(|skip| name == *skip) || name.to_string_lossy().starts_with("config-") {
            continue;
        }
        match entry.file_type()? {
            kind if kind.is_dir() => copy_tree(&entry.path(), &to.join(name))?,
            kind if kind.is_file() => copy(&entry.path(), &to.join(name))?,
            _ => {}
        }
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::copy(from, to)?;
    let mode = fs::metadata(from)?.permissions().mode() & 0o755;
    fs::set_permissions(to, fs::Permissions::from_mode(mode | 0o444))
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

fn output(program: &str, arguments: &[&str]) -> io::Result<String> {
    let out = Command::new(program).args(arguments).output()?;
    match out.status.success() {
        true => Ok(String::from_utf8_lossy(&out.stdout).into_owned()),
        false => Err(io::Error::other(format!("{program}: {}", String::from_utf8_lossy(&out.stderr)))),
    }
}

fn run(program: &str, arguments: &[&str]) -> io::Result<()> {
    output(program, arguments).map(drop)
}
