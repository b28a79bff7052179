//! Images of the native backend: what an archive or a directory holds, unpacked once into the state directory and
//! shared read-only by all boxes that are made of it.
//!
//! Everything here treats an archive as hostile: paths never leave the root that is being unpacked, devices and
//! odd entries are refused, and entries, bytes and memory are bounded. Mounting is `jail`'s and `backend-native`'s.

mod archive;
mod config;
mod decompress;
mod directory;
mod error;
mod import;
mod layer;
mod limits;
mod name;
mod places;
mod record;
mod root;
mod store;
mod tar;
#[cfg(test)]
mod testing;

pub use config::ImageConfig;
pub use error::ImageError;
pub use limits::{ImportLimits, Progress};
pub use name::ImageName;
pub use record::{ImageRecord, ImageSource, Ownership};
pub use store::{HeldImage, ImageStore, Replaced};
