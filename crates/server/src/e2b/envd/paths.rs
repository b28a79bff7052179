//! Paths and users as E2B means them: relative paths start at its home, and so does `~`.

use axum::http::{HeaderMap, header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::super::{HOME, USER};

/// The absolute path that is meant.
pub(super) fn resolve(path: &str) -> String {
    match path {
        "" | "~" | "." => HOME.to_owned(),
        absolute if absolute.starts_with('/') => absolute.to_owned(),
        other => {
            let rest = other.strip_prefix("~/").unwrap_or(other);
            format!("{HOME}/{}", rest.strip_prefix("./").unwrap_or(rest))
        }
    }
}

/// An absolute path without `.`, `..` and doubled slashes. By the text alone: a directory on the way that is a link is
/// taken for what it is called.
pub(super) fn tidy(path: &str) -> String {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

/// The last component, `/` for the root.
pub(super) fn name(path: &str) -> &str {
    let trimmed = path.trim_end_matches('/');
    trimmed.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or("/")
}

/// The user that a call names, if it names one.
pub(super) fn user_of(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, rest) = value.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let text = String::from_utf8(STANDARD.decode(rest.trim()).ok()?).ok()?;
    let user = text.split_once(':').map_or(text.as_str(), |(user, _)| user);
    Some(user.to_owned()).filter(|user| !user.is_empty())
}

/// A box has one user; `root` is that one's name where its root can be written.
pub(super) fn check_user(user: Option<&str>, writable_root: bool) -> Result<(), String> {
    match user {
        None | Some("" | USER) => Ok(()),
        Some("root") if writable_root => Ok(()),
        Some(other) => {
            let shown: String = other.chars().take(64).collect();
            Err(format!(
                "this sandbox has no user `{shown}`: everything in it is done by its own user, which is asked for \
                 as `{USER}` or by naming none. A template with `read_only_rootfs = false` has `root` as well"
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tidy_path_leads_nowhere_else() {
        for (path, tidied) in [("/a/./b", "/a/b"), ("/a//b/../c/", "/a/c"), ("/../a", "/a"), ("/", "/")] {
            assert_eq!(tidy(path), tidied);
        }
    }

    #[test]
    fn relative_paths_start_at_home() {
        for (path, meant) in [
            ("", "/home/user"),
            ("~", "/home/user"),
            ("~/a", "/home/user/a"),
            ("a/b", "/home/user/a/b"),
            ("./a", "/home/user/a"),
            (".hidden", "/home/user/.hidden"),
            ("~x", "/home/user/~x"),
            ("/tmp/x", "/tmp/x"),
        ] {
            assert_eq!(resolve(path), meant, "{path}");
        }
        assert_eq!((name("/a/b/"), name("/"), name("/x")), ("b", "/", "x"));
    }

    #[test]
    fn a_user_is_named_by_basic_credentials_without_a_password() {
        let headers = |value: &str| HeaderMap::from_iter([(header::AUTHORIZATION, value.parse().unwrap())]);
        assert_eq!(user_of(&headers("Basic dXNlcjo=")).as_deref(), Some("user"));
        assert_eq!(user_of(&headers("basic cm9vdDo=")).as_deref(), Some("root"));
        for none in ["Bearer dXNlcjo=", "Basic Og==", "Basic !", "Basic"] {
            assert_eq!(user_of(&headers(none)), None, "{none}");
        }
        assert!(check_user(None, false).is_ok() && check_user(Some("user"), false).is_ok());
        assert!(check_user(Some("root"), true).is_ok());
        assert!(check_user(Some("root"), false).unwrap_err().contains("`root`"));
        assert!(check_user(Some("eve"), true).is_err());
    }
}
