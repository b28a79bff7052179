//! What an operator can set about the tools.

use std::borrow::Cow;
use std::collections::BTreeMap;

use sandcrate_host::tools::native_definitions;
use sandcrate_host::{DEFAULT_TEMPLATE, HostError, SessionTemplate};
use sandcrate_protocol::BoxProfile;
use serde::{Deserialize, Serialize};

/// Less shows a model nothing of use, not even the notice that something is missing.
const LEAST_OUTPUT: usize = 100;

/// `[tools]`, and `[profiles]` beside it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ToolsConfig {
    /// The profile of the sessions that tools make.
    pub profile: String,
    /// Which session a caller gets.
    pub session_template: String,
    /// Characters of each stream that a model is shown.
    pub output_limit_chars: usize,
    /// Tools that may be called; empty: all.
    pub allow: Vec<String>,
    /// Tools that may not, whatever `allow` says.
    pub deny: Vec<String>,
    #[serde(skip)]
    pub profiles: BTreeMap<String, BoxProfile>,
}

impl Default for ToolsConfig {
    fn default() -> Self {
        Self {
            profile: "default".to_owned(),
            session_template: DEFAULT_TEMPLATE.to_owned(),
            output_limit_chars: 4000,
            allow: Vec::new(),
            deny: Vec::new(),
            profiles: BTreeMap::new(),
        }
    }
}

impl ToolsConfig {
    /// What cannot be used: the key, what it is, and what is wrong with it.
    pub fn problem(&self) -> Option<(String, String, String)> {
        for (name, profile) in &self.profiles {
            let key = format!("profiles.{name}");
            if BoxProfile::named(name).is_ok() {
                return Some((
                    "profiles".to_owned(),
                    name.clone(),
                    "is built in; choose another name".to_owned(),
                ));
            }
            if let Some((field, problem)) = profile.problem() {
                return Some(("profiles".to_owned(), format!("{key}.{field}"), problem));
            }
        }
        if let Err(error) = self.chosen() {
            return Some(("tools.profile".to_owned(), self.profile.clone(), error.message));
        }
        if let Err(error) = SessionTemplate::parse(&self.session_template) {
            return Some(("tools.session_template".to_owned(), self.session_template.clone(), error.message));
        }
        if self.output_limit_chars < LEAST_OUTPUT {
            let least = format!("must be at least {LEAST_OUTPUT}");
            return Some(("tools.output_limit_chars".to_owned(), self.output_limit_chars.to_string(), least));
        }
        let known: Vec<_> = native_definitions().into_iter().map(|tool| tool.name).collect();
        for (key, names) in [("tools.allow", &self.allow), ("tools.deny", &self.deny)] {
            if let Some(unknown) = names.iter().find(|name| !known.contains(&name.as_str())) {
                let problem = format!("is no tool; there are {}", known.join(", "));
                return Some((key.to_owned(), unknown.clone(), problem));
            }
        }
        None
    }

    pub(crate) fn chosen(&self) -> Result<BoxProfile, HostError> {
        let all = self.all_profiles();
        let names = || all.iter().map(|profile| &*profile.name).collect::<Vec<_>>().join(", ");
        let found = all.iter().find(|profile| profile.name == self.profile);
        found.cloned().ok_or_else(|| {
            let name = &self.profile;
            HostError::invalid(format!("unknown box profile '{name}', available profiles: {}", names()))
        })
    }

    pub(super) fn all_profiles(&self) -> Vec<BoxProfile> {
        let own = self
            .profiles
            .iter()
            .map(|(name, profile)| BoxProfile { name: Cow::Owned(name.clone()), ..profile.clone() });
        let mut all: Vec<_> = BoxProfile::builtin().iter().cloned().chain(own).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(change: impl FnOnce(&mut ToolsConfig)) -> Option<String> {
        let mut config = ToolsConfig::default();
        change(&mut config);
        config.problem().map(|(key, _, _)| key)
    }

    #[test]
    fn what_cannot_be_used_is_named_by_its_key() {
        assert_eq!(key(|_| {}), None);
        assert_eq!(key(|config| config.profile = "x".to_owned()).as_deref(), Some("tools.profile"));
        let template = |config: &mut ToolsConfig| config.session_template = "{a.b}".to_owned();
        assert_eq!(key(template).as_deref(), Some("tools.session_template"));
        let output = |config: &mut ToolsConfig| config.output_limit_chars = 99;
        assert_eq!(key(output).as_deref(), Some("tools.output_limit_chars"));
        assert_eq!(key(|config| config.deny = vec!["shell".to_owned()]).as_deref(), Some("tools.deny"));
        let profile = |name: &str, profile: BoxProfile| {
            let name = name.to_owned();
            move |config: &mut ToolsConfig| drop(config.profiles.insert(name, profile))
        };
        assert_eq!(key(profile("default", BoxProfile::default())).as_deref(), Some("profiles"));
        let weak = BoxProfile { memory_mb: 1, ..BoxProfile::default() };
        assert_eq!(key(profile("weak", weak)).as_deref(), Some("profiles"));
    }

    #[test]
    fn an_operators_profile_can_be_chosen() {
        let big = BoxProfile { memory_mb: 4096, ..BoxProfile::default() };
        let config = ToolsConfig {
            profile: "big".to_owned(),
            profiles: [("big".to_owned(), big)].into(),
            ..ToolsConfig::default()
        };
        let chosen = config.chosen().unwrap();
        assert_eq!((&*chosen.name, chosen.memory_mb), ("big", 4096));
        let names: Vec<_> = config.all_profiles().into_iter().map(|profile| profile.name).collect();
        assert_eq!(names, ["big", "default", "network_basic", "network_extended", "offline_readonly"]);
    }
}
