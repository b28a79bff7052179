//! Writes archives for export: deflated, names in UTF-8, modes of files kept.

use std::io::Write;

use flate2::Compression;
use flate2::Crc;
use flate2::write::DeflateEncoder;

use super::{CENTRAL_HEADER, DEFLATED, END_OF_DIRECTORY, FLAG_UTF8, LOCAL_HEADER, STORED};
use crate::SkillError;

/// 1980-01-01, the first day a zip knows: the same files make the same archive.
const DAY: u16 = (1 << 5) | 1;
/// Version 2.0, made on Unix.
const VERSION: u16 = 20;
const MADE_ON_UNIX: u16 = (3 << 8) | VERSION;

#[derive(Debug, Default)]
pub(crate) struct ZipWriter {
    bytes: Vec<u8>,
    directory: Vec<u8>,
    count: u16,
}

impl ZipWriter {
    pub(crate) fn file(&mut self, name: &str, content: &[u8], executable: bool) -> Result<(), SkillError> {
        let failed = |error| SkillError::io(format!("packing {name}"), error);
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(content).map_err(failed)?;
        let packed = encoder.finish().map_err(failed)?;
        let mut crc = Crc::new();
        crc.update(content);
        let mode = if executable { 0o100_755 } else { 0o100_644 };
        // What does not shrink is stored.
        let (method, data) =
            if packed.len() < content.len() { (DEFLATED, packed.as_slice()) } else { (STORED, content) };
        self.add(name, method, crc.sum(), data, content.len(), mode)
    }

    pub(crate) fn directory(&mut self, name: &str) -> Result<(), SkillError> {
        self.add(&format!("{name}/"), STORED, 0, &[], 0, 0o040_755)
    }

    fn add(
        &mut self,
        name: &str,
        method: u16,
        crc: u32,
        data: &[u8],
        size: usize,
        mode: u32,
    ) -> Result<(), SkillError> {
        let too_long = || SkillError::limit("an archive for export", "4 GiB and 65534 entries");
        let start = u32::try_from(self.bytes.len()).map_err(|_| too_long())?;
        let size = u32::try_from(size).map_err(|_| too_long())?;
        let packed = u32::try_from(data.len()).map_err(|_| too_long())?;
        let name_bytes = u16::try_from(name.len()).map_err(|_| too_long())?;
        self.count = self.count.checked_add(1).filter(|count| *count < u16::MAX).ok_or_else(too_long)?;
        let mut common = Vec::new();
        for short in [VERSION, FLAG_UTF8, method, 0, DAY] {
            common.extend(short.to_le_bytes());
        }
        for long in [crc, packed, size] {
            common.extend(long.to_le_bytes());
        }
        common.extend(name_bytes.to_le_bytes());
        common.extend([0, 0]);
        self.bytes.extend(LOCAL_HEADER.to_le_bytes());
        self.bytes.extend(&common);
        self.bytes.extend(name.as_bytes());
        self.bytes.extend(data);
        self.directory.extend(CENTRAL_HEADER.to_le_bytes());
        self.directory.extend(MADE_ON_UNIX.to_le_bytes());
        self.directory.extend(&common);
        // No comment, the first disk, nothing internal.
        self.directory.extend([0; 6]);
        self.directory.extend((mode << 16).to_le_bytes());
        self.directory.extend(start.to_le_bytes());
        self.directory.extend(name.as_bytes());
        Ok(())
    }

    pub(crate) fn finish(mut self) -> Result<Vec<u8>, SkillError> {
        let too_long = |_| SkillError::limit("an archive for export", "4 GiB and 65534 entries");
        let start = u32::try_from(self.bytes.len()).map_err(too_long)?;
        let size = u32::try_from(self.directory.len()).map_err(too_long)?;
        self.bytes.append(&mut self.directory);
        self.bytes.extend(END_OF_DIRECTORY.to_le_bytes());
        self.bytes.extend([0; 4]);
        self.bytes.extend(self.count.to_le_bytes());
        self.bytes.extend(self.count.to_le_bytes());
        self.bytes.extend(size.to_le_bytes());
        self.bytes.extend(start.to_le_bytes());
        self.bytes.extend([0; 2]);
        Ok(self.bytes)
    }
}
