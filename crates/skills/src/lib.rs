//! The skill store: packages of files with a `SKILL.md`, by which an agent learns to do something.
//!
//! [`Skills`] is the handle for async callers: it runs everything that touches the disk on threads that may
//! block, a few at a time, and owns them. [`Store`] is one directory of packages. Every path of a caller is
//! resolved by the kernel beneath a directory we hold (`beneath`), every change takes a lock and appears whole
//! or not at all, and everything that a caller, an archive or a box can make long has a bound ([`Limits`]).
//!
//! It knows nothing of sessions: a package is a directory, and mounting it is a request like any other.

mod beneath;
mod error;
mod front_matter;
mod index;
mod limits;
mod name;
mod package;
mod skills;
mod store;
mod tree;
mod uploads;
mod zip;

pub use error::SkillError;
pub use front_matter::FrontMatter;
pub use limits::Limits;
pub use name::Scope;
pub use package::Skill;
pub use skills::{Skills, SkillsConfig};
pub use store::{
    Archive, Candidate, FileContent, FileEntry, ListRequest, Listing, NewSkill, Selection, SkillChange,
    Store, Written,
};
pub use tree::pack_directory;
pub use uploads::Chunk;
pub use zip::{ZipArchive, ZipEntry};
