//! Names of what belongs to one workspace of a LangBot: its sessions, its files, its skills.
//!
//! Clients compute the same names, byte for byte: relays are opened by them. A session of the table belongs to a
//! workspace exactly when its id has this form; callers that know of no workspaces cannot make or see such ids.

use sha2::{Digest, Sha256};

use crate::RuntimeError;

/// Hexadecimal digits of the hash that stand in a name.
const HASH_CHARS: usize = 24;
const MARK: &str = "ws-";

/// One generation of one workspace.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Placement {
    workspace: String,
    generation: u64,
}

impl Placement {
    pub fn new(instance: &str, workspace: &str, generation: u64) -> Self {
        let mut hash = Sha256::new();
        hash.update(instance.trim().as_bytes());
        hash.update([0]);
        hash.update(workspace.trim().as_bytes());
        let digits: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Self { workspace: format!("{MARK}{}", &digits[..HASH_CHARS]), generation }
    }

    /// The workspace's own name, the same in every generation. One directory name.
    pub fn workspace(&self) -> &str {
        &self.workspace
    }

    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// What ids of its sessions begin with.
    pub fn prefix(&self) -> String {
        format!("{}-g{}-", self.workspace, self.generation)
    }

    /// The id in the table for one of a caller. Ids that differ in what cannot stand in a name are the same one, as
    /// LangBot has it.
    pub fn physical(&self, logical: &str) -> Result<String, RuntimeError> {
        let mut name = String::new();
        for char in logical.trim().chars() {
            match char {
                'A'..='Z' | 'a'..='z' | '0'..='9' | '_' | '.' | '-' => name.push(char),
                // A run of others is one dash.
                _ if name.ends_with(OTHER) => {}
                _ => name.push(OTHER),
            }
        }
        let name = name.replace(OTHER, "-");
        match name.trim_matches('-') {
            "" => Err(RuntimeError::invalid("session_id", "must contain a letter, a digit, `_` or `.`")),
            name => Ok(format!("{}{name}", self.prefix())),
        }
    }

    /// The caller's id again; that of another placement is left as it is.
    pub fn logical<'a>(&self, physical: &'a str) -> &'a str {
        physical.strip_prefix(&self.prefix()).unwrap_or(physical)
    }

    /// Whether a session is this placement's.
    pub fn owns(&self, id: &str) -> bool {
        id.strip_prefix(&self.prefix()).is_some_and(|rest| !rest.is_empty())
    }
}

/// Stands for a run of characters that a name cannot have; no id of a caller has it, as it is a control character.
const OTHER: char = '\0';

/// The workspace and the generation of a session's id, if it has the form of one.
pub fn owner(id: &str) -> Option<(&str, u64)> {
    let end = MARK.len() + HASH_CHARS;
    let (workspace, rest) = (id.get(..end)?, id.get(end..)?);
    let digits = workspace.strip_prefix(MARK)?;
    if !digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
        return None;
    }
    let (generation, name) = rest.strip_prefix("-g")?.split_once('-')?;
    let generation = generation.parse().ok()?;
    (!name.is_empty()).then_some((workspace, generation))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_clients_compute() {
        let placement = Placement::new("instance_0f3c2f", "ws-uuid-1", 3);
        assert_eq!(placement.workspace(), "ws-a0dcd6ea8a4e0b3604690bb3");
        for (logical, name) in [
            ("runner-abc", "runner-abc"),
            (" a b//c ", "a-b-c"),
            ("a--b", "a--b"),
            ("é.x_", ".x_"),
            ("/-a/-", "a"),
        ] {
            let physical = format!("ws-a0dcd6ea8a4e0b3604690bb3-g3-{name}");
            assert_eq!(placement.physical(logical).unwrap(), physical, "{logical}");
            assert_eq!(placement.logical(&physical), name);
            assert!(placement.owns(&physical));
        }
        for nothing in ["", " ", "é", "-/-"] {
            assert!(placement.physical(nothing).is_err(), "{nothing:?}");
        }
        assert_eq!(Placement::new(" instance_0f3c2f\t", "w9", 1).workspace(), "ws-7ace7fa05fb6516a41d29abc");
    }

    #[test]
    fn owners_are_told_by_the_form_of_an_id() {
        let placement = Placement::new("i", "w", 12);
        let id = placement.physical("s").unwrap();
        assert_eq!(owner(&id), Some((placement.workspace(), 12)));
        assert!(!Placement::new("i", "w", 1).owns(&id), "g1 is not the beginning of g12");
        let name = placement.workspace();
        for plain in
            ["s", "ws-1", "ws-", name, &format!("{name}-g1"), &format!("{name}-g1-"), "éééééééééééééé"]
        {
            assert_eq!(owner(plain), None, "{plain}");
        }
    }
}
