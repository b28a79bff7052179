//! Unsafe code stands in `sys`, and in the test-only `probe`.

use crate::source_tree::{root, rust_files};

#[test]
fn no_unsafe_outside_sys_and_probe() {
    let mut found = Vec::new();
    for path in rust_files()
        .iter()
        .filter(|path| !path.starts_with("crates/sys") && !path.starts_with("crates/probe"))
    {
        let text = std::fs::read_to_string(root().join(path)).unwrap();
        let lines = code_of(&text);
        found.extend(
            lines
                .lines()
                .enumerate()
                .filter(|(_, line)| has_unsafe(line))
                .map(|(index, _)| format!("{}:{}", path.display(), index + 1)),
        );
    }
    assert!(found.is_empty(), "{found:#?}");
}

/// The keyword, not `unsafe_code` or another name that holds it.
fn has_unsafe(line: &str) -> bool {
    line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "unsafe")
}

/// The text with comments and string literals blanked; line ends stay.
fn code_of(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if rest.starts_with("r#\"") {
            rest.find("\"#").map_or(rest.len(), |end| end + 2)
        } else if next == '"' {
            string_end(rest)
        } else if rest.starts_with("'\"'") {
            3
        } else {
            code.push(next);
            rest = &rest[next.len_utf8()..];
            continue;
        };
        code.extend(rest[..skipped].chars().filter(|c| *c == '\n'));
        code.push(' ');
        rest = &rest[skipped..];
    }
    code
}

fn string_end(text: &str) -> usize {
    let mut escaped = false;
    for (index, c) in text.char_indices().skip(1) {
        match c {
            '\\' if !escaped => escaped = true,
            '"' if !escaped => return index + 1,
            _ => escaped = false,
        }
    }
    text.len()
}

#[test]
fn comments_and_strings_do_not_count() {
    let text =
        "// unsafe\nlet x = \"an \\\" unsafe\";\n/* unsafe\n */ unsafe_code();\nlet q = '\"'; unsafe {}\n";
    let lines: Vec<_> = code_of(text).lines().map(has_unsafe).collect();
    assert_eq!(lines, [false, false, false, false, true]);
}
