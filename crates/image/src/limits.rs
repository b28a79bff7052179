//! How much an import may take, and how it tells of its progress.

use std::io::{self, Read};

use crate::error::ImageError;

/// Hard bounds of one import.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImportLimits {
    /// Files, directories and links, of all layers together.
    pub entries: u64,
    /// Bytes of all files, expanded, of all layers together.
    pub bytes: u64,
}

impl Default for ImportLimits {
    fn default() -> Self {
        // Several times the largest images in use: a full texlive or CUDA has some 300,000 files and 10 GB.
        Self { entries: 2_000_000, bytes: 32 << 30 }
    }
}

/// Headers, padding and extended headers of one entry, when both names have the most bytes.
const OVERHEAD: u64 = 16 << 10;

impl ImportLimits {
    /// What a stream of archive may have at most, expanded: an archive of nothing but headers ends too.
    pub(crate) fn stream_bytes(&self) -> u64 {
        self.bytes.saturating_add(self.entries.saturating_mul(OVERHEAD))
    }

    pub(crate) fn too_many_bytes(&self) -> ImageError {
        ImageError::TooLarge { what: "bytes", limit: self.bytes, flag: "--max-size" }
    }

    pub(crate) fn too_many_entries(&self) -> ImageError {
        ImageError::TooLarge { what: "entries", limit: self.entries, flag: "--max-entries" }
    }
}

/// What an import has done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    pub entries: u64,
    pub bytes: u64,
}

/// What the streams of an import may still have, all together.
#[derive(Debug)]
pub(crate) struct Allowance {
    left: u64,
    limits: ImportLimits,
}

impl Allowance {
    pub(crate) fn new(limits: ImportLimits) -> Self {
        Self { left: limits.stream_bytes(), limits }
    }

    /// A stream that takes from it.
    pub(crate) fn of<R: Read>(&mut self, input: R) -> Bounded<'_, R> {
        Bounded { input, allowance: self }
    }
}

/// Ends with an error, not with an end of file, when there is more than allowed.
#[derive(Debug)]
pub(crate) struct Bounded<'a, R> {
    input: R,
    allowance: &'a mut Allowance,
}

impl<R: Read> Read for Bounded<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read(buffer)?;
        match self.allowance.left.checked_sub(count as u64) {
            Some(left) => self.allowance.left = left,
            None => return Err(io::Error::other(self.allowance.limits.too_many_bytes())),
        }
        Ok(count)
    }
}
