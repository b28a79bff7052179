//! Plain, gzip or zstd: told by the first bytes, never by a name.

use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// A frame that carries no data; what writes zstd in chunks begins with one.
const ZSTD_SKIPPABLE: [u8; 3] = [0x2a, 0x4d, 0x18];
/// bzip2, xz and lz4: known, and not read.
const OTHERS: [(&[u8], &str); 3] =
    [(b"BZh", "bzip2"), (&[0xfd, b'7', b'z', b'X', b'Z'], "xz"), (&[4, 0x22, 0x4d, 0x18], "lz4")];

/// What a stream is packed with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Packing {
    Plain,
    Gzip,
    Zstd,
}

/// Looks at the first bytes; a packing that we do not read is an error.
pub(crate) fn sniff(start: &[u8]) -> io::Result<Packing> {
    if let Some((_, name)) = OTHERS.iter().find(|(magic, _)| start.starts_with(magic)) {
        let text = format!("it is packed with {name}: unpack it, or use gzip or zstd");
        return Err(io::Error::other(crate::error::ImageError::archive(text)));
    }
    Ok(if start.starts_with(&GZIP) {
        Packing::Gzip
    } else if start.starts_with(&ZSTD) || start.get(1..4) == Some(&ZSTD_SKIPPABLE) {
        Packing::Zstd
    } else {
        Packing::Plain
    })
}

/// The expanded stream.
pub(crate) fn expand<'a>(input: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
    let mut input = BufReader::with_capacity(128 << 10, input);
    Ok(match sniff(input.fill_buf()?)? {
        Packing::Plain => Box::new(input),
        Packing::Gzip => Box::new(MultiGzDecoder::new(input)),
        Packing::Zstd => Box::new(ZstdFrames { input, decoder: FrameDecoder::new(), inside: false }),
    })
}

/// All frames of a stream, one after the other.
struct ZstdFrames<R> {
    input: BufReader<R>,
    /// Refuses windows over 100 MiB, so it bounds its own memory.
    decoder: FrameDecoder,
    inside: bool,
}

impl<R: Read> ZstdFrames<R> {
    /// Begins the next frame that has data; false at the end.
    fn next_frame(&mut self) -> io::Result<bool> {
        loop {
            if self.input.fill_buf()?.is_empty() {
                return Ok(false);
            }
            match self.decoder.init(&mut self.input) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let skipped = io::copy(&mut (&mut self.input).take(length.into()), &mut io::sink())?;
                    if skipped < u64::from(length) {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(damaged(&error)),
            }
        }
    }
}

impl<R: Read> Read for ZstdFrames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            if !self.inside {
                if !self.next_frame()? {
                    return Ok(0);
                }
                self.inside = true;
            }
            while self.decoder.can_collect() < buffer.len() && !self.decoder.is_finished() {
                let more = buffer.len() - self.decoder.can_collect();
                self.decoder
                    .decode_blocks(&mut self.input, BlockDecodingStrategy::UptoBytes(more))
                    .map_err(|error| damaged(&error))?;
            }
            let count = self.decoder.read(buffer)?;
            if count > 0 {
                return Ok(count);
            }
            self.inside = false;
        }
    }
}

fn damaged(error: &FrameDecoderError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("zstd: {error}"))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn expanded(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        expand(bytes)?.read_to_end(&mut out)?;
        Ok(out)
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packer.write_all(bytes).unwrap();
        packer.finish().unwrap()
    }

    fn zstd(bytes: &[u8]) -> Vec<u8> {
        ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
    }

    #[test]
    fn each_packing_is_told_by_its_first_bytes_and_read_to_its_last_part() {
        let text = b"some text ".repeat(50_000);
        assert_eq!(expanded(&text).unwrap(), text);
        for pack in [gzip, zstd] {
            assert_eq!(expanded(&pack(&text)).unwrap(), text);
            // Members and frames follow each other in one stream.
            let two = [pack(&text), pack(b"more")].concat();
            assert_eq!(expanded(&two).unwrap(), [&text[..], b"more"].concat());
        }
        let skippable = [&[0x5a, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3][..], &zstd(b"x")].concat();
        assert_eq!(expanded(&skippable).unwrap(), b"x");
        assert_eq!(expanded(b"").unwrap(), b"");
    }

    #[test]
    fn what_ends_too_early_or_is_not_read_here_is_an_error() {
        for pack in [gzip, zstd] {
            let whole = pack(&b"some text ".repeat(5000));
            assert!(expanded(&whole[..whole.len() - 9]).is_err());
        }
        for other in [&b"BZh91AY"[..], &[0xfd, b'7', b'z', b'X', b'Z', 0]] {
            assert!(expanded(other).unwrap_err().to_string().contains("gzip or zstd"));
        }
    }
}
