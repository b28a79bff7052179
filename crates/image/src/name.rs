//! Names of images: what container engines accept as a reference, so that a session's `image` can be one as it is.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::ImageError;

/// A name such as `python`, `rockchin/langbot-sandbox:latest` or `registry.example:5000/a/b@sha256:…`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ImageName(String);

/// Leaves room for the file name that is made of it.
const MAX_BYTES: usize = 160;

impl ImageName {
    pub fn new(name: impl Into<String>) -> Result<Self, ImageError> {
        let name = name.into();
        let rule = if name.is_empty() {
            "must not be empty"
        } else if name.len() > MAX_BYTES {
            "must be at most 160 bytes"
        } else if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-/:@+".contains(&byte)) {
            "may have letters, digits and ._-/:@+ only"
        } else if !name.starts_with(|first: char| first.is_ascii_alphanumeric()) {
            "must begin with a letter or a digit"
        } else if name.ends_with(['/', ':', '@'])
            || name.split('/').any(|part| matches!(part, "" | "." | ".."))
        {
            "must not have empty parts, `.` or `..`"
        } else {
            return Ok(Self(name));
        };
        let shown = crate::error::shown(name.as_bytes());
        Err(ImageError::InvalidName { name: shown, rule })
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// One file name for each name, and none for two.
    pub(crate) fn file_name(&self) -> String {
        // Neither `%` nor any of these is left as it is, so nothing collides.
        let escaped = self.0.replace('/', "%2F").replace(':', "%3A").replace('@', "%40");
        format!("{escaped}.json")
    }
}

impl fmt::Display for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_of_engines_are_names_and_paths_are_not() {
        for good in
            ["python", "rockchin/langbot-sandbox:latest", "r.example:5000/a/b", "a@sha256:00ff", "a+b"]
        {
            assert_eq!(ImageName::new(good).unwrap().as_str(), good);
        }
        for bad in [
            "",
            "-v",
            "/etc",
            "a/../b",
            "a//b",
            "a b",
            "a\n",
            "ä",
            "a/",
            ".hidden",
            "a%2Fb",
            &"x".repeat(161),
        ] {
            assert!(ImageName::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn no_two_names_have_one_file() {
        let files: std::collections::BTreeSet<_> = ["a/b", "a:b", "a@b", "a.b", "a-b"]
            .iter()
            .map(|name| ImageName::new(*name).unwrap().file_name())
            .collect();
        assert_eq!(files.len(), 5);
        assert!(files.iter().all(|file| !file.contains('/')));
    }
}
