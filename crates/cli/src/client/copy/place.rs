//! The two sides of a copy.

use std::path::PathBuf;

use crate::failure::Failure;

/// Where relative paths of a box start.
const WORKSPACE: &str = "/workspace";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// Standard input or output.
    Standard,
    Local(PathBuf),
    Box {
        session: String,
        /// Absolute; as it was typed otherwise.
        path: String,
    },
}

impl Place {
    pub(super) fn parse(text: &str) -> anyhow::Result<Self> {
        if text == "-" {
            return Ok(Self::Standard);
        }
        if text.is_empty() {
            return Err(Failure::invalid("SRC and DST must not be empty").into());
        }
        if text.starts_with(['/', '.']) {
            return Ok(Self::Local(text.into()));
        }
        // A name may hold colons, so an absolute path is found first.
        let Some((session, path)) = text
            .split_once(":/")
            .map(|(session, _)| (session, &text[session.len() + 1..]))
            .or_else(|| text.rsplit_once(':'))
        else {
            return Ok(Self::Local(text.into()));
        };
        if session.is_empty() {
            return Err(Failure::invalid(format!("`{text}` names no session"))
                .hint("the form is SESSION:PATH")
                .into());
        }
        let path = match path {
            "" => WORKSPACE.to_owned(),
            path if path.starts_with('/') => path.to_owned(),
            path => format!("{WORKSPACE}/{path}"),
        };
        Ok(Self::Box { session: session.to_owned(), path })
    }
}

/// The last name of a path; `None` for one that ends in `.` or `..` or is a root: its content is meant.
pub(super) fn name(path: &str) -> Option<&str> {
    let last = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    (!matches!(last, "" | "." | "..")).then_some(last)
}

/// `dir` and a name in it.
pub(super) fn join(dir: &str, name: &str) -> String {
    format!("{}/{name}", dir.trim_end_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_are_told_apart() {
        let of_box =
            |session: &str, path: &str| Place::Box { session: session.to_owned(), path: path.to_owned() };
        for (text, expected) in [
            ("-", Place::Standard),
            ("a.txt", Place::Local("a.txt".into())),
            ("/a:b", Place::Local("/a:b".into())),
            ("./a:b", Place::Local("./a:b".into())),
            ("demo:/workspace/a", of_box("demo", "/workspace/a")),
            ("demo:/", of_box("demo", "/")),
            ("lb:user:42:/a:/b", of_box("lb:user:42", "/a:/b")),
            ("demo:a/b", of_box("demo", "/workspace/a/b")),
            ("demo:", of_box("demo", "/workspace")),
            ("demo:./x/.", of_box("demo", "/workspace/./x/.")),
        ] {
            assert_eq!(Place::parse(text).unwrap(), expected, "{text}");
        }
        for text in ["", ":/a", ":x"] {
            assert!(Place::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn names_are_those_of_the_last_segment() {
        for (path, expected) in [
            ("/a/b", Some("b")),
            ("/a/b/", Some("b")),
            ("/a/.", None),
            ("/a/..", None),
            ("/", None),
            ("x", Some("x")),
        ] {
            assert_eq!(name(path), expected, "{path}");
        }
        assert_eq!(join("/", "a"), "/a");
        assert_eq!(join("/x/", "a"), "/x/a");
    }
}
