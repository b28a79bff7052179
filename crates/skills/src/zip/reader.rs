//! The central directory, checked as a whole; then single entries, inflated to no more than they said.

use std::io::{Read, Write};
use std::ops::Range;

use flate2::Crc;
use flate2::read::DeflateDecoder;

use super::{CENTRAL_HEADER, DEFLATED, END_OF_DIRECTORY, FLAG_UTF8, LOCAL_HEADER, STORED, names};
use crate::limits::{ARCHIVE_FREE_BYTES, ARCHIVE_RATIO};
use crate::{Limits, SkillError};

const END_BYTES: usize = 22;
const CENTRAL_BYTES: usize = 46;
const LOCAL_BYTES: usize = 30;
const MAX_COMMENT: usize = 0xffff;

/// An archive whose directory has been checked.
#[derive(Debug)]
pub struct ZipArchive<'a> {
    bytes: &'a [u8],
    entries: Vec<ZipEntry>,
}

/// One file or directory of an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZipEntry {
    /// Without a slash at the end; below the archive's top.
    pub path: String,
    pub is_dir: bool,
    pub executable: bool,
    /// Once it is unpacked.
    pub size: u64,
    crc: u32,
    deflated: bool,
    data: Range<usize>,
    /// With its header.
    whole: Range<usize>,
}

impl<'a> ZipArchive<'a> {
    /// Reads and checks the directory. Nothing is unpacked.
    ///
    /// # Errors
    /// When it is no zip, or one that is refused.
    pub fn read(bytes: &'a [u8], limits: &Limits) -> Result<Self, SkillError> {
        if bytes.is_empty() {
            return Err(SkillError::archive("Uploaded file is empty"));
        }
        let (count, directory) = end_of_directory(bytes).ok_or_else(no_zip)?;
        if count > limits.package_entries {
            return Err(SkillError::limit("the archive", format!("{} entries", limits.package_entries)));
        }
        let mut entries = Vec::with_capacity(count);
        let mut at = directory.start;
        for _ in 0..count {
            let (entry, next) = central_entry(bytes, at, directory.end)?;
            at = next;
            entries.push(entry);
        }
        let archive = Self { bytes, entries };
        names::check_together(&archive.entries, limits)?;
        archive.check_growth(limits)?;
        archive.check_overlap(directory.start)?;
        Ok(archive)
    }

    pub fn entries(&self) -> &[ZipEntry] {
        &self.entries
    }

    fn check_growth(&self, limits: &Limits) -> Result<(), SkillError> {
        let mut expanded = 0_u64;
        for entry in &self.entries {
            expanded = expanded.saturating_add(entry.size);
            let packed = (entry.data.len() as u64).saturating_mul(ARCHIVE_RATIO);
            if entry.size > ARCHIVE_FREE_BYTES.max(packed) {
                let what = format!("the growth of {} in the archive", entry.path);
                return Err(SkillError::limit(what, format!("{ARCHIVE_RATIO} to 1")));
            }
        }
        if expanded > limits.package_bytes {
            return Err(SkillError::limit("the unpacked archive", format!("{} bytes", limits.package_bytes)));
        }
        if expanded > ARCHIVE_FREE_BYTES.max((self.bytes.len() as u64).saturating_mul(ARCHIVE_RATIO)) {
            return Err(SkillError::limit("the growth of the archive", format!("{ARCHIVE_RATIO} to 1")));
        }
        Ok(())
    }

    /// Entries that share bytes make a small archive large without any of them growing.
    fn check_overlap(&self, directory: usize) -> Result<(), SkillError> {
        let mut ranges: Vec<&Range<usize>> = self.entries.iter().map(|entry| &entry.whole).collect();
        ranges.sort_by_key(|range| range.start);
        let apart = ranges.windows(2).all(|pair| pair[0].end <= pair[1].start);
        if !apart || ranges.last().is_some_and(|last| last.end > directory) {
            return Err(SkillError::archive("Archive contains entries that overlap"));
        }
        Ok(())
    }

    /// Unpacks a file of this archive.
    ///
    /// # Errors
    /// When it is not what the directory said, or cannot be written.
    pub fn unpack(&self, entry: &ZipEntry, out: &mut impl Write) -> Result<(), SkillError> {
        let broken = || SkillError::archive(format!("Archive contains a damaged file: {}", entry.path));
        let data = self.bytes.get(entry.data.clone()).ok_or_else(broken)?;
        let mut source: Box<dyn Read + '_> = match entry.deflated {
            true => Box::new(DeflateDecoder::new(data)),
            false => Box::new(data),
        };
        let mut crc = Crc::new();
        let mut left = entry.size;
        let mut buffer = vec![0; 64 << 10];
        loop {
            let read = source.read(&mut buffer).map_err(|_| broken())?;
            if read == 0 {
                break;
            }
            // More than was declared is never written.
            left = left.checked_sub(read as u64).ok_or_else(broken)?;
            crc.update(&buffer[..read]);
            let write = out.write_all(&buffer[..read]);
            write.map_err(|error| SkillError::io(format!("unpacking {}", entry.path), error))?;
        }
        if left == 0 && crc.sum() == entry.crc { Ok(()) } else { Err(broken()) }
    }
}

fn no_zip() -> SkillError {
    SkillError::archive("Uploaded file must be a valid .zip archive")
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let field = bytes.get(at..at.checked_add(2)?)?;
    Some(u16::from_le_bytes(field.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let field = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(field.try_into().ok()?))
}

/// How many entries, and where their directory is. Only a record that ends with the file counts.
fn end_of_directory(bytes: &[u8]) -> Option<(usize, Range<usize>)> {
    let last = bytes.len().checked_sub(END_BYTES)?;
    let first = last.saturating_sub(MAX_COMMENT);
    let at = (first..=last).rev().find(|at| {
        let comment = u16_at(bytes, at + 20).map(usize::from);
        u32_at(bytes, *at) == Some(END_OF_DIRECTORY) && comment == Some(last - at)
    })?;
    let field = |offset| u16_at(bytes, at + offset);
    let (disk, directory_disk, here, count) = (field(4)?, field(6)?, field(8)?, field(10)?);
    let (size, start) = (u32_at(bytes, at + 12)? as usize, u32_at(bytes, at + 16)? as usize);
    // Archives of several files, and Zip64, which is for more than the limits allow.
    if disk != 0 || directory_disk != 0 || here != count || count == u16::MAX {
        return None;
    }
    let end = start.checked_add(size)?;
    (end <= at).then_some((usize::from(count), start..end))
}

/// The entry at `at` in the directory, and where the next one is.
fn central_entry(bytes: &[u8], at: usize, end: usize) -> Result<(ZipEntry, usize), SkillError> {
    let header = bytes.get(at..end).filter(|header| header.len() >= CENTRAL_BYTES).ok_or_else(no_zip)?;
    let short = |offset| u16_at(header, offset).ok_or_else(no_zip);
    let long = |offset| u32_at(header, offset).ok_or_else(no_zip);
    if long(0)? != CENTRAL_HEADER {
        return Err(no_zip());
    }
    let (made_by, flags, method) = (short(4)?, short(8)?, short(10)?);
    let (crc, packed, size) = (long(16)?, long(20)? as usize, long(24)?);
    let (name_bytes, extra, comment) =
        (usize::from(short(28)?), usize::from(short(30)?), usize::from(short(32)?));
    let (attributes, local) = (long(38)?, long(42)? as usize);
    let name = header.get(CENTRAL_BYTES..CENTRAL_BYTES + name_bytes).ok_or_else(no_zip)?;
    let name = names::decode(name, flags & FLAG_UTF8 != 0);
    let path = names::check(&name)?;
    let refuse = |what: &str| Err(SkillError::archive(format!("Archive contains {what}: {path}")));
    if flags & 1 != 0 {
        return refuse("an encrypted file");
    }
    if !matches!(method, STORED | DEFLATED) {
        return refuse("a file packed in a way that is not supported");
    }
    // The upper half of the attributes is a Unix mode when the archive was made there.
    let mode = if made_by >> 8 == 3 { attributes >> 16 } else { 0 };
    let is_dir = name.ends_with('/');
    match mode & 0o170_000 {
        0 | 0o100_000 => {}
        0o040_000 if is_dir => {}
        0o120_000 => return refuse("a symbolic link"),
        _ => return refuse("something that is no file"),
    }
    if is_dir && (packed != 0 || size != 0) {
        return refuse("a directory with content");
    }
    if method == STORED && packed != size as usize {
        return Err(no_zip());
    }
    let data = data_range(bytes, local, packed).ok_or_else(no_zip)?;
    let entry = ZipEntry {
        path,
        is_dir,
        executable: mode & 0o111 != 0,
        size: u64::from(size),
        crc,
        deflated: method == DEFLATED,
        whole: local..data.end,
        data,
    };
    Ok((entry, at + CENTRAL_BYTES + name_bytes + extra + comment))
}

/// Where the bytes of an entry are: behind its own header, whose name and extra field may differ in length.
fn data_range(bytes: &[u8], local: usize, packed: usize) -> Option<Range<usize>> {
    if u32_at(bytes, local)? != LOCAL_HEADER {
        return None;
    }
    let name = usize::from(u16_at(bytes, local + 26)?);
    let extra = usize::from(u16_at(bytes, local + 28)?);
    let start = local.checked_add(LOCAL_BYTES + name + extra)?;
    let end = start.checked_add(packed)?;
    (end <= bytes.len()).then_some(start..end)
}
