//! The sandbox's side of a share: what is there, and changes to it, by small scripts.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::host::{LEADS_OUT, is_plain, over_total, stays_inside, too_large};
use super::report::Report;
use super::{FILE_BYTES, MAX_ENTRIES, TOTAL_BYTES};
use crate::envd::{Envd, User};
use crate::helper;
use crate::http::EndpointError;

/// Type, size, times, mode, link and path of everything, with a NUL after each. Times are exact: a file that is
/// written again within a second has another.
const SCAN: &str = r#"if [ -d "$1" ]; then cd -- "$1" && find . -mindepth 1 -printf '%y\0%s\0%T@\0%C@\0%m\0%l\0%P\0'
elif [ -e "$1" ]; then find "$1" -printf '%y\0%s\0%T@\0%C@\0%m\0\0\0'; fi | head -c 8000000"#;
/// Removes, makes and links what the input names.
const REMOVE: &str = r#"cd -- "$1" && xargs -0 rm -rf --"#;
const MAKE: &str = r#"mkdir -p -- "$1" && cd -- "$1" && xargs -0 mkdir -p --"#;
const LINK: &str = r#"cd -- "$1" && xargs -0 -n 2 ln -sfn --"#;
const EXECUTABLE: &str = r#"cd -- "$1" && xargs -0 chmod a+x --"#;
const PLAIN: &str = r#"cd -- "$1" && xargs -0 chmod a-x --"#;
const SEAL: &str = r#"cd -- "$1" && xargs -0 chmod a-w --"#;
const UNSEAL: &str = r#"cd -- "$1" && xargs -0 chmod -f u+w --; true"#;
const FIELDS: usize = 7;

/// What a path is in the sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Node {
    Directory,
    File { bytes: u64, modified: String, changed: String, executable: bool },
    Link { target: String },
}

#[derive(Debug, Default)]
pub(super) struct Tree {
    pub(super) nodes: BTreeMap<String, Node>,
    /// Not all of it: what is missing may be there.
    pub(super) cut: bool,
    /// Bytes of all files, whether or not they can be copied.
    pub(super) bytes: u64,
    /// There, and left out.
    pub(super) skipped: Vec<String>,
}

/// A share's place in a sandbox.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) envd: &'a Envd,
    pub(super) path: &'a str,
}

impl Place<'_> {
    pub(super) async fn scan(&self, hidden: &[String], report: &mut Report) -> Result<Tree, EndpointError> {
        let output = self.run(SCAN, Bytes::new()).await?;
        Ok(read_scan(&output, hidden, report))
    }

    async fn run(&self, script: &str, input: Bytes) -> Result<Bytes, EndpointError> {
        helper::run(self.envd, User::Default, script, &[self.path], input).await?.succeeded()
    }

    /// One script for all names; none for none.
    async fn over(&self, script: &str, names: &[String]) -> Result<(), EndpointError> {
        if names.is_empty() {
            return Ok(());
        }
        // A name that begins with a dash is one all the same.
        let input: String = names.iter().flat_map(|name| [name.as_str(), "\0"]).collect();
        self.run(script, input.into()).await.map(drop)
    }

    pub(super) async fn remove(&self, paths: &[String]) -> Result<(), EndpointError> {
        self.over(REMOVE, paths).await
    }

    pub(super) async fn make_directories(&self, paths: &[String]) -> Result<(), EndpointError> {
        self.over(MAKE, paths).await
    }

    /// Targets and paths in turns.
    pub(super) async fn make_links(&self, pairs: &[String]) -> Result<(), EndpointError> {
        self.over(LINK, pairs).await
    }

    pub(super) async fn set_executable(
        &self,
        paths: &[String],
        executable: bool,
    ) -> Result<(), EndpointError> {
        self.over(if executable { EXECUTABLE } else { PLAIN }, paths).await
    }

    /// Against accidents: it is a copy, and whoever owns it can undo this.
    pub(super) async fn seal(&self, paths: &[String], sealed: bool) -> Result<(), EndpointError> {
        self.over(if sealed { SEAL } else { UNSEAL }, paths).await
    }
}

fn read_scan(output: &[u8], hidden: &[String], report: &mut Report) -> Tree {
    let mut tree = Tree::default();
    let mut fields = output.split(|byte| *byte == 0).peekable();
    let mut total = 0_u64;
    loop {
        let record: Vec<&[u8]> = fields.by_ref().take(FIELDS).collect();
        // After the last NUL there is one empty field, or a part of a record that did not fit.
        let [kind, bytes, modified, changed, mode, link, path] = record[..] else {
            tree.cut |= record.iter().any(|field| !field.is_empty());
            return tree;
        };
        if fields.peek().is_none() {
            tree.cut = true;
            return tree;
        }
        let Ok(path) = std::str::from_utf8(path) else {
            report.skipped(&String::from_utf8_lossy(path), "its name is not UTF-8");
            continue;
        };
        if hidden.iter().any(|hidden| {
            path == hidden || path.strip_prefix(hidden.as_str()).is_some_and(|rest| rest.starts_with('/'))
        }) {
            continue;
        }
        if !path.is_empty() && !is_plain(path) {
            report.skipped(path, "its name cannot be used on the host");
            continue;
        }
        if tree.nodes.len() >= MAX_ENTRIES {
            report.skipped("the rest", &format!("there are more than {MAX_ENTRIES} files"));
            tree.cut = true;
            return tree;
        }
        let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
        let mut skip = |why: &str, tree: &mut Tree| {
            report.skipped(path, why);
            tree.skipped.push(path.to_owned());
        };
        let node = match kind {
            b"d" => Node::Directory,
            b"f" => {
                let bytes = text(bytes).parse::<u64>().unwrap_or(u64::MAX);
                tree.bytes = tree.bytes.saturating_add(bytes);
                if bytes > FILE_BYTES {
                    skip(&too_large(bytes), &mut tree);
                    continue;
                }
                if total + bytes > TOTAL_BYTES {
                    skip(&over_total(), &mut tree);
                    continue;
                }
                total += bytes;
                let mode = u32::from_str_radix(&text(mode), 8).unwrap_or(0);
                Node::File {
                    bytes,
                    modified: text(modified),
                    changed: text(changed),
                    executable: mode & 0o111 != 0,
                }
            }
            b"l" => match std::str::from_utf8(link) {
                Ok(target) if stays_inside(path, target) => Node::Link { target: target.to_owned() },
                _ => {
                    skip(LEADS_OUT, &mut tree);
                    continue;
                }
            },
            _ => {
                skip("it is neither a file, a directory nor a link", &mut tree);
                continue;
            }
        };
        tree.nodes.insert(path.to_owned(), node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: &str, bytes: u64, path: &str, link: &str) -> String {
        format!("{kind}\0{bytes}\x001.5\x002.5\x00755\0{link}\0{path}\0")
    }

    #[test]
    fn a_listing_is_read_and_hostile_names_are_left_out() {
        let mut report = Report::default();
        let text = [
            record("f", 3, "a", ""),
            record("d", 0, "d", ""),
            record("f", 4, "d/line\nline", ""),
            record("f", 1, "../up", ""),
            record("f", 1, "/etc/passwd", ""),
            record("f", 1, "d/../../x", ""),
            record("l", 1, "in", "d"),
            record("l", 1, "out", "/etc"),
            record("p", 0, "fifo", ""),
            record("f", FILE_BYTES + 1, "large", ""),
            record("f", 1, "other/share", ""),
        ]
        .concat();
        let tree = read_scan(text.as_bytes(), &["other".to_owned()], &mut report);
        assert_eq!(
            tree.nodes.keys().map(String::as_str).collect::<Vec<_>>(),
            ["a", "d", "d/line\nline", "in"]
        );
        assert!(!tree.cut && tree.skipped == ["out", "fifo", "large"]);
        assert_eq!(tree.bytes, 3 + 4 + FILE_BYTES + 1);
        let text = report.text().unwrap();
        for name in ["../up", "/etc/passwd", "d/../../x", "out", "fifo", "large"] {
            assert!(text.contains(name), "{name} is not told: {text}");
        }
    }

    #[test]
    fn a_listing_that_was_cut_says_so() {
        let whole = record("f", 3, "a", "") + &record("f", 3, "b", "");
        for cut in [1, 5, 12, whole.len() / 2 + 3, whole.len() - 1] {
            assert!(read_scan(&whole.as_bytes()[..cut], &[], &mut Report::default()).cut, "{cut}");
        }
        assert!(!read_scan(whole.as_bytes(), &[], &mut Report::default()).cut);
        let many: String =
            (0..MAX_ENTRIES + 5).map(|number| record("f", 1, &number.to_string(), "")).collect();
        let tree = read_scan(many.as_bytes(), &[], &mut Report::default());
        assert!(tree.cut && tree.nodes.len() == MAX_ENTRIES);
    }
}
