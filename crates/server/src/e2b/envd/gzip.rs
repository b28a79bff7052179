//! A gzipped body as it arrives, unpacked.

use std::io::{self, Write};

use bytes::{Buf, Bytes};
use flate2::write::MultiGzDecoder;
use futures_util::{Stream, StreamExt, stream};

/// Unpacked at a time: what is largest of it has a thousand times this, and is held in memory.
const STEP_BYTES: usize = 4096;

struct Unpacking<S> {
    body: S,
    decoder: MultiGzDecoder<Vec<u8>>,
    rest: Bytes,
    ended: bool,
}

/// The content of a gzipped stream. One that is broken ends with an error.
pub(super) fn unpacked<S, E>(body: S) -> impl Stream<Item = io::Result<Bytes>> + Send
where
    S: Stream<Item = Result<Bytes, E>> + Send + Unpin,
    E: Send,
{
    let unpacking =
        Unpacking { body, decoder: MultiGzDecoder::new(Vec::new()), rest: Bytes::new(), ended: false };
    stream::try_unfold(unpacking, |mut unpacking| async move {
        let piece = unpacking.next().await?;
        Ok(piece.map(|piece| (piece, unpacking)))
    })
}

impl<S, E> Unpacking<S>
where
    S: Stream<Item = Result<Bytes, E>> + Unpin,
{
    async fn next(&mut self) -> io::Result<Option<Bytes>> {
        loop {
            if self.ended {
                return Ok(None);
            }
            if self.rest.has_remaining() {
                let step = self.rest.split_to(self.rest.len().min(STEP_BYTES));
                self.decoder.write_all(&step)?;
            } else {
                match self.body.next().await {
                    Some(Ok(piece)) => self.rest = piece,
                    Some(Err(_)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                    None => {
                        self.ended = true;
                        self.decoder.try_finish()?;
                    }
                }
            }
            let unpacked = std::mem::take(self.decoder.get_mut());
            if !unpacked.is_empty() {
                return Ok(Some(unpacked.into()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn packed(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    async fn unpack(bytes: &[u8], size: usize) -> io::Result<Vec<u8>> {
        let pieces: Vec<_> =
            bytes.chunks(size).map(|piece| Ok::<_, Infallible>(Bytes::copy_from_slice(piece))).collect();
        let mut content = Vec::new();
        let mut unpacked = Box::pin(unpacked(stream::iter(pieces)));
        while let Some(piece) = unpacked.next().await {
            content.extend_from_slice(&piece?);
        }
        Ok(content)
    }

    #[tokio::test]
    async fn what_was_packed_comes_out_however_it_is_cut() {
        let text = b"hello ".repeat(10_000);
        for size in [1, 100, 1 << 20] {
            assert_eq!(unpack(&packed(&text), size).await.unwrap(), text);
        }
    }

    #[tokio::test]
    async fn what_is_broken_is_an_error() {
        let whole = packed(b"hello");
        assert!(unpack(&whole[..whole.len() - 4], 7).await.is_err(), "cut");
        assert!(unpack(b"plain text", 4).await.is_err(), "never packed");
    }
}
