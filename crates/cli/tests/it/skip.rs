//! Loud skips that can be forbidden.

use std::io::Write;
use std::path::PathBuf;
use std::sync::LazyLock;

/// Something that a machine may lack.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Feature {
    /// Boxes run at all.
    Box,
    /// The tests run as root.
    Root,
    /// Limits on the whole box by cgroups.
    Cgroups,
    /// Boxes can have a network that is held to a policy.
    IsolatedNetwork,
    /// Ctrl-C is not ignored by whoever started the tests, as in a background job of a script.
    Interrupts,
    /// A program of the host, on PATH.
    Program(&'static str),
}

static REQUIRED: LazyLock<Vec<String>> = LazyLock::new(|| {
    let names = std::env::var("SANDCRATE_TEST_REQUIRE").unwrap_or_default();
    names.split(',').map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect()
});

/// Why boxes do not run here.
static NO_BOX: LazyLock<Option<String>> = LazyLock::new(|| {
    let output = crate::driver::sandcrate(&["run", "--", "true"]).run();
    (output.code != 0).then_some(output.stderr)
});

/// The record of a box made here.
static NO_CGROUPS: LazyLock<Option<String>> = LazyLock::new(|| {
    let output = crate::driver::sandcrate(&["run", "--require", "memory,pids,cpu", "--", "true"]).run();
    (output.code != 0).then_some(output.stderr)
});

/// Why boxes have no network of their own here.
static NO_NETWORK: LazyLock<Option<String>> = LazyLock::new(|| {
    let output = crate::driver::sandcrate(&["run", "--allow-net", "only.example", "--", "true"]).run();
    (output.code != 0).then_some(output.stderr)
});

impl Feature {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Box => "box",
            Self::Root => "root",
            Self::Cgroups => "cgroups",
            Self::IsolatedNetwork => "isolated-network",
            Self::Interrupts => "interrupts",
            Self::Program(name) => name,
        }
    }

    fn missing(self) -> Option<String> {
        match self {
            Self::Box => NO_BOX.clone(),
            Self::Root => (!rustix::process::geteuid().is_root()).then(|| "not root".to_owned()),
            Self::Cgroups => NO_CGROUPS.clone(),
            Self::IsolatedNetwork => NO_NETWORK.clone(),
            Self::Interrupts => ignores_interrupts().then(|| "SIGINT is ignored here".to_owned()),
            Self::Program(name) => find(name).is_none().then(|| "not installed".to_owned()),
        }
    }
}

fn ignores_interrupts() -> bool {
    const SIGINT_BIT: u64 = 1 << 1;
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() & SIGINT_BIT != 0
}

/// A program on this process's PATH.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file())
}

/// Past the test harness, which swallows what a passing test prints.
pub(crate) fn say(why: &str) {
    let _ = writeln!(std::io::stderr().lock(), "SKIP: {}", why.trim());
}

/// True when the test must stop here because the host lacks a feature. Panics if `SANDCRATE_TEST_REQUIRE`
/// names the feature: this host is supposed to have it.
pub(crate) fn skip_without(features: &[Feature]) -> bool {
    for feature in features {
        let Some(why) = feature.missing() else { continue };
        let name = feature.name();
        assert!(
            !REQUIRED.iter().any(|required| required == name),
            "`{name}` is required here but missing: {why}"
        );
        say(&format!("needs {name}: {why}"));
        return true;
    }
    false
}
