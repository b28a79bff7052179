//! What can go wrong with images.

use std::io;

use sandcrate_protocol::ErrorKind;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    #[error("image name `{name}` {rule}")]
    InvalidName { name: String, rule: &'static str },
    #[error("no image `{name}` is imported; `sandcrate image ls` lists those that are")]
    NotFound { name: String },
    #[error(
        "image `{name}` is in use; end its boxes first, or remove it with --force: they keep it until they end"
    )]
    InUse { name: String },
    #[error("image `{name}` was imported by {by}: import it again as the user who runs boxes")]
    OtherOwner { name: String, by: String },
    /// It is not what it says, or ends too early.
    #[error("the archive is not acceptable: {what}")]
    Archive { what: String },
    /// One entry that no image may have.
    #[error("entry `{entry}` is refused: {rule}")]
    Refused { entry: String, rule: String },
    #[error("the image has more than {limit} {what}; raise {flag} if that is meant")]
    TooLarge { what: &'static str, limit: u64, flag: &'static str },
    #[error("the image is for {image}, this machine is {host}: import one for {host}")]
    Architecture { image: String, host: &'static str },
    #[error("{what} has digest {found}, its manifest says {expected}: the archive is damaged")]
    Digest { what: String, expected: String, found: String },
    #[error("{step}")]
    Failed {
        step: String,
        #[source]
        source: io::Error,
    },
}

impl ImageError {
    pub(crate) fn archive(what: impl Into<String>) -> Self {
        Self::Archive { what: what.into() }
    }

    pub(crate) fn refused(entry: &[u8], rule: impl Into<String>) -> Self {
        Self::Refused { entry: shown(entry), rule: rule.into() }
    }

    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::InvalidName { .. }
            | Self::Archive { .. }
            | Self::Refused { .. }
            | Self::Architecture { .. }
            | Self::Digest { .. } => ErrorKind::Validation,
            Self::NotFound { .. } => ErrorKind::FileNotFound,
            Self::InUse { .. } => ErrorKind::SessionConflict,
            Self::OtherOwner { .. } => ErrorKind::Denied,
            Self::TooLarge { .. } => ErrorKind::LimitExceeded,
            Self::Failed { .. } => ErrorKind::Internal,
        }
    }
}

/// A name from an archive as people see it: bounded, and without control characters.
pub(crate) fn shown(name: &[u8]) -> String {
    const MOST: usize = 200;
    let cut = &name[..name.len().min(MOST)];
    let mut text: String =
        String::from_utf8_lossy(cut).chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    if cut.len() < name.len() {
        text.push('…');
    }
    text
}

/// Names the step in an error on its way out.
pub(crate) trait Step<T> {
    fn step<S: Into<String>>(self, step: impl FnOnce() -> S) -> Result<T, ImageError>;
}

impl<T, E: Into<io::Error>> Step<T> for Result<T, E> {
    fn step<S: Into<String>>(self, step: impl FnOnce() -> S) -> Result<T, ImageError> {
        self.map_err(|error| {
            let source: io::Error = error.into();
            // A bound of ours, met inside a reader.
            match source.downcast::<ImageError>() {
                Ok(ours) => ours,
                Err(source) => ImageError::Failed { step: step().into(), source },
            }
        })
    }
}
