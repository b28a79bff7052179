//! The RPC over standard input and output of a child of LangBot: one JSON object per line, long ones in
//! chunks. The end of the input is the parent's word to stop.

use std::io;

use sandcrate_protocol::framing::stdio::{Decoder, Event, encode};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;

use super::desk::{Desk, Reply};
use super::dialect::Dialect;
use crate::{App, Identity};

/// The usual size of a pipe: one read empties it.
const READ_BYTES: usize = 64 << 10;

/// Why the stdio transport broke.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StdioError {
    #[error("standard input cannot be read")]
    Read(#[source] io::Error),
    #[error("standard output cannot be written")]
    Write(#[source] io::Error),
}

/// Serves the parent until its input ends or `app` is told to stop; then tells `app` to stop, and writes the
/// replies of what still runs. [`crate::serve_app`] beside it ends the runtime.
pub async fn serve_stdio<R, W>(app: App, input: R, output: W) -> Result<(), StdioError>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    // A parent that speaks the newer dialects says whose it is when it starts us.
    let dialect = if app.config.instance.is_some() { Dialect::Tenant } else { Dialect::First };
    let (desk, replies) = Desk::new(app.clone(), Identity::parent(), dialect);
    let reading = async {
        let read = tokio::select! {
            read = read(input, desk) => read,
            () = app.shutdown.cancelled() => Ok(()),
        };
        app.shutdown.cancel();
        read
    };
    let writing = async {
        let written = write(output, replies).await;
        // Whom we cannot answer we need not read.
        app.shutdown.cancel();
        written
    };
    tokio::select! {
        (read, written) = async { tokio::join!(reading, writing) } => {
            read.map_err(StdioError::Read)?;
            written.map_err(StdioError::Write)
        }
        () = app.abort.cancelled() => Ok(()),
    }
}

async fn read(mut input: impl AsyncRead + Unpin, mut desk: Desk) -> io::Result<()> {
    let mut decoder = match desk.dialect() {
        Dialect::First => Decoder::new(),
        Dialect::Tenant => Decoder::strict(),
    };
    let mut buffer = vec![0; READ_BYTES];
    loop {
        let length = input.read(&mut buffer).await?;
        let mut bytes = &buffer[..length];
        while let Some(event) = decoder.next_event(&mut bytes) {
            serve(event, &mut desk).await;
        }
        if length == 0 {
            if let Some(event) = decoder.finish() {
                serve(event, &mut desk).await;
            }
            // What was asked before the end is answered after it.
            desk.settle().await;
            return Ok(());
        }
    }
}

async fn serve(event: Event, desk: &mut Desk) {
    match event {
        Event::Message(message) => {
            if let Some(slot) = desk.slot().await {
                desk.take(slot, &message).await;
            }
        }
        Event::Broken(error) => desk.refuse(error).await,
    }
}

async fn write(mut output: impl AsyncWrite + Unpin, mut replies: mpsc::Receiver<Reply>) -> io::Result<()> {
    let mut lines = Vec::new();
    while let Some(reply) = replies.recv().await {
        lines.clear();
        encode(&reply.encode(), &mut lines);
        output.write_all(&lines).await?;
        output.flush().await?;
        // One long reply must not hold its memory for ever.
        lines.shrink_to(READ_BYTES);
    }
    Ok(())
}
