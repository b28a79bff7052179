//! Where the endpoint is, and by which key it is used.
//!
//! The environment comes first, with the names that E2B's own programs read; then the operator's file; then what a
//! client's configuration says. LangBot's runtime hands its `api_url` on as a domain: a value without a scheme is one.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use sandcrate_protocol::DEFAULT_IMAGE;
use serde::{Deserialize, Serialize};

/// E2B's own cloud.
const CLOUD: &str = "e2b.app";
/// Where a sandbox's own service listens.
pub(crate) const ENVD_PORT: u16 = 49983;
/// What the endpoint is asked for when nobody names a template.
const DEFAULT_TEMPLATE: &str = "base";

/// What can be set about the endpoint; what is not is left to the next in order.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct E2bSettings {
    pub api_key: Option<String>,
    /// A URL, or a domain.
    pub api_url: Option<String>,
    pub domain: Option<String>,
    /// For every sandbox, instead of a host name each.
    pub sandbox_url: Option<String>,
    pub template: Option<String>,
}

/// The key is nobody's to read.
impl fmt::Debug for E2bSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("E2bSettings")
            .field("api_key", &self.api_key.as_ref().map(|_| "…"))
            .field("api_url", &self.api_url)
            .field("domain", &self.domain)
            .field("sandbox_url", &self.sandbox_url)
            .field("template", &self.template)
            .finish()
    }
}

impl E2bSettings {
    /// What the environment says, by the names of E2B's own programs.
    pub fn from_environment(variable: impl Fn(&str) -> Option<String>) -> Self {
        let text = |name: &str| given(variable(name));
        Self {
            api_key: text("E2B_API_KEY"),
            api_url: text("E2B_API_URL"),
            domain: text("E2B_DOMAIN"),
            sandbox_url: text("E2B_SANDBOX_URL"),
            template: None,
        }
    }

    /// The `e2b` section of a client's configuration.
    pub fn from_section(section: &BTreeMap<String, String>) -> Self {
        let text = |name: &str| given(section.get(name).cloned());
        Self {
            api_key: text("api_key"),
            api_url: text("api_url"),
            template: text("template"),
            ..Self::default()
        }
    }

    /// Field by field, what is set here, else there.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            api_key: self.api_key.or(other.api_key),
            api_url: self.api_url.or(other.api_url),
            domain: self.domain.or(other.domain),
            sandbox_url: self.sandbox_url.or(other.sandbox_url),
            template: self.template.or(other.template),
        }
    }
}

/// Blank counts as absent.
fn given(text: Option<String>) -> Option<String> {
    text.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// The configuration of the backend.
#[derive(Debug, Clone)]
pub struct E2bConfig {
    /// Tells our sandboxes from those of others with the same key.
    pub state_dir: PathBuf,
    /// In order: the first that sets a field has it.
    pub environment: E2bSettings,
    pub operator: E2bSettings,
    /// The image that stands for "whatever the backend has".
    pub default_image: String,
    /// Certificates of authorities that are believed besides those of this machine.
    pub ca_file: Option<PathBuf>,
}

impl E2bConfig {
    /// With what the environment of this program says.
    pub fn new(state_dir: impl Into<PathBuf>) -> Self {
        Self {
            state_dir: state_dir.into(),
            environment: E2bSettings::from_environment(|name| std::env::var(name).ok()),
            operator: E2bSettings::default(),
            default_image: DEFAULT_IMAGE.to_owned(),
            ca_file: None,
        }
    }
}

/// A complete way to an endpoint.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Access {
    pub(crate) key: String,
    /// Of the control plane, without a slash at the end.
    pub(crate) api: String,
    sandboxes: Sandboxes,
    pub(crate) template: String,
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access")
            .field("api", &self.api)
            .field("sandboxes", &self.sandboxes)
            .field("template", &self.template)
            .finish_non_exhaustive()
    }
}

/// How a sandbox is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Sandboxes {
    /// All by one URL, told apart by a header.
    One(String),
    /// Each by a name of its own, below the domain that the endpoint says, else this one.
    ByName(String),
    /// As the endpoint says; where it says nothing, at the control plane's own URL.
    AsTold,
}

impl Access {
    /// What the settings come to; or what is missing, in words for an operator.
    pub(crate) fn resolve(settings: &E2bSettings) -> Result<Self, String> {
        let key = settings.api_key.clone().ok_or(
            "no API key is known; set E2B_API_KEY, e2b_backend.api_key_file in sandcrate.toml, or box.e2b.api_key of LangBot",
        )?;
        if key.chars().any(|letter| !letter.is_ascii_graphic()) {
            return Err("the API key has characters that no header can carry".to_owned());
        }
        let named = settings.domain.as_deref().map(|domain| domain_of("E2B_DOMAIN", domain)).transpose()?;
        let (api, sandboxes) = match settings.api_url.as_deref() {
            Some(url) if url.contains("://") => {
                let api = url_of("E2B_API_URL", url)?;
                (api, named.map_or(Sandboxes::AsTold, Sandboxes::ByName))
            }
            Some(domain) => {
                let domain = domain_of("E2B_API_URL", domain)?;
                (format!("https://api.{domain}"), Sandboxes::ByName(domain))
            }
            None => {
                let domain = named.unwrap_or_else(|| CLOUD.to_owned());
                (format!("https://api.{domain}"), Sandboxes::ByName(domain))
            }
        };
        let sandboxes = match settings.sandbox_url.as_deref() {
            Some(url) => Sandboxes::One(url_of("E2B_SANDBOX_URL", url)?),
            None => sandboxes,
        };
        let template = settings.template.clone().unwrap_or_else(|| DEFAULT_TEMPLATE.to_owned());
        Ok(Self { key, api, sandboxes, template })
    }

    /// Whether the control plane is asked by TLS.
    pub(crate) fn needs_tls(&self) -> bool {
        self.api.starts_with("https://")
    }

    /// The URL of a sandbox's own service. `told`: the domain that the endpoint says it has; `shared`: the endpoint
    /// is known to serve sandboxes at its own URL.
    pub(crate) fn sandbox_url(&self, sandbox: &str, told: Option<&str>, shared: bool) -> String {
        let by_name = |domain: &str| format!("https://{ENVD_PORT}-{sandbox}.{domain}");
        match (&self.sandboxes, told) {
            (Sandboxes::One(url), _) => url.clone(),
            (Sandboxes::AsTold, _) if shared => self.api.clone(),
            (_, Some(domain)) => by_name(domain),
            (Sandboxes::ByName(domain), None) => by_name(domain),
            (Sandboxes::AsTold, None) => self.api.clone(),
        }
    }
}

fn url_of(name: &str, url: &str) -> Result<String, String> {
    let host = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    let fine =
        host.is_some_and(|host| !host.is_empty() && host.chars().all(|letter| letter.is_ascii_graphic()));
    match fine {
        true => Ok(url.trim_end_matches('/').to_owned()),
        false => {
            Err(format!("{name} (`{}`) must be a URL with http:// or https://, or a domain", shown(url)))
        }
    }
}

fn domain_of(name: &str, domain: &str) -> Result<String, String> {
    let part = |letter: char| letter.is_ascii_alphanumeric() || "-.:".contains(letter);
    match !domain.is_empty() && domain.len() <= 253 && domain.chars().all(part) {
        true => Ok(domain.to_owned()),
        false => Err(format!("{name} (`{}`) is not a domain", shown(domain))),
    }
}

fn shown(text: &str) -> String {
    text.chars().take(80).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(key: &str, url: &str) -> E2bSettings {
        E2bSettings {
            api_key: given(Some(key.to_owned())),
            api_url: given(Some(url.to_owned())),
            ..E2bSettings::default()
        }
    }

    #[test]
    fn a_value_without_a_scheme_is_a_domain() {
        let access = Access::resolve(&settings("k", "sandbox.example")).unwrap();
        assert_eq!(access.api, "https://api.sandbox.example");
        assert_eq!(access.sandbox_url("id", None, false), "https://49983-id.sandbox.example");
        assert_eq!(access.sandbox_url("id", Some("told.example"), false), "https://49983-id.told.example");
    }

    #[test]
    fn one_url_serves_a_whole_sandcrate() {
        let access = Access::resolve(&settings("k", "http://127.0.0.1:5410/")).unwrap();
        assert_eq!(access.api, "http://127.0.0.1:5410");
        assert_eq!(access.sandbox_url("id", None, false), "http://127.0.0.1:5410");
        assert_eq!(access.sandbox_url("id", Some("its.example"), true), "http://127.0.0.1:5410");
        assert_eq!(access.sandbox_url("id", Some("its.example"), false), "https://49983-id.its.example");
    }

    #[test]
    fn the_cloud_is_what_is_meant_without_a_word() {
        let access = Access::resolve(&settings("k", "")).unwrap();
        assert_eq!(access.api, "https://api.e2b.app");
        assert_eq!(access.template, "base");
        let other = E2bSettings { sandbox_url: Some("http://box.example:1".to_owned()), ..settings("k", "") };
        assert_eq!(
            Access::resolve(&other).unwrap().sandbox_url("id", Some("x"), false),
            "http://box.example:1"
        );
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        assert!(Access::resolve(&settings("", "")).unwrap_err().contains("E2B_API_KEY"));
        assert!(Access::resolve(&settings("a\nb", "")).unwrap_err().contains("header"));
        assert!(Access::resolve(&settings("k", "ftp://x")).unwrap_err().contains("E2B_API_URL"));
        assert!(Access::resolve(&settings("k", "a b")).unwrap_err().contains("not a domain"));
    }

    #[test]
    fn the_environment_comes_before_the_configuration() {
        let of = |name: &str| (name == "E2B_API_KEY").then(|| " env ".to_owned());
        let section = [("api_key", "cfg"), ("api_url", "http://x"), ("template", "  ")];
        let section = section.map(|(key, value)| (key.to_owned(), value.to_owned())).into_iter().collect();
        let both = E2bSettings::from_environment(of).or(E2bSettings::from_section(&section));
        assert_eq!((both.api_key.as_deref(), both.api_url.as_deref()), (Some("env"), Some("http://x")));
        assert_eq!(both.template, None);
        assert!(!format!("{both:?}").contains("env"));
    }
}
