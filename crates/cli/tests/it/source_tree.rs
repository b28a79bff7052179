//! The repository as files.

use std::path::{Path, PathBuf};

/// The workspace's root.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Every Rust file of the project, relative to the root.
pub(crate) fn rust_files() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for dir in ["crates", "tests", "bench"] {
        walk(&root().join(dir), &mut found);
    }
    assert!(found.len() > 20, "the walk found next to nothing: {found:?}");
    found.iter().map(|path| path.strip_prefix(root()).unwrap().to_owned()).collect()
}

fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() && !path.ends_with("target") {
            walk(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}
