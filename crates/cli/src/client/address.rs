//! Where the server is and what we show to be let in: flags, then the environment, then the usual places.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::failure::Failure;
use crate::native::NativeConfig;
use crate::settings;

/// Flags of every command that talks to a server.
#[derive(Debug, Args)]
#[command(next_help_heading = "Server")]
pub(crate) struct Target {
    /// http://HOST:PORT or unix:/PATH [default: $SANDCRATE_URL, the socket in the state directory, or
    /// http://127.0.0.1:5410]
    #[arg(long, value_name = "URL")]
    url: Option<String>,

    /// File with the server's token; $SANDCRATE_TOKEN has the token itself [default:
    /// $SANDCRATE_TOKEN_FILE]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    /// `HOST:PORT`, an IPv6 host in brackets.
    Tcp(String),
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(authority) => write!(f, "http://{authority}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// What the environment says; apart, so that tests need not change their own.
#[derive(Debug, Default)]
struct Surroundings {
    url: Option<OsString>,
    token: Option<OsString>,
    token_file: Option<OsString>,
    state_dir: PathBuf,
}

impl Surroundings {
    fn of_this_process() -> Self {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        Self {
            url: variable(settings::URL),
            token: variable(settings::TOKEN),
            token_file: variable(settings::TOKEN_FILE),
            state_dir: NativeConfig::for_this_user().state_dir,
        }
    }
}

impl Target {
    /// A server that is named.
    pub(crate) fn at(url: String, token_file: Option<PathBuf>) -> Self {
        Self { url: Some(url), token_file }
    }

    /// Where to go, and with which token.
    pub(crate) fn resolve(&self) -> anyhow::Result<(Address, Option<String>)> {
        let around = Surroundings::of_this_process();
        Ok((self.address(&around)?, self.token(&around)?))
    }

    fn address(&self, around: &Surroundings) -> anyhow::Result<Address> {
        if let Some(url) = &self.url {
            return parse(url, "--url");
        }
        if let Some(url) = &around.url {
            return parse(&url.to_string_lossy(), "$SANDCRATE_URL");
        }
        let socket = around.state_dir.join(settings::SOCKET_NAME);
        Ok(if socket.exists() {
            Address::Unix(socket)
        } else {
            Address::Tcp(settings::DEFAULT_ADDRESS.to_owned())
        })
    }

    /// A flag is nearer than the environment, and a token nearer than a file of one.
    fn token(&self, around: &Surroundings) -> anyhow::Result<Option<String>> {
        let text = match (&self.token_file, &around.token, &around.token_file) {
            (Some(file), _, _) => read_token(file, "--token-file")?,
            (None, Some(token), _) => token.to_string_lossy().into_owned(),
            (None, None, Some(file)) => read_token(Path::new(file), "$SANDCRATE_TOKEN_FILE")?,
            (None, None, None) => return Ok(None),
        };
        let token = text.trim();
        if token.is_empty() || token.chars().any(|c| !c.is_ascii_graphic()) {
            return Err(Failure::invalid("the token must be one word of printable ASCII").into());
        }
        Ok(Some(token.to_owned()))
    }
}

fn read_token(file: &Path, origin: &str) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(file);
    Ok(text.map_err(|error| Failure::invalid(format!("{origin} {}: {error}", file.display())))?)
}

fn parse(url: &str, origin: &str) -> anyhow::Result<Address> {
    let problem = |why: &str| {
        Failure::invalid(format!("{origin} `{url}`: {why}"))
            .hint("the form is http://HOST:PORT or unix:/PATH, such as http://127.0.0.1:5410")
    };
    if let Some(path) = url.strip_prefix("unix://").or_else(|| url.strip_prefix("unix:")) {
        return match Path::new(path) {
            path if path.is_absolute() => Ok(Address::Unix(path.to_owned())),
            _ => Err(problem("the path of a socket must be absolute").into()),
        };
    }
    if url.starts_with("https://") {
        let hint = "reach it over a tunnel, or through http:// on a network that you trust";
        return Err(Failure::invalid(format!("{origin} `{url}`: TLS is not in this version"))
            .hint(hint)
            .into());
    }
    let rest = url.strip_prefix("http://").ok_or_else(|| problem("not a URL of a server"))?;
    let authority = rest.strip_suffix('/').unwrap_or(rest);
    if authority.is_empty()
        || authority.contains(['/', '?', '#', '@'])
        || authority.contains(char::is_whitespace)
    {
        return Err(problem("a host and a port, and nothing else").into());
    }
    let host = authority
        .strip_prefix('[')
        .map_or(authority, |rest| rest.split_once(']').map_or("", |(_, port)| port));
    Ok(Address::Tcp(match host.rsplit_once(':') {
        Some((_, port)) if port.parse::<u16>().is_ok_and(|port| port > 0) => authority.to_owned(),
        Some(_) => return Err(problem("the port must be 1 to 65535").into()),
        None => format!("{authority}:80"),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(url: Option<&str>, token_file: Option<&Path>) -> Target {
        Target { url: url.map(str::to_owned), token_file: token_file.map(Path::to_owned) }
    }

    #[test]
    fn urls_in_every_accepted_form() {
        for (url, shown) in [
            ("http://127.0.0.1:5410", "http://127.0.0.1:5410"),
            ("http://box:80/", "http://box:80"),
            ("http://box", "http://box:80"),
            ("http://[::1]:5410", "http://[::1]:5410"),
            ("http://[::1]", "http://[::1]:80"),
            ("unix:/run/s.sock", "unix:/run/s.sock"),
            ("unix:///run/s.sock", "unix:/run/s.sock"),
        ] {
            assert_eq!(parse(url, "--url").unwrap().to_string(), shown);
        }
        for url in [
            "",
            "box:5410",
            "http://",
            "http://a b",
            "http://a/v1",
            "http://a:0",
            "http://a:b",
            "unix:rel",
            "http://u@a",
            "https://a",
            "http://a:99999",
            "ftp://x",
        ] {
            let error = parse(url, "--url").unwrap_err().to_string();
            assert!(error.contains("--url") && error.contains(url), "{url}: {error}");
        }
    }

    #[test]
    fn the_nearest_place_wins() {
        let dir = tempfile::tempdir().unwrap();
        let mut around = Surroundings { state_dir: dir.path().to_owned(), ..Surroundings::default() };
        let none = target(None, None);
        assert_eq!(none.address(&around).unwrap().to_string(), "http://127.0.0.1:5410");
        std::fs::write(dir.path().join(settings::SOCKET_NAME), "").unwrap();
        assert!(matches!(none.address(&around).unwrap(), Address::Unix(_)));
        around.url = Some("http://env:1".into());
        assert_eq!(none.address(&around).unwrap().to_string(), "http://env:1");
        let flag = target(Some("http://flag:1"), None);
        assert_eq!(flag.address(&around).unwrap().to_string(), "http://flag:1");
    }

    #[test]
    fn tokens_come_from_files_and_the_environment() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        std::fs::write(&file, "of-the-file\n").unwrap();
        let mut around = Surroundings::default();
        assert_eq!(target(None, None).token(&around).unwrap(), None);
        around.token_file = Some(file.clone().into());
        assert_eq!(target(None, None).token(&around).unwrap().as_deref(), Some("of-the-file"));
        around.token = Some("of-the-environment".into());
        assert_eq!(target(None, None).token(&around).unwrap().as_deref(), Some("of-the-environment"));
        assert_eq!(target(None, Some(&file)).token(&around).unwrap().as_deref(), Some("of-the-file"));
        let error = target(None, Some(Path::new("/no/such"))).token(&around).unwrap_err().to_string();
        assert!(error.contains("--token-file /no/such"), "{error}");
        around.token = Some("secret word".into());
        let error = target(None, None).token(&around).unwrap_err().to_string();
        assert!(!error.contains("secret"), "{error}");
    }
}
