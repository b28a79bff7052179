//! Zip archives of strangers: every number is checked before it is used, every entry before anything is written.
//!
//! Reading goes by the central directory alone. Refused are: more entries, bytes, depth or growth than the
//! limits say; links and other special files; names that are absolute, climb, repeat or pass through a file;
//! entries that share bytes; encryption, Zip64 and methods but store and deflate.

mod names;
mod reader;
mod writer;

pub use reader::{ZipArchive, ZipEntry};
pub(crate) use writer::ZipWriter;

const LOCAL_HEADER: u32 = 0x0403_4b50;
const CENTRAL_HEADER: u32 = 0x0201_4b50;
const END_OF_DIRECTORY: u32 = 0x0605_4b50;
/// The name is UTF-8.
const FLAG_UTF8: u16 = 1 << 11;
const STORED: u16 = 0;
const DEFLATED: u16 = 8;

#[cfg(test)]
#[path = "zip_tests.rs"]
mod tests;
