//! Reads tar archives of every common dialect (ustar, GNU, pax), one entry after the other.
//!
//! Our own reader, because an image may be hostile: names and extended headers are bounded before they are read,
//! and nothing that is not understood (sparse files, parts of multi-volume archives) is taken for something else.

use std::collections::BTreeMap;
use std::io::{self, Read};

use crate::error::{ImageError, Step, shown};

const BLOCK: usize = 512;
/// One path: more no call of Linux takes.
const MAX_NAME: u64 = 4 << 10;
/// What of an extended header means something here. The rest is passed over: it may be of any size and number.
const KEYS: [&[u8]; 6] = [b"path", b"linkpath", b"size", b"uid", b"gid", b"mtime"];
/// Stands for whatever says that a file is sparse.
const SPARSE: &[u8] = b"GNU.sparse.";
/// Extended headers carry attributes of files besides names; Linux has at most 64 KiB of those, several times.
const MAX_EXTENDED: u64 = 1 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Directory,
    Symlink,
    Hardlink,
    Device,
    Fifo,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) path: Vec<u8>,
    pub(crate) kind: Kind,
    pub(crate) mode: u32,
    pub(crate) uid: u64,
    pub(crate) gid: u64,
    /// Seconds since 1970.
    pub(crate) mtime: i64,
    pub(crate) size: u64,
    /// Where a link leads.
    pub(crate) link: Vec<u8>,
}

#[derive(Debug)]
pub(crate) struct Tar<R> {
    input: R,
    /// Data of the present entry that has not been read, then padding.
    data: u64,
    padding: u64,
    /// Where the present entry's data begin.
    position: u64,
    /// Of global extended headers.
    globals: Extended,
}

type Extended = BTreeMap<Vec<u8>, Vec<u8>>;

impl<R: Read> Tar<R> {
    pub(crate) fn new(input: R) -> Self {
        Self { input, data: 0, padding: 0, position: 0, globals: Extended::new() }
    }

    /// The next entry; what was left of the one before is skipped.
    pub(crate) fn next(&mut self) -> Result<Option<Entry>, ImageError> {
        let (mut long_name, mut long_link) = (None, None);
        let mut extended = Extended::new();
        loop {
            self.skip()?;
            let Some(block) = self.header()? else {
                if long_name.is_some() || long_link.is_some() || !extended.is_empty() {
                    return Err(ImageError::archive("it ends behind an extended header"));
                }
                return Ok(None);
            };
            let size = number(&block[124..136])?;
            let kind = block[156];
            if matches!(kind, b'L' | b'K' | b'x' | b'g') {
                // A long name has a NUL behind it.
                let most = if matches!(kind, b'L' | b'K') { MAX_NAME + 1 } else { MAX_EXTENDED };
                if size > most {
                    return Err(ImageError::archive(format!("an extended header has {size} bytes")));
                }
                self.take_in(size);
                let mut body = Vec::new();
                self.read_to_end(&mut body).step(|| "reading the archive")?;
                match kind {
                    b'L' => long_name = Some(until_nul(&body).to_vec()),
                    b'K' => long_link = Some(until_nul(&body).to_vec()),
                    b'x' => extended.extend(records(&body)?),
                    _ => self.globals.extend(records(&body)?),
                }
                continue;
            }
            let entry = self.entry(&block, size, &extended, long_name, long_link)?;
            if entry.size > i64::MAX as u64 {
                return Err(ImageError::refused(&entry.path, "no file is that large"));
            }
            self.take_in(entry.size);
            return Ok(Some(entry));
        }
    }

    /// Where the present entry's data begin in the stream.
    pub(crate) fn data_position(&self) -> u64 {
        self.position - self.data
    }

    /// The stream, behind what was read of it.
    pub(crate) fn into_inner(self) -> R {
        self.input
    }

    fn take_in(&mut self, size: u64) {
        self.data = size;
        self.padding = size.wrapping_neg() % BLOCK as u64;
        // Counted ahead; see `data_position`.
        self.position = self.position.saturating_add(size);
    }

    fn skip(&mut self) -> Result<(), ImageError> {
        let rest = self.data + self.padding;
        let skipped =
            io::copy(&mut (&mut self.input).take(rest), &mut io::sink()).step(|| "reading the archive")?;
        if skipped < rest {
            return Err(ImageError::archive("it ends in the middle of a file"));
        }
        self.position = self.position.saturating_add(self.padding);
        (self.data, self.padding) = (0, 0);
        Ok(())
    }

    /// A header that is sound; nothing at the end mark.
    fn header(&mut self) -> Result<Option<[u8; BLOCK]>, ImageError> {
        let mut block = [0; BLOCK];
        match self.input.read_exact(&mut block) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(ImageError::archive("it has no end mark: cut short, or no tar archive"));
            }
            other => other.step(|| "reading the archive")?,
        }
        self.position += BLOCK as u64;
        if block.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let sum = block.iter().enumerate().map(|(at, byte)| match at {
            148..156 => u64::from(b' '),
            _ => u64::from(*byte),
        });
        if number(&block[148..156])? != sum.sum::<u64>() {
            return Err(ImageError::archive("a header's checksum is wrong: damaged, or no tar archive"));
        }
        Ok(Some(block))
    }

    fn entry(
        &self,
        block: &[u8; BLOCK],
        size: u64,
        extended: &Extended,
        long_name: Option<Vec<u8>>,
        long_link: Option<Vec<u8>>,
    ) -> Result<Entry, ImageError> {
        let pax = |key: &[u8]| extended.get(key).or_else(|| self.globals.get(key));
        let path = pax(b"path").cloned().or(long_name).unwrap_or_else(|| plain_name(block));
        if extended.keys().chain(self.globals.keys()).any(|key| key == SPARSE) {
            return Err(ImageError::refused(&path, "sparse files are not read; pack it without --sparse"));
        }
        let kind = match block[156] {
            // Before there was a type for them, directories were files with a slash.
            b'0' | 0 | b'7' if path.ends_with(b"/") => Kind::Directory,
            b'0' | 0 | b'7' => Kind::File,
            b'1' => Kind::Hardlink,
            b'2' => Kind::Symlink,
            b'3' | b'4' => Kind::Device,
            b'5' => Kind::Directory,
            b'6' => Kind::Fifo,
            b'S' => {
                return Err(ImageError::refused(
                    &path,
                    "sparse files are not read; pack it without --sparse",
                ));
            }
            other => {
                return Err(ImageError::refused(
                    &path,
                    format!("its type {:?} is not known", char::from(other)),
                ));
            }
        };
        let decimal = |key: &[u8], plain: &[u8]| match pax(key) {
            Some(text) => parse_decimal(text)
                .ok_or_else(|| ImageError::refused(&path, format!("its {} is no number", shown(key)))),
            None => number(plain),
        };
        let size = match pax(b"size") {
            Some(_) => decimal(b"size", &[])?,
            None => size,
        };
        // Links and directories have no data, whatever their size says; some writers repeat that of the target.
        let size = if kind == Kind::File { size } else { 0 };
        let link =
            pax(b"linkpath").cloned().or(long_link).unwrap_or_else(|| until_nul(&block[157..257]).to_vec());
        Ok(Entry {
            kind,
            mode: u32::try_from(number(&block[100..108])? & 0o7777).unwrap_or(0),
            uid: decimal(b"uid", &block[108..116])?,
            gid: decimal(b"gid", &block[116..124])?,
            mtime: mtime(pax(b"mtime"), &block[136..148]),
            size,
            link,
            path,
        })
    }
}

/// The data of the present entry.
impl<R: Read> Read for Tar<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = buffer.len().min(usize::try_from(self.data).unwrap_or(usize::MAX));
        if most == 0 {
            return Ok(0);
        }
        let count = self.input.read(&mut buffer[..most])?;
        if count == 0 {
            return Err(io::Error::other(ImageError::archive("it ends in the middle of a file")));
        }
        self.data -= count as u64;
        Ok(count)
    }
}

fn until_nul(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// The name in the header itself; ustar has its beginning in a field of its own.
fn plain_name(block: &[u8; BLOCK]) -> Vec<u8> {
    let name = until_nul(&block[..100]);
    let prefix = until_nul(&block[345..500]);
    if &block[257..263] == b"ustar\0" && !prefix.is_empty() {
        [prefix, b"/", name].concat()
    } else {
        name.to_vec()
    }
}

/// Octal digits, or GNU's binary form for what does not fit.
fn number(field: &[u8]) -> Result<u64, ImageError> {
    let wrong = || ImageError::archive("a number in a header cannot be read");
    if let Some(first) = field.first().filter(|first| **first & 0x80 != 0) {
        // Negative ones (0xff) mean nothing for sizes and ids.
        let (high, low) = field.split_at(field.len().saturating_sub(8));
        if *first & 0x7f != 0 && !high.is_empty() || high.iter().skip(1).any(|byte| *byte != 0) {
            return Err(wrong());
        }
        let mut value: u64 = 0;
        for (at, byte) in low.iter().enumerate() {
            let byte = if high.is_empty() && at == 0 { byte & 0x7f } else { *byte };
            value = value << 8 | u64::from(byte);
        }
        return Ok(value);
    }
    let text: Vec<u8> = field
        .iter()
        .copied()
        .skip_while(|byte| *byte == b' ')
        .take_while(|byte| !matches!(byte, b' ' | 0))
        .collect();
    text.iter()
        .try_fold(0_u64, |value, digit| match digit {
            b'0'..=b'7' => value.checked_mul(8)?.checked_add(u64::from(digit - b'0')),
            _ => None,
        })
        .ok_or_else(wrong)
}

fn parse_decimal(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// A time that cannot be read harms nobody.
fn mtime(extended: Option<&Vec<u8>>, plain: &[u8]) -> i64 {
    let seconds = match extended {
        Some(text) => text.split(|byte| *byte == b'.').next().and_then(parse_decimal),
        None => number(plain).ok(),
    };
    // Beyond the year 2400 no file system follows.
    i64::try_from(seconds.unwrap_or(0)).unwrap_or(0).min(13_569_465_600)
}

/// `LENGTH KEY=VALUE\n`, the length of the whole in front.
fn records(mut body: &[u8]) -> Result<Extended, ImageError> {
    let wrong = || ImageError::archive("an extended header cannot be read");
    let mut found = Extended::new();
    while !body.is_empty() && body[0] != 0 {
        let space = body.iter().take(20).position(|byte| *byte == b' ').ok_or_else(wrong)?;
        let length = parse_decimal(&body[..space])
            .and_then(|length| usize::try_from(length).ok())
            .ok_or_else(wrong)?;
        let record = body.get(space + 1..length).ok_or_else(wrong)?;
        let record = record.strip_suffix(b"\n").ok_or_else(wrong)?;
        let equals = record.iter().position(|byte| *byte == b'=').ok_or_else(wrong)?;
        let (key, value) = (&record[..equals], &record[equals + 1..]);
        if key.starts_with(SPARSE) {
            found.insert(SPARSE.to_vec(), Vec::new());
        } else if KEYS.contains(&key) {
            if value.len() as u64 > MAX_NAME {
                return Err(ImageError::archive(format!(
                    "an extended header has a {} of {} bytes, {MAX_NAME} at most are read",
                    shown(key),
                    value.len()
                )));
            }
            found.insert(key.to_vec(), value.to_vec());
        }
        body = &body[length..];
    }
    Ok(found)
}

#[cfg(test)]
#[path = "tar_tests.rs"]
mod tests;
