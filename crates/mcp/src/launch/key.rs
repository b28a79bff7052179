//! The name of an environment: a hash of everything that decides what is in it.

use sha2::{Digest as _, Sha256};

/// Collects what decides; the order counts, and so does where one part ends and the next begins.
#[derive(Debug)]
pub(super) struct KeyMaker(Sha256);

/// Raised when the same ingredients give another environment.
const SCHEME: &str = "sandcrate-mcp-environment-1";

impl KeyMaker {
    pub(super) fn new(tool: &str) -> Self {
        let mut maker = Self(Sha256::new());
        maker.add("scheme", SCHEME).add("tool", tool).add("platform", std::env::consts::ARCH);
        maker
    }

    pub(super) fn add(&mut self, label: &str, value: impl AsRef<[u8]>) -> &mut Self {
        for part in [label.as_bytes(), value.as_ref()] {
            self.0.update((part.len() as u64).to_le_bytes());
            self.0.update(part);
        }
        self
    }

    /// Half of the hash: enough for names that nobody else chooses, short enough for `#!` lines.
    pub(super) fn key(&self) -> String {
        self.0.clone().finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ingredient_and_every_border_counts() {
        let key = |parts: &[(&str, &str)]| {
            let mut maker = KeyMaker::new("npm");
            for (label, value) in parts {
                maker.add(label, value);
            }
            maker.key()
        };
        assert_eq!(key(&[("package", "a")]), key(&[("package", "a")]));
        let all = [
            key(&[]),
            key(&[("package", "a")]),
            key(&[("package", "a"), ("package", "")]),
            key(&[("package", "ab")]),
            key(&[("packagea", "b")]),
            key(&[("package", "a"), ("package", "b")]),
            key(&[("package", "b"), ("package", "a")]),
            KeyMaker::new("uv").key(),
        ];
        for (at, one) in all.iter().enumerate() {
            assert_eq!(one.len(), 32);
            assert!(!all[at + 1..].contains(one), "{at}");
        }
    }
}
