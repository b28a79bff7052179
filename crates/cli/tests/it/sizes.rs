//! No source file grows beyond what one can hold in mind.

use crate::source_tree::{root, rust_files};

const MAX_LINES: usize = 800;

/// Files that may be longer, each with its reason.
const EXEMPT: [(&str, &str); 0] = [];

#[test]
fn no_file_is_longer_than_800_lines() {
    let mut long = Vec::new();
    for path in rust_files() {
        let lines = std::fs::read_to_string(root().join(&path)).unwrap().lines().count();
        let exempt = EXEMPT.iter().any(|(known, _)| path == std::path::Path::new(known));
        if lines > MAX_LINES && !exempt {
            long.push(format!("{}: {lines} lines", path.display()));
        }
    }
    assert!(long.is_empty(), "split these, or exempt them with a reason: {long:#?}");
}

#[test]
fn every_exemption_is_still_needed() {
    for (path, reason) in EXEMPT {
        let lines = std::fs::read_to_string(root().join(path)).map_or(0, |text| text.lines().count());
        assert!(lines > MAX_LINES, "{path} ({reason}) has {lines} lines: drop the exemption");
    }
}
