//! Which tools of which servers may be used. A denial wins over everything.

use super::{McpConfig, Registration};

/// The lists of the whole gateway.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policy {
    allow: Vec<String>,
    deny: Vec<String>,
}

/// A tool that may not be used, or a server of which nothing may be, and by which list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} of `{server}` {} not allowed here: {rule}", self.what(), self.verb())]
pub struct Denied {
    pub server: String,
    pub tool: Option<String>,
    pub rule: String,
}

impl Denied {
    fn what(&self) -> String {
        self.tool.as_ref().map_or("prompts and resources".to_owned(), |tool| format!("the tool `{tool}`"))
    }

    fn verb(&self) -> &'static str {
        if self.tool.is_some() { "is" } else { "are" }
    }
}

impl From<&McpConfig> for Policy {
    fn from(config: &McpConfig) -> Self {
        Self { allow: config.allow.clone(), deny: config.deny.clone() }
    }
}

impl Policy {
    /// # Errors
    /// When a list says so.
    pub fn check(&self, server: &str, lists: &Registration, tool: &str) -> Result<(), Denied> {
        let full = format!("{server}__{tool}");
        let in_all = |list: &[String]| list.iter().any(|name| name == server || *name == full);
        let in_own = |list: &[String]| list.iter().any(|name| name == tool);
        let rule = if in_all(&self.deny) {
            "`mcp.deny` names it".to_owned()
        } else if in_own(&lists.deny) {
            format!("`deny` of {server} names it")
        } else if !self.allow.is_empty() && !in_all(&self.allow) {
            "`mcp.allow` does not name it".to_owned()
        } else if !lists.allow.is_empty() && !in_own(&lists.allow) {
            format!("`allow` of {server} does not name it")
        } else {
            return Ok(());
        };
        Err(Denied { server: server.to_owned(), tool: Some(tool.to_owned()), rule })
    }

    /// Whether a server's prompts and resources may be used: lists of single tools give none of them.
    ///
    /// # Errors
    /// When a list says so.
    pub fn check_library(&self, server: &str) -> Result<(), Denied> {
        let named = |list: &[String]| list.iter().any(|name| name == server);
        let rule = if named(&self.deny) {
            "`mcp.deny` names it"
        } else if !self.allow.is_empty() && !named(&self.allow) {
            "`mcp.allow` does not name the server itself"
        } else {
            return Ok(());
        };
        Err(Denied { server: server.to_owned(), tool: None, rule: rule.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_denial_wins_and_an_allow_list_is_complete() {
        let plain = Registration::new("x", [""; 0]);
        let open = Policy::default();
        assert_eq!(open.check("git", &plain, "push"), Ok(()));

        let deny = Policy { allow: list(&["git"]), deny: list(&["git__push"]) };
        assert!(deny.check("git", &plain, "push").is_err());
        assert_eq!(deny.check("git", &plain, "log"), Ok(()));
        let error = deny.check("time", &plain, "now").unwrap_err();
        assert_eq!(
            error.to_string(),
            "the tool `now` of `time` is not allowed here: `mcp.allow` does not name it"
        );

        let own = Registration { allow: list(&["log", "push"]), deny: list(&["push"]), ..plain };
        assert_eq!(open.check("git", &own, "log"), Ok(()));
        assert!(open.check("git", &own, "push").is_err());
        assert!(open.check("git", &own, "status").is_err());
        let all = Policy { deny: list(&["git"]), ..Policy::default() };
        assert!(all.check("git", &own, "log").is_err());
    }

    #[test]
    fn prompts_and_resources_go_with_the_whole_server() {
        let policy = |allow: &[&str], deny: &[&str]| Policy { allow: list(allow), deny: list(deny) };
        assert!(policy(&[], &["a__tool", "b"]).check_library("a").is_ok());
        assert!(policy(&["a"], &[]).check_library("a").is_ok());
        let denied = policy(&["a"], &["a"]).check_library("a").unwrap_err();
        assert_eq!(
            denied.to_string(),
            "prompts and resources of `a` are not allowed here: `mcp.deny` names it"
        );
        let tools_alone = policy(&["a__tool"], &[]).check_library("a").unwrap_err();
        assert!(tools_alone.rule.contains("does not name the server itself"));
    }
}
