//! Names: of skills, of the directories they are installed in, of uploads, of scopes.

use std::path::{Component, Path, PathBuf};

use sandcrate_protocol::python_trim;

use crate::SkillError;

/// The longest name of a skill that is made here.
const NAME_CHARS: usize = 64;
/// The kernel's NAME_MAX: a name becomes a directory in a box.
const COMPONENT_BYTES: usize = 255;
const FILE_KEY_BYTES: usize = 200;
/// Ours in every root: the lock and what is not finished yet.
pub(crate) const PRIVATE_DIR: &str = ".sandcrate";
/// Where scoped stores live; the shared one does not look into it.
pub(crate) const TENANTS_DIR: &str = "tenants";

/// Whose skills: everybody's, or those of one workspace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub enum Scope {
    #[default]
    Shared,
    /// A namespace below `tenants`. One directory name.
    Tenant(String),
}

impl Scope {
    pub(crate) fn directory(&self, root: &Path) -> Result<PathBuf, SkillError> {
        match self {
            Self::Shared => Ok(root.to_owned()),
            Self::Tenant(name) if is_component(name) && !name.starts_with('.') => {
                Ok(root.join(TENANTS_DIR).join(name))
            }
            Self::Tenant(_) => Err(SkillError::invalid("scope", "the scope must be one directory name")),
        }
    }
}

/// Whether a text can be the name of one directory.
pub(crate) fn is_component(name: &str) -> bool {
    !matches!(name, "" | "." | "..")
        && name.len() <= COMPONENT_BYTES
        && !name.chars().any(|c| c == '/' || c == '\\' || c.is_control())
}

/// The name of a skill that is to be made.
pub(crate) fn check_new(name: &str) -> Result<String, SkillError> {
    let name = python_trim(name);
    let refuse = |problem: &str| Err(SkillError::invalid("name", problem));
    if name.is_empty() {
        return refuse("Skill name is required");
    }
    let mut letters = name.chars().filter(|c| !matches!(c, '-' | '_')).peekable();
    if letters.peek().is_none() || !letters.all(char::is_alphanumeric) {
        return refuse("Skill name can only contain letters, numbers, hyphens and underscores");
    }
    if name.chars().count() > NAME_CHARS || name.len() > COMPONENT_BYTES {
        return refuse("Skill name cannot exceed 64 characters");
    }
    Ok(name.to_owned())
}

/// A path of a caller inside a package, without `.` and `..`; empty for the package itself.
pub(crate) fn relative(path: &str) -> Result<String, SkillError> {
    let refuse = |problem: &str| Err(SkillError::invalid("path", problem));
    if path.starts_with('/') || path.starts_with('\\') {
        return refuse("path must be relative to the skill package root");
    }
    if path.contains('\0') {
        return refuse("path must not contain a NUL");
    }
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                if parts.pop().is_none() {
                    return refuse("path must stay within the skill package root");
                }
            }
            part => parts.push(part),
        }
    }
    // The reference refuses these names too, and hosts rely on no file having one.
    if parts.first().is_some_and(|first| first.starts_with("..")) {
        return refuse("path must stay within the skill package root");
    }
    Ok(parts.join("/"))
}

/// The directory that an archive is installed in: `stem[-leaf][-suffix]`.
pub(crate) fn target_directory(filename: &str, leaf: &str, suffix: &str) -> Result<String, SkillError> {
    let stem = filename.rsplit(['/', '\\']).next().unwrap_or_default();
    let stem = match stem.rsplit_once('.') {
        Some((before, _)) if !before.is_empty() => before,
        _ => stem,
    };
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_');
    let name: String = stem.chars().map(|c| if plain(c) { c } else { '-' }).collect();
    let name = name.trim_matches(['-', '_']);
    let mut name = if name.is_empty() { "uploaded-skill".to_owned() } else { name.to_owned() };
    if !leaf.is_empty() {
        let leaf: String = leaf.chars().map(|c| if plain(c) { c } else { '-' }).collect();
        name = format!("{name}-{leaf}");
    }
    let suffix = suffix.trim();
    if !suffix.chars().all(plain) {
        let problem = "target_suffix can only contain letters, numbers, hyphens and underscores";
        return Err(SkillError::invalid("target_suffix", problem));
    }
    if !suffix.is_empty() {
        name = format!("{name}-{suffix}");
    }
    if name.len() > COMPONENT_BYTES {
        return Err(SkillError::invalid("filename", "the file name is too long for a directory"));
    }
    Ok(name)
}

/// The key of an upload is a name and never a path.
pub(crate) fn check_file_key(key: &str) -> Result<(), SkillError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if key.is_empty() || key.len() > FILE_KEY_BYTES || key.starts_with('.') || !key.bytes().all(plain) {
        let problem = "file_key can only contain letters, digits, dots, hyphens and underscores";
        return Err(SkillError::invalid("file_key", problem));
    }
    Ok(())
}

/// Whether a path below a root is ours, or of another scope, and no package's.
pub(crate) fn is_private(below: &Path) -> bool {
    let mut parts = below.components();
    let first = parts.clone().next();
    matches!(first, Some(Component::Normal(first)) if first == TENANTS_DIR)
        || parts.any(|part| part.as_os_str() == PRIVATE_DIR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_skills_follow_the_reference() {
        for good in ["a", "技能", " s1 ", "a-b_c", "é9"] {
            assert_eq!(check_new(good).unwrap(), good.trim());
        }
        for (bad, part) in [
            ("", "required"),
            ("  ", "required"),
            ("a b", "only contain"),
            ("../x", "only contain"),
            ("---", "only contain"),
            (&"a".repeat(65), "64 characters"),
        ] {
            assert!(check_new(bad).unwrap_err().to_string().contains(part), "{bad}");
        }
    }

    #[test]
    fn paths_stay_in_the_package() {
        assert_eq!(relative(".").unwrap(), "");
        assert_eq!(relative("a//./b/../c/").unwrap(), "a/c");
        for bad in ["..", "../x", "a/../../x", "..x", "/etc", "\\\\srv\\x", "a\0b"] {
            assert!(relative(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn s8_a_target_directory_is_one_name_below_the_root() {
        let name = |filename, leaf, suffix| target_directory(filename, leaf, suffix).unwrap();
        assert_eq!(name("my skill!.zip", "", "upload"), "my-skill-upload");
        assert_eq!(name("repo.zip", "one", "upload"), "repo-one-upload");
        assert_eq!(name("x.zip", "", ""), "x");
        assert_eq!(name("../../../etc/passwd", "", ""), "passwd");
        assert_eq!(name("...", "", "u"), "uploaded-skill-u");
        assert_eq!(name("C:\\temp\\skill.zip", "", ""), "skill");
        assert_eq!(name("x.zip", "../y", ""), "x----y");
        for bad in ["../../../esc", "a/b", "..", "a\0"] {
            assert!(target_directory("x.zip", "", bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn s7_a_file_key_is_no_path() {
        check_file_key("5bcd819cfa1a1004-f0b6d6b40d224bbba3eb98c4e7c157fc.zip").unwrap();
        for bad in ["", "../x", "/etc/passwd", ".hidden", "..", "a/b", "a b", &"k".repeat(300)] {
            assert!(check_file_key(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_ours_or_another_scope_s_is_private() {
        for private in [
            "tenants",
            "tenants/a/one",
            ".sandcrate",
            ".sandcrate/x",
            "tenants/a/.sandcrate",
            "a/.sandcrate/b",
        ] {
            assert!(is_private(Path::new(private)), "{private}");
        }
        for package in ["a", "a/tenants", "a/b/SKILL.md", "tenants2/x"] {
            assert!(!is_private(Path::new(package)), "{package}");
        }
    }

    #[test]
    fn a_scope_is_one_directory_below_tenants() {
        let tenant = |name: &str| Scope::Tenant(name.to_owned()).directory(Path::new("/r"));
        assert_eq!(tenant("ws-1").unwrap(), Path::new("/r/tenants/ws-1"));
        for bad in ["", "..", ".", "a/b", ".sandcrate", "a\0b"] {
            assert!(tenant(bad).is_err(), "{bad}");
        }
    }
}
