//! What an operator can set about the E2B face: whether it is there, its domain, and what its templates are.

use std::collections::BTreeMap;

use sandcrate_protocol::network::NetworkRequest;
use sandcrate_protocol::{BoxProfile, BoxSpec};
use serde::{Deserialize, Serialize};

/// Templates that the SDKs ask for when their caller names none: `base`, the code interpreter's, and its older name.
/// They are always there.
const ALWAYS: [&str; 3] = ["base", "code-interpreter-v1", "code-interpreter-beta"];

/// `[e2b]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct E2bConfig {
    pub enabled: bool,
    /// `PORT-ID.DOMAIN` is a sandbox's port and `api.DOMAIN` the control plane. `None`: SDKs are told no domain, and
    /// a host that begins with `PORT-ID.` is taken whatever follows.
    pub domain: Option<String>,
    /// Of sandboxes whose maker does not say. `on` is what `[network] policy` says.
    pub network: NetworkRequest,
    /// The longest time a sandbox can be given.
    pub max_timeout_sec: u64,
    /// What a name stands for, beside those that are always there.
    pub templates: BTreeMap<String, Template>,
    #[serde(skip)]
    pub profiles: BTreeMap<String, BoxProfile>,
}

impl Default for E2bConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            domain: None,
            network: NetworkRequest::on(),
            // As E2B's own largest plan.
            max_timeout_sec: 24 * 3600,
            templates: BTreeMap::new(),
            profiles: BTreeMap::new(),
        }
    }
}

/// `[e2b.templates.NAME]`. What is left out is as in its profile; without one, as in `default`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Template {
    pub profile: Option<String>,
    pub image: Option<String>,
    pub cpus: Option<f64>,
    pub memory_mb: Option<u64>,
    pub pids_limit: Option<u64>,
    pub disk_mb: Option<u64>,
    pub read_only_rootfs: Option<bool>,
    pub network: Option<NetworkRequest>,
}

impl E2bConfig {
    /// What cannot be used: the key, what it is, and what is wrong with it.
    pub fn problem(&self) -> Option<(String, String, String)> {
        if let Some(domain) = self.domain.as_ref().filter(|domain| !is_domain(domain)) {
            let problem = "must be a host name without a scheme, such as `sandbox.example.com`";
            return Some(("e2b.domain".to_owned(), domain.clone(), problem.to_owned()));
        }
        if self.max_timeout_sec == 0 {
            return Some(("e2b.max_timeout_sec".to_owned(), "0".to_owned(), "must be at least 1".to_owned()));
        }
        self.templates.iter().find_map(|(name, template)| {
            let (field, problem) = match self.resolve(template) {
                Ok(box_of) => box_of.profile.problem()?,
                Err(problem) => ("profile", problem),
            };
            Some(("e2b.templates".to_owned(), format!("{name}.{field}"), problem))
        })
    }

    /// The names there are.
    pub(crate) fn names(&self) -> Vec<&str> {
        let own = self.templates.keys().map(String::as_str);
        let mut names: Vec<_> = ALWAYS.into_iter().chain(own).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// What a name stands for. A tag behind it counts where the name is given with it, and is not looked at otherwise,
    /// as a template has one build here.
    pub(crate) fn template(&self, asked: &str) -> Option<BoxOf> {
        let name = asked.split_once(':').map_or(asked, |(name, _)| name);
        match self.templates.get(asked).or_else(|| self.templates.get(name)) {
            // Checked when the configuration was read.
            Some(template) => self.resolve(template).ok(),
            None => ALWAYS.contains(&name).then(|| BoxOf { profile: BoxProfile::default(), network: None }),
        }
    }

    fn resolve(&self, template: &Template) -> Result<BoxOf, String> {
        let mut profile = match &template.profile {
            None => BoxProfile::default(),
            Some(name) => match self.profiles.get(name) {
                Some(profile) => profile.clone(),
                None => BoxProfile::named(name).map_err(|unknown| unknown.to_string())?.clone(),
            },
        };
        // The default profile is offline because its callers do not expect more; those of E2B do.
        let network = template.network.clone().or(template.profile.is_some().then(|| profile.network.into()));
        let Template {
            profile: _,
            image,
            cpus,
            memory_mb,
            pids_limit,
            disk_mb,
            read_only_rootfs,
            network: _,
        } = template;
        if let Some(image) = image {
            profile.image = image.clone().into();
        }
        profile.cpus = cpus.unwrap_or(profile.cpus);
        profile.memory_mb = memory_mb.unwrap_or(profile.memory_mb);
        profile.pids_limit = pids_limit.unwrap_or(profile.pids_limit);
        profile.workspace_quota_mb = disk_mb.unwrap_or(profile.workspace_quota_mb);
        profile.read_only_rootfs = read_only_rootfs.unwrap_or(profile.read_only_rootfs);
        Ok(BoxOf { profile, network })
    }
}

fn is_domain(text: &str) -> bool {
    let name = text.rsplit_once(':').map_or(text, |(name, port)| if is_port(port) { name } else { "" });
    !name.is_empty()
        && name.split('.').all(|part| {
            !part.is_empty()
                && part.len() < 64
                && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        })
}

fn is_port(text: &str) -> bool {
    text.parse::<u16>().is_ok_and(|port| port > 0)
}

/// The box that a template stands for.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct BoxOf {
    profile: BoxProfile,
    /// `None`: the face's own default.
    pub(crate) network: Option<NetworkRequest>,
}

impl BoxOf {
    /// The specification of a sandbox: persistent, so that it can be paused, with its private files as E2B's home.
    pub(crate) fn spec(&self, id: &str) -> BoxSpec {
        let BoxProfile { image, cpus, memory_mb, pids_limit, read_only_rootfs, workspace_quota_mb, .. } =
            &self.profile;
        BoxSpec {
            image: image.to_string(),
            cpus: *cpus,
            memory_mb: *memory_mb,
            pids_limit: *pids_limit,
            read_only_rootfs: *read_only_rootfs,
            workspace_quota_mb: *workspace_quota_mb,
            persistent: true,
            mount_path: super::HOME.to_owned(),
            workdir: super::HOME.to_owned(),
            ..BoxSpec::new(id)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> E2bConfig {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn the_sdks_own_templates_are_always_there() {
        let config = parse(r#"{"templates": {"data": {"image": "data:1", "memory_mb": 2048}}}"#);
        assert_eq!(config.problem(), None);
        assert_eq!(config.names(), ["base", "code-interpreter-beta", "code-interpreter-v1", "data"]);
        assert_eq!(config.template("base:latest").unwrap().spec("i1").memory_mb, 512);
        let data = config.template("data").unwrap().spec("i1");
        assert_eq!((data.image.as_str(), data.memory_mb, data.cpus), ("data:1", 2048, 1.0));
        assert!(data.persistent && data.mount_path == "/home/user");
        assert!(config.template("nope").is_none());
        let tagged = parse(r#"{"templates": {"a:1": {"cpus": 4}, "a": {"cpus": 2}}}"#);
        let cpus = |name: &str| tagged.template(name).unwrap().spec("i1").cpus;
        assert_eq!((cpus("a:1"), cpus("a"), cpus("a:2")), (4.0, 2.0, 2.0));
    }

    #[test]
    fn one_that_is_always_there_can_be_something_else() {
        let config = parse(r#"{"templates": {"base": {"profile": "network_extended", "cpus": 4}}}"#);
        let base = config.template("base").unwrap();
        assert_eq!((base.spec("i1").cpus, base.spec("i1").memory_mb), (4.0, 1024));
        assert_eq!(base.network, Some(NetworkRequest::on()));
    }

    #[test]
    fn what_cannot_be_used_is_named_with_its_key() {
        for (text, key, part) in [
            (r#"{"domain": "https://a.example"}"#, "e2b.domain", "host name"),
            (r#"{"max_timeout_sec": 0}"#, "e2b.max_timeout_sec", "at least 1"),
            (r#"{"templates": {"t": {"profile": "none"}}}"#, "e2b.templates", "none"),
            (r#"{"templates": {"t": {"memory_mb": 1}}}"#, "e2b.templates", "at least 32"),
        ] {
            let (found, _, problem) = parse(text).problem().unwrap();
            assert!(found == key && problem.contains(part), "{text}: {found} {problem}");
        }
        assert_eq!(parse(r#"{"domain": "box.localhost:8443"}"#).problem(), None);
    }
}
