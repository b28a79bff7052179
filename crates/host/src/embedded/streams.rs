//! The streams of a process of our own runtime.

use std::io;

use bytes::{BufMut as _, Bytes, BytesMut};
use futures_util::stream;
use sandcrate_runtime::{Attachment, RelayEvent, RelayReader};
use tokio_util::io::StreamReader;

use crate::ProcessStreams;

pub(super) fn streams(attachment: Attachment) -> ProcessStreams {
    let Attachment { reader, writer } = attachment;
    let lines = stream::unfold(reader, next);
    ProcessStreams { reader: Box::pin(StreamReader::new(lines)), writer: Box::pin(writer.into_stdin()) }
}

async fn next(mut reader: RelayReader) -> Option<(io::Result<Bytes>, RelayReader)> {
    let data = match reader.next().await {
        RelayEvent::Line(line) => {
            let mut whole = BytesMut::with_capacity(line.len() + 1);
            whole.put(line);
            whole.put_u8(b'\n');
            Ok(whole.freeze())
        }
        RelayEvent::Piece(piece) => Ok(piece),
        // Messages are missing: whoever goes on would wait for answers that never come.
        RelayEvent::Lost { bytes } => Err(io::Error::other(format!(
            "{bytes} bytes of the process's output were thrown away, because nobody read them in time"
        ))),
        RelayEvent::Exited { .. } => return None,
    };
    Some((data, reader))
}
