//! Which servers a client of the gateway sees, and what their tools, prompts and resources are called there.

/// Between a server's name and that of its tool.
pub(crate) const SEPARATOR: &str = "__";
/// Begins the address of a resource where those of several servers are: `box:SERVER/ADDRESS`.
const RESOURCE_SCHEME: &str = "box:";

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

    /// What a resource of a server, or a template of such, is addressed by here.
    pub(crate) fn full_uri(&self, server: &str, uri: &str) -> String {
        match self {
            Self::All => format!("{RESOURCE_SCHEME}{server}/{uri}"),
            Self::One(_) => uri.to_owned(),
        }
    }

    /// The server and its own address of what is addressed so here. A server's name never has a slash.
    pub(crate) fn split_uri<'a>(&'a self, uri: &'a str) -> Option<(&'a str, &'a str)> {
        match self {
            Self::All => uri.strip_prefix(RESOURCE_SCHEME)?.split_once('/'),
            Self::One(server) => Some((server, uri)),
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
        let uri = "file:///a/b";
        assert_eq!(all.full_uri("git", uri), "box:git/file:///a/b");
        assert_eq!(all.split_uri("box:git/file:///a/b"), Some(("git", uri)));
        assert_eq!(one.split_uri(&one.full_uri("git", uri)), Some(("git", uri)));
        assert_eq!((all.split_uri(uri), all.split_uri("box:git")), (None, None));
        assert!(all.has("x") && one.has("git") && !one.has("x"));
    }
}
