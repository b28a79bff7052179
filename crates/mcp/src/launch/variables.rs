//! Which variables reach an install, and which of a client's reach its server.

use std::collections::BTreeMap;

/// How package managers are told where packages come from.
const INDEX_PREFIXES: [&str; 4] = ["PIP_", "UV_", "NPM_CONFIG_", "npm_config_"];
/// Of those, what says where things are put: that is ours to say.
const OURS: [&str; 21] = [
    "PIP_CACHE_DIR",
    "PIP_LOG",
    "PIP_PREFIX",
    "PIP_PYTHON",
    "PIP_REQUIRE_VIRTUALENV",
    "PIP_ROOT",
    "PIP_SRC",
    "PIP_TARGET",
    "PIP_USER",
    "UV_CACHE_DIR",
    "UV_ENV_FILE",
    "UV_LINK_MODE",
    "UV_PROJECT",
    "UV_PROJECT_ENVIRONMENT",
    "UV_PYTHON_INSTALL_DIR",
    "UV_TOOL_BIN_DIR",
    "UV_TOOL_DIR",
    "NPM_CONFIG_CACHE",
    "NPM_CONFIG_GLOBAL",
    "NPM_CONFIG_PREFIX",
    "NPM_CONFIG_USERCONFIG",
];
/// Certificates and proxies on the way to an index.
const WAYS: [&str; 13] = [
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
];

/// What an install may know of the user's environment: where packages come from, and nothing else.
pub fn index_settings(variables: impl IntoIterator<Item = (String, String)>) -> BTreeMap<String, String> {
    let wanted = |name: &str| {
        let ours = OURS.iter().any(|ours| ours.eq_ignore_ascii_case(name));
        WAYS.contains(&name) || INDEX_PREFIXES.iter().any(|prefix| name.starts_with(prefix)) && !ours
    };
    variables.into_iter().filter(|(name, value)| wanted(name) && !value.is_empty()).collect()
}

/// Of the host and not of the server: they name its paths, sockets and people.
const WITHHELD: [&str; 33] = [
    "_",
    "COLORTERM",
    "DISPLAY",
    "EDITOR",
    "HOME",
    "HOST",
    "HOSTNAME",
    "INVOCATION_ID",
    "JOURNAL_STREAM",
    "LANG",
    "LANGUAGE",
    "LOGNAME",
    "LS_COLORS",
    "MAIL",
    "MANPATH",
    "OLDPWD",
    "PATH",
    "PWD",
    "PYENV_ROOT",
    "PYTHONHOME",
    "PYTHONPATH",
    "NODE_PATH",
    "NODE_OPTIONS",
    "SHELL",
    "SHLVL",
    "TERM",
    "TMPDIR",
    "TMUX",
    "USER",
    "VIRTUAL_ENV",
    "VISUAL",
    "WINDOWID",
    "XAUTHORITY",
];
const WITHHELD_PREFIXES: [&str; 26] = [
    "BASH_",
    "CARGO",
    "CONDA_",
    "DBUS_",
    "DOCKER_",
    "GDM",
    "GNOME_",
    "GPG_",
    "GTK_",
    "KDE_",
    "LC_",
    "LD_",
    "LESS",
    "NVM_",
    "NPM_CONFIG_",
    "npm_",
    "PIP_",
    "QT_",
    "RUSTUP",
    "SANDCRATE_",
    "SSH_",
    "SUDO_",
    "SYSTEMD_",
    "UV_",
    "WAYLAND_",
    "XDG_",
];

/// Whether a variable belongs to the host, so that `--env-from-client` keeps it back.
pub fn is_withheld(name: &str) -> bool {
    WITHHELD.contains(&name)
        || WAYS.contains(&name)
        || WITHHELD_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_install_knows_the_index_and_no_secret_of_the_client() {
        let pair = |name: &str| (name.to_owned(), "x".to_owned());
        let kept = [
            "PIP_INDEX_URL",
            "UV_DEFAULT_INDEX",
            "NPM_CONFIG_REGISTRY",
            "npm_config_cafile",
            "SSL_CERT_FILE",
        ];
        let dropped = [
            "API_TOKEN",
            "PATH",
            "HOME",
            "PIPE_X",
            "PIP_TARGET",
            "UV_CACHE_DIR",
            "npm_config_prefix",
            "LD_PRELOAD",
            "npm_package_name",
            "AWS_SECRET_ACCESS_KEY",
        ];
        let found = index_settings(kept.iter().chain(&dropped).map(|name| pair(name)));
        let mut expected = kept.map(str::to_owned);
        expected.sort();
        assert_eq!(found.into_keys().collect::<Vec<_>>(), expected);
        assert!(index_settings([("PIP_INDEX_URL".to_owned(), String::new())]).is_empty());
    }

    #[test]
    fn variables_of_the_host_are_withheld_and_those_of_a_server_pass() {
        for name in [
            "PATH",
            "HOME",
            "USER",
            "SHELL",
            "SSH_AUTH_SOCK",
            "LD_PRELOAD",
            "DBUS_SESSION_BUS_ADDRESS",
            "XDG_RUNTIME_DIR",
            "PYTHONPATH",
            "SANDCRATE_TOKEN",
            "DOCKER_HOST",
            "PIP_INDEX_URL",
            "HTTPS_PROXY",
        ] {
            assert!(is_withheld(name), "{name}");
        }
        for name in ["API_KEY", "GITHUB_TOKEN", "TZ", "DATABASE_URL", "DEBUG", "MCP_MODE", "SLACK_TEAM_ID"] {
            assert!(!is_withheld(name), "{name}");
        }
    }
}
