//! Which servers a client of the gateway sees, and what their tools are called there.

/// Between a server's name and that of its tool.
pub(crate) const SEPARATOR: &str = "__";

/// What an address of the gateway stands for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Scope {
    /// All servers; a tool is called `server__tool`.
    All,
    /// One alone, with its own names.
    One(String),
}

impl Scope {
    pub(crate) fn has(&self, server: &str) -> bool {
        match self {
            Self::All => true,
            Self::One(name) => name == server,
        }
    }

    /// What something of a server is called here.
    pub(crate) fn full_name(&self, server: &str, name: &str) -> String {
        match self {
            Self::All => format!("{server}{SEPARATOR}{name}"),
            Self::One(_) => name.to_owned(),
        }
    }

    /// The server and its own name of what is called so here. A server's name never has the separator.
    pub(crate) fn split<'a>(&'a self, name: &'a str) -> Option<(&'a str, &'a str)> {
        match self {
            Self::All => {
                name.split_once(SEPARATOR).filter(|(server, name)| !server.is_empty() && !name.is_empty())
            }
            Self::One(server) => Some((server, name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_there_and_back() {
        let (all, one) = (Scope::All, Scope::One("git".to_owned()));
        for tool in ["push", "a__b", "__x", "_x"] {
            assert_eq!(all.split(&all.full_name("git", tool)), Some(("git", tool)));
            assert_eq!(one.split(&one.full_name("git", tool)), Some(("git", tool)));
        }
        assert_eq!(all.full_name("git", "push"), "git__push");
        for unknown in ["push", "__push", "git__", ""] {
            assert_eq!(all.split(unknown), None, "{unknown}");
        }
        assert!(all.has("x") && one.has("git") && !one.has("x"));
    }
}
