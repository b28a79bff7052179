//! What every part of Sandcrate agrees on: error kinds and what they look like on each face, and the record
//! of what was enforced. No I/O, nothing specific to Linux.

mod enforcement;
mod error;

pub use enforcement::{Control, Enforcement, Finding, State};
pub use error::{Appearance, ErrorKind};
