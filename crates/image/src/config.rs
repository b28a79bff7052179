//! An image's own configuration, as engines write it: recorded, and its environment used.

use serde::{Deserialize, Serialize};

use crate::error::ImageError;

/// All of a configuration that is recorded: several times what any image in use has, and read at every start.
const MAX_CONFIG: usize = 64 << 10;

/// What the image says about how it is meant to be run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageConfig {
    /// `KEY=VALUE`: the environment of every command, under the session's own.
    pub env: Vec<String>,
    pub cmd: Vec<String>,
    pub entrypoint: Vec<String>,
    pub working_dir: String,
    pub user: String,
    pub architecture: String,
}

/// The document of an engine.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Document {
    #[serde(default)]
    architecture: Option<String>,
    #[serde(default)]
    os: Option<String>,
    #[serde(default)]
    config: Option<Inner>,
    #[serde(default)]
    rootfs: Option<RootFs>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Inner {
    #[serde(default)]
    env: Option<Vec<String>>,
    #[serde(default)]
    cmd: Option<Vec<String>>,
    #[serde(default)]
    entrypoint: Option<Vec<String>>,
    #[serde(default)]
    working_dir: Option<String>,
    #[serde(default)]
    user: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
struct RootFs {
    #[serde(default)]
    diff_ids: Option<Vec<String>>,
}

/// Names of this machine's architecture, as engines and as Rust have them.
const ARCHITECTURES: [(&str, &str); 6] = [
    ("x86_64", "amd64"),
    ("aarch64", "arm64"),
    ("x86", "386"),
    ("arm", "arm"),
    ("riscv64", "riscv64"),
    ("s390x", "s390x"),
];

impl Document {
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, ImageError> {
        serde_json::from_slice(bytes)
            .map_err(|error| ImageError::archive(format!("its configuration cannot be read: {error}")))
    }

    /// Refuses what is too long to be recorded.
    fn check_size(&self) -> Result<(), ImageError> {
        let Some(inner) = &self.config else { return Ok(()) };
        let lists = [&inner.env, &inner.cmd, &inner.entrypoint].into_iter().flatten().flatten();
        let words = [&inner.working_dir, &inner.user, &self.architecture].into_iter().flatten();
        // One more for each: many empty ones are long as well.
        let bytes: usize = lists.chain(words).map(|text| text.len() + 1).sum();
        if bytes > MAX_CONFIG {
            return Err(ImageError::archive(format!(
                "its configuration has {bytes} bytes of Env, Cmd and Entrypoint, {MAX_CONFIG} at most are taken; \
                 make them shorter"
            )));
        }
        Ok(())
    }

    /// Refuses what this machine could not run.
    pub(crate) fn check(&self) -> Result<(), ImageError> {
        self.check_size()?;
        let host =
            ARCHITECTURES.iter().find(|(rust, _)| *rust == std::env::consts::ARCH).map(|(_, name)| *name);
        let os = self.os.as_deref().filter(|os| !os.is_empty());
        if let Some(other) = os.filter(|os| *os != "linux") {
            return Err(ImageError::Architecture {
                image: crate::error::shown(other.as_bytes()),
                host: "linux",
            });
        }
        match (self.architecture.as_deref().filter(|name| !name.is_empty()), host) {
            (Some(image), Some(host)) if image != host => {
                Err(ImageError::Architecture { image: crate::error::shown(image.as_bytes()), host })
            }
            _ => Ok(()),
        }
    }

    /// Digests of the expanded layers.
    pub(crate) fn diff_ids(&self) -> &[String] {
        self.rootfs.as_ref().and_then(|root| root.diff_ids.as_deref()).unwrap_or_default()
    }

    pub(crate) fn config(self) -> ImageConfig {
        let inner = self.config.unwrap_or_default();
        ImageConfig {
            env: inner.env.unwrap_or_default(),
            cmd: inner.cmd.unwrap_or_default(),
            entrypoint: inner.entrypoint.unwrap_or_default(),
            working_dir: inner.working_dir.unwrap_or_default(),
            user: inner.user.unwrap_or_default(),
            architecture: self.architecture.unwrap_or_default(),
        }
    }
}

impl ImageConfig {
    /// The environment as pairs. What no environment can have is left out, and so is HOME: where it is, is the
    /// box's to say.
    pub fn environment(&self) -> impl Iterator<Item = (&str, &str)> {
        self.env.iter().filter_map(|pair| pair.split_once('=')).filter(|(key, value)| {
            !key.is_empty() && *key != "HOME" && !key.contains('\0') && !value.contains('\0')
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engines_document_is_read_and_its_gaps_are_empty() {
        let document = Document::read(
            br#"{"os":"linux","config":{"Env":["PATH=/bin","HOME=/x","odd"],"Cmd":null,"WorkingDir":"/app"},
                "rootfs":{"type":"layers","diff_ids":["sha256:1"]},"history":[]}"#,
        )
        .unwrap();
        document.check().unwrap();
        assert_eq!(document.diff_ids(), ["sha256:1"]);
        let config = document.config();
        assert_eq!(config.environment().collect::<Vec<_>>(), [("PATH", "/bin")]);
        assert_eq!((config.working_dir.as_str(), config.cmd.len()), ("/app", 0));
        assert!(Document::read(b"{}").unwrap().check().is_ok());
    }

    #[test]
    fn a_configuration_that_no_record_could_hold_is_refused() {
        let of = |env: Vec<String>| {
            Document::read(serde_json::json!({"config": {"Env": env}}).to_string().as_bytes())
                .unwrap()
                .check()
        };
        of(vec!["A=".to_owned() + &"x".repeat(60_000)]).unwrap();
        for env in [vec!["A=".to_owned() + &"x".repeat(66_000)], vec![String::new(); 100_000]] {
            let error = of(env).unwrap_err();
            assert!(error.to_string().contains("Env"), "{error}");
        }
    }

    #[test]
    fn an_image_for_another_machine_is_refused() {
        for text in [r#"{"architecture":"vax"}"#, r#"{"os":"windows"}"#] {
            let error = Document::read(text.as_bytes()).unwrap().check().unwrap_err();
            assert!(error.to_string().contains("this machine is"), "{error}");
        }
        assert!(Document::read(b"[1]").is_err());
    }
}
