//! How an attempt ended.

use std::io;

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    Held,
    Broken,
    /// The attempt could not be made here.
    NotApplicable,
}

impl Verdict {
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Broken => "BROKEN",
            Self::NotApplicable => "n/a",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Outcome {
    pub(super) verdict: Verdict,
    pub(super) detail: String,
}

impl Outcome {
    pub(super) fn held(detail: impl Into<String>) -> Self {
        Self { verdict: Verdict::Held, detail: detail.into() }
    }

    pub(super) fn broken(detail: impl Into<String>) -> Self {
        Self { verdict: Verdict::Broken, detail: detail.into() }
    }

    pub(super) fn not_applicable(detail: impl Into<String>) -> Self {
        Self { verdict: Verdict::NotApplicable, detail: detail.into() }
    }

    /// Held when there is no complaint, else broken by all of them.
    pub(super) fn from_complaints(complaints: &[String], held: impl Into<String>) -> Self {
        // Enough to see what it is about.
        const SHOWN: usize = 5;
        match complaints {
            [] => Self::held(held),
            all if all.len() <= SHOWN => Self::broken(all.join("; ")),
            all => Self::broken(format!("{}; and {} more", all[..SHOWN].join("; "), all.len() - SHOWN)),
        }
    }
}

/// Something that must fail, whatever the error.
pub(super) fn must_fail<T>(result: Result<T, impl Into<io::Error>>) -> Outcome {
    match result {
        Ok(_) => Outcome::broken("it was permitted"),
        Err(error) => Outcome::held(error.into().to_string()),
    }
}

/// A system call that must be refused before the kernel looks at its arguments: with other errors it was
/// permitted and found the (harmless) arguments wanting.
pub(super) fn must_be_refused(result: io::Result<()>) -> Outcome {
    const EPERM: i32 = 1;
    const EACCES: i32 = 13;
    const ENOSYS: i32 = 38;
    match result {
        Ok(()) => Outcome::broken("it was permitted"),
        Err(error) => match error.raw_os_error() {
            Some(EPERM | EACCES | ENOSYS) => Outcome::held(error.to_string()),
            _ => Outcome::broken(format!("it reached the kernel: {error}")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_looked_at_its_arguments_was_permitted() {
        let verdict = |errno| must_be_refused(Err(io::Error::from_raw_os_error(errno))).verdict;
        assert_eq!([verdict(1), verdict(13), verdict(38)], [Verdict::Held; 3]);
        assert_eq!([verdict(14), verdict(22)], [Verdict::Broken; 2]);
        assert_eq!(must_be_refused(Ok(())).verdict, Verdict::Broken);
    }

    #[test]
    fn complaints_are_shown_up_to_a_point() {
        let many: Vec<String> = (0..7).map(|n| n.to_string()).collect();
        assert_eq!(Outcome::from_complaints(&many, "").detail, "0; 1; 2; 3; 4; and 2 more");
        assert_eq!(Outcome::from_complaints(&[], "fine"), Outcome::held("fine"));
    }
}
