//! Container engines: whether one is here, and what it would make boxes of.

use std::path::Path;

use sandcrate_backend_engine::{EngineConfig, EngineFacts, EngineKind, examine};

use super::check::{Check, Fix};

pub(super) async fn all(state_dir: &Path) -> Vec<Check> {
    let config = EngineConfig::new(state_dir);
    let mut checks = Vec::new();
    for kind in [EngineKind::Docker, EngineKind::Podman] {
        // None of them is needed: one that is not here is no fault.
        checks.push(match config.finds(kind) {
            false => Check::ok(kind.name(), "not here, and not needed"),
            true => match examine(kind, &config).await {
                Ok(facts) => found(kind, &facts, &config.image),
                Err(error) => silent(kind, &error.to_string()),
            },
        });
    }
    checks
}

fn silent(kind: EngineKind, why: &str) -> Check {
    let fix = Fix::new(
        [format!("systemctl start {kind}   # and let this user use its socket")],
        format!("runtime.backend = \"{kind}\" has no boxes; native ones are not concerned"),
    );
    Check::weak(kind.name(), why, fix)
}

fn found(kind: EngineKind, facts: &EngineFacts, image: &str) -> Check {
    let detail = format!(
        "{} at {}, cgroup v{}, {}",
        facts.version,
        facts.socket.display(),
        facts.cgroup_version,
        match (facts.rootless, facts.user_namespace) {
            (true, _) => "rootless",
            (false, true) => "with a user namespace",
            (false, false) => "without a user namespace",
        }
    );
    if !facts.unlimited.is_empty() {
        let without = facts.unlimited.join(", ");
        let fix = Fix::new(
            ["let the engine manage cgroups (rootless: delegate the controllers to its user)"],
            "its boxes are not held to these limits, and their record says so",
        );
        return Check::weak(kind.name(), format!("{detail}; it cannot limit {without}"), fix);
    }
    if !facts.seccomp {
        let fix = Fix::new(
            ["start the engine with its default seccomp profile"],
            "its boxes have no filter on system calls, and their record says so",
        );
        return Check::weak(kind.name(), format!("{detail}; it has no seccomp profile"), fix);
    }
    if !facts.has_image {
        let fix = Fix::new(
            [format!("{kind} pull {image}")],
            "a session that names no image waits for the pull, or fails without a registry",
        );
        return Check::weak(kind.name(), format!("{detail}; image {image} is not here"), fix);
    }
    Check::ok(kind.name(), detail)
}

#[cfg(test)]
mod tests {
    use super::super::check::CheckState;
    use super::*;

    fn facts() -> EngineFacts {
        EngineFacts {
            socket: "/run/docker.sock".into(),
            version: "20.10".to_owned(),
            cgroup_version: "2".to_owned(),
            rootless: false,
            user_namespace: false,
            seccomp: true,
            unlimited: Vec::new(),
            has_image: true,
        }
    }

    #[test]
    fn what_an_engine_lacks_is_told_with_the_fix() {
        let check = |facts: EngineFacts| found(EngineKind::Docker, &facts, "box:1");
        assert_eq!(check(facts()).state, CheckState::Ok);
        for (lacking, word) in [
            (EngineFacts { unlimited: vec!["memory"], ..facts() }, "cannot limit memory"),
            (EngineFacts { seccomp: false, ..facts() }, "no seccomp profile"),
            (EngineFacts { has_image: false, ..facts() }, "image box:1 is not here"),
        ] {
            let check = check(lacking);
            assert_eq!(check.state, CheckState::Weak);
            assert!(check.detail.contains(word) && check.fix.is_some(), "{check:?}");
        }
        let check = silent(EngineKind::Podman, "it does not answer");
        assert!(check.fix.unwrap().steps[0].contains("podman"));
    }
}
