//! The clients we know: where their configuration is on Linux, and what it looks like.

use std::path::PathBuf;

use clap::ValueEnum;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum McpClient {
    /// Claude Desktop
    Claude,
    /// Claude Code, for every project; `--file .mcp.json` for one
    ClaudeCode,
    /// Cursor, for every project; `--file .cursor/mcp.json` for one
    Cursor,
    /// Visual Studio Code, for every project; `--file .vscode/mcp.json` for one
    Vscode,
    /// Windsurf
    Windsurf,
    /// Gemini CLI, for every project; `--file .gemini/settings.json` for one
    Gemini,
}

/// Where a person's files are.
#[derive(Debug, Clone)]
pub(super) struct Home {
    pub(super) directory: Option<PathBuf>,
    /// `$XDG_CONFIG_HOME`, when it is set.
    pub(super) config: Option<PathBuf>,
}

impl Home {
    pub(super) fn of_this_process() -> Self {
        let variable =
            |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        Self { directory: variable("HOME"), config: variable("XDG_CONFIG_HOME") }
    }

    fn config(&self) -> Option<PathBuf> {
        self.config.clone().or_else(|| self.directory.as_ref().map(|home| home.join(".config")))
    }
}

impl McpClient {
    /// The file that holds for all of a person's projects.
    pub(super) fn file(self, home: &Home) -> Option<PathBuf> {
        let in_home = |path: &str| home.directory.as_ref().map(|home| home.join(path));
        match self {
            Self::Claude => home.config().map(|config| config.join("Claude/claude_desktop_config.json")),
            Self::ClaudeCode => in_home(".claude.json"),
            Self::Cursor => in_home(".cursor/mcp.json"),
            Self::Vscode => home.config().map(|config| config.join("Code/User/mcp.json")),
            Self::Windsurf => in_home(".codeium/windsurf/mcp_config.json"),
            Self::Gemini => in_home(".gemini/settings.json"),
        }
    }

    /// The member under which servers stand.
    pub(super) const fn key(self) -> &'static str {
        match self {
            Self::Vscode => "servers",
            _ => "mcpServers",
        }
    }

    /// Whether an entry says how the server is spoken to.
    pub(super) const fn wants_type(self) -> bool {
        matches!(self, Self::ClaudeCode | Self::Vscode)
    }

    /// What a person does next.
    pub(super) const fn afterwards(self) -> &'static str {
        match self {
            Self::Claude => "start Claude Desktop again",
            Self::ClaudeCode => "start `claude` again; `/mcp` shows the server",
            Self::Cursor => "Cursor shows it under Settings, MCP",
            Self::Vscode => "VS Code shows it by `MCP: List Servers`",
            Self::Windsurf => "refresh the servers in Windsurf's settings",
            Self::Gemini => "start `gemini` again; `/mcp` shows the server",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn every_client_has_a_file_in_the_home() {
        let home = Home { directory: Some("/home/a".into()), config: None };
        let own = Home { config: Some("/cfg".into()), ..home.clone() };
        for client in McpClient::value_variants() {
            assert!(client.file(&home).unwrap().starts_with("/home/a"), "{client:?}");
            assert!(client.file(&Home { directory: None, config: None }).is_none());
        }
        assert_eq!(McpClient::Vscode.file(&own).unwrap(), Path::new("/cfg/Code/User/mcp.json"));
        assert_eq!(McpClient::ClaudeCode.file(&own).unwrap(), Path::new("/home/a/.claude.json"));
    }
}
