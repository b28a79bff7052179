//! Paths of the host among a server's arguments that its box does not have.

use std::path::Path;

use sandcrate_backend::refused_source;
use sandcrate_protocol::MountSpec;
use serde_json::json;

/// How whoever configures a server shows it more of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MountBy {
    /// `-v` of `sandcrate mcp run`, by somebody who may look at the host's files.
    Flag,
    /// `box.mounts` of a managed server. Which files the host has is not for its clients to learn: nothing is looked
    /// at, and every path counts.
    Setting,
}

/// Parts of the host that boxes have.
const SHOWN: [&str; 7] = ["/usr", "/bin", "/sbin", "/dev", "/proc", "/etc/ssl", "/etc/pki"];
/// What a box has of its own. What lies below on the host is not in it.
const OWN: [&str; 3] = ["/", "/tmp", "/workspace"];

/// The absolute path that an argument is, or has after `--name=`.
pub(crate) fn path_in(argument: &str) -> Option<&str> {
    let value = match argument.split_once('=') {
        Some((name, value)) if name.starts_with('-') => value,
        _ => argument,
    };
    value.starts_with('/').then_some(value)
}

/// Whether the path of an argument is for the host alone, as far as can be told from here.
fn is_of_the_host(path: &Path, by: MountBy) -> bool {
    let is_library = path.iter().nth(1).is_some_and(|first| first.to_string_lossy().starts_with("lib"));
    let is_shown = is_library || SHOWN.iter().any(|tree| path.starts_with(tree));
    let is_own = OWN.iter().any(|place| path == Path::new(place));
    !is_shown && !is_own && (by == MountBy::Setting || path.exists())
}

/// What to tell of an argument whose path the box does not have.
pub(crate) fn note(argument: &str, mounts: &[MountSpec], by: MountBy) -> Option<String> {
    let text = path_in(argument)?;
    let path = Path::new(text);
    if mounts.iter().any(|mount| path.starts_with(&mount.mount_path)) || !is_of_the_host(path, by) {
        return None;
    }
    if path.starts_with("/etc") {
        return Some(format!("{text} may not be in the box, which has few of the host's files in /etc"));
    }
    let resolved = match by {
        MountBy::Flag => path.canonicalize().ok(),
        MountBy::Setting => None,
    };
    if let Some(rule) = refused_source(resolved.as_deref().unwrap_or(path), &[]) {
        return Some(format!("{text} is not in the box, and cannot be: {rule}"));
    }
    Some(match by {
        MountBy::Flag => format!("{text} is not in the box; -v {text}:{text}:ro shows it there"),
        MountBy::Setting => {
            let mount = json!({"host_path": text, "mount_path": text, "mode": "ro"});
            format!(
                "{text} is not in the box; box.mounts [{mount}] shows it there, if mounts.roots allows it"
            )
        }
    })
}

#[cfg(test)]
mod tests {
    use sandcrate_protocol::MountMode;

    use super::*;

    #[test]
    fn a_path_of_the_host_is_told_with_what_shows_it() {
        let place = tempfile::tempdir().unwrap();
        let data = place.path().to_str().unwrap();
        let by_flag = |argument: &str| note(argument, &[], MountBy::Flag);
        // Below /tmp, most likely: the box's own is empty.
        let told = format!("{data} is not in the box; -v {data}:{data}:ro shows it there");
        assert_eq!(by_flag(data), Some(told.clone()));
        assert_eq!(by_flag(&format!("--root={data}")), Some(told));
        let mount = MountSpec::new("/elsewhere", data, MountMode::Ro);
        assert_eq!(note(&format!("{data}/x"), &[mount], MountBy::Flag), None);
        for fine in ["/tmp", "/workspace", "/", "/usr/bin/env", "/no/such/thing", "x", "--root=x", "a=/tmp/x"]
        {
            assert_eq!(by_flag(fine), None, "{fine}");
        }
        assert!(by_flag("/home").unwrap().contains("cannot be: /home as a whole is too wide"));
        assert!(by_flag("/etc/passwd").unwrap().contains("may not be in the box"));
    }

    #[test]
    fn of_a_managed_server_s_paths_nothing_is_looked_at() {
        let told = note("/no/such/data", &[], MountBy::Setting).unwrap();
        assert!(told.contains(r#"box.mounts [{"host_path":"/no/such/data""#), "{told}");
        let mount = MountSpec::new("/srv/data", "/data", MountMode::Ro);
        assert_eq!(note("/data", &[mount], MountBy::Setting), None);
        assert_eq!(note("/usr/share/x", &[], MountBy::Setting), None);
    }
}
