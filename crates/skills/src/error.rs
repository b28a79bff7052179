//! What can go wrong with skills. The words are those of LangBot's runtime where it has any: hosts show them.

use std::io;
use std::path::PathBuf;

use sandcrate_protocol::ErrorKind;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SkillError {
    /// A field of the request that cannot be accepted.
    #[error("{problem}")]
    Invalid { field: &'static str, problem: String },
    #[error("Skill \"{name}\" not found")]
    NotFound { name: String },
    #[error("Skill with name \"{name}\" already exists")]
    Exists { name: String },
    #[error("Skill directory already exists: {}", path.display())]
    DirectoryExists { path: PathBuf },
    #[error("Directory does not exist: {}", path.display())]
    NoDirectory { path: PathBuf },
    /// A directory that is neither below the skills root nor below an allowed mount root.
    #[error(
        "{} is outside the skill roots: {}; the operator can list more: [mounts] roots = [\"/path\"]",
        path.display(),
        roots.join(", ")
    )]
    OutsideRoots { path: PathBuf, roots: Vec<String> },
    #[error("No SKILL.md found in {path}")]
    NoEntryFile { path: String },
    #[error("No SKILL.md found in {path} or its subdirectories (max depth: {depth})")]
    NoPackage { path: String, depth: usize },
    #[error("Multiple skill directories found in {}. Please choose a more specific path: {}", path.display(), found.join(", "))]
    SeveralPackages { path: PathBuf, found: Vec<String> },
    #[error("Only managed skills under the Box skills root can be deleted")]
    NotManaged,
    #[error("{problem}")]
    FrontMatter { problem: String },
    #[error("Skill directory not found: {path}")]
    NoSkillDirectory { path: String },
    #[error("Skill file not found: {path}")]
    NoFile { path: String },
    #[error("Skill file is not valid UTF-8 text: {path}")]
    NotText { path: String },
    #[error("Is a directory: {path}")]
    IsDirectory { path: String },
    /// The file is not the one that the caller read.
    #[error("Skill file has changed since it was read: {path}")]
    Changed { path: String },
    /// An archive that is not acceptable.
    #[error("{problem}")]
    Archive { problem: String },
    #[error("{what} exceeds the limit of {limit}")]
    LimitExceeded { what: String, limit: String },
    #[error("the skills in {} are being changed by another program; try again", path.display())]
    Busy { path: PathBuf },
    #[error("{step} failed")]
    Io {
        step: String,
        #[source]
        source: io::Error,
    },
}

impl SkillError {
    pub(crate) fn invalid(field: &'static str, problem: impl Into<String>) -> Self {
        Self::Invalid { field, problem: problem.into() }
    }

    pub(crate) fn archive(problem: impl Into<String>) -> Self {
        Self::Archive { problem: problem.into() }
    }

    pub(crate) fn limit(what: impl Into<String>, limit: impl Into<String>) -> Self {
        Self::LimitExceeded { what: what.into(), limit: limit.into() }
    }

    pub(crate) fn io(step: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::Io { step: step.into(), source: source.into() }
    }

    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Invalid { .. }
            | Self::NoDirectory { .. }
            | Self::NoEntryFile { .. }
            | Self::NoPackage { .. }
            | Self::SeveralPackages { .. }
            | Self::FrontMatter { .. }
            | Self::Archive { .. } => ErrorKind::Validation,
            Self::NotFound { .. } => ErrorKind::SkillNotFound,
            Self::Exists { .. } | Self::DirectoryExists { .. } | Self::Changed { .. } | Self::Busy { .. } => {
                ErrorKind::SkillConflict
            }
            Self::OutsideRoots { .. } | Self::NotManaged => ErrorKind::Denied,
            Self::NoSkillDirectory { .. } | Self::NoFile { .. } => ErrorKind::FileNotFound,
            Self::NotText { .. } | Self::IsDirectory { .. } => ErrorKind::FileFailed,
            Self::LimitExceeded { .. } => ErrorKind::LimitExceeded,
            Self::Io { .. } => ErrorKind::Internal,
        }
    }

    /// The field of the request that is at fault, where one is.
    pub fn field(&self) -> Option<&'static str> {
        match self {
            Self::Invalid { field, .. } => Some(field),
            Self::OutsideRoots { .. } | Self::NoDirectory { .. } => Some("package_root"),
            _ => None,
        }
    }
}
