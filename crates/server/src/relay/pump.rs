//! Moves lines between an attached process and its peer until either ends.
//!
//! Nothing is queued here: output is taken from the process when the peer took what came before, its lines together,
//! and a line is read from the peer when the process took the one before, so each side feels how slow the other is.
//! One message more is read from the peer, or nobody would see it leave while the process takes nothing.

use std::pin::pin;
use std::time::Duration;

use axum::extract::ws::{Utf8Bytes, WebSocket};
use bytes::Bytes;
use sandcrate_runtime::{Attachment, RelayEvent, RelayReader, RelayWriter};

use crate::App;
use crate::websocket::{self, Gone, Incoming, Receiver, Sender, code};

/// What a process has to take the last line of a peer that left. Then the next one may attach.
const LAST_LINE: Duration = Duration::from_secs(5);
/// What is sent together, the last line apart. The peer has the time of one write for it: one that reads slowly must not
/// be taken for one that does not read.
const TOGETHER_BYTES: usize = 32 << 10;

/// Runs to the end of the process or of the peer's interest.
pub(super) async fn run(socket: WebSocket, attachment: Attachment, app: &App, session: &str) {
    let Attachment { mut reader, mut writer } = attachment;
    let (mut sender, mut receiver) = websocket::split(socket, &app.config.limits);
    let end = tokio::select! {
        end = send_lines(&mut reader, &mut sender, app) => end,
        end = take_lines(&mut receiver, &mut writer) => end,
    };
    // Free for the next one before the goodbyes.
    drop((reader, writer));
    let said = match end {
        End::Gone => return,
        End::TooLong => sender.close(code::TOO_BIG, "message is longer than 16 MiB").await,
        End::Exited(exit_code) => sender.close(code::NORMAL, &reason(exit_code, app, session)).await,
    };
    if said.is_ok() {
        receiver.drain().await;
    }
}

enum End {
    Gone,
    TooLong,
    Exited(Option<i32>),
}

fn reason(exit_code: Option<i32>, app: &App, session: &str) -> String {
    match exit_code {
        Some(code) => format!("exited with code {code}"),
        None if app.runtime.session(session).is_ok() => "stopped".to_owned(),
        None => "session deleted".to_owned(),
    }
}

async fn send_lines(reader: &mut RelayReader, sender: &mut Sender, app: &App) -> End {
    let mut pings = websocket::pings(&app.config.limits);
    loop {
        let sent = tokio::select! {
            event = reader.next() => match event {
                RelayEvent::Line(line) | RelayEvent::Piece(line) => send_together(line, reader, sender).await,
                RelayEvent::Lost { .. } => continue,
                RelayEvent::Exited { exit_code } => return End::Exited(exit_code),
            },
            _ = pings.tick() => sender.ping().await,
        };
        if let Err(Gone) = sent {
            return End::Gone;
        }
    }
}

async fn take_lines(receiver: &mut Receiver, writer: &mut RelayWriter) -> End {
    // A process that closed its input, or ended, takes no more; its last lines are still on their way out.
    let mut takes = true;
    let mut ahead = None;
    loop {
        let incoming = match ahead.take() {
            Some(incoming) => incoming,
            None => receiver.next().await,
        };
        match incoming {
            Incoming::Text(line) if takes => {
                let mut sent = pin!(writer.send_line(Bytes::from(line)));
                takes = tokio::select! {
                    biased;
                    sent = &mut sent => sent.is_ok(),
                    next = receiver.next() => {
                        if matches!(next, Incoming::Gone | Incoming::TooLong) {
                            let _ = tokio::time::timeout(LAST_LINE, sent).await;
                            return if next == Incoming::Gone { End::Gone } else { End::TooLong };
                        }
                        ahead = Some(next);
                        sent.await.is_ok()
                    }
                };
            }
            Incoming::Text(_) | Incoming::Binary => {}
            Incoming::TooLong => return End::TooLong,
            Incoming::Gone => return End::Gone,
        }
    }
}

/// A message for each line, but one write for those that came at once.
async fn send_together(line: Bytes, reader: &mut RelayReader, sender: &mut Sender) -> Result<(), Gone> {
    let mut bytes = line.len();
    sender.feed(text(&line)).await?;
    while bytes < TOGETHER_BYTES
        && let Some(RelayEvent::Line(line) | RelayEvent::Piece(line)) = reader.another()
    {
        bytes += line.len();
        sender.feed(text(&line)).await?;
    }
    sender.flush().await
}

/// A frame carries text only, so what is not UTF-8 is replaced.
fn text(line: &Bytes) -> Utf8Bytes {
    match Utf8Bytes::try_from(line.clone()) {
        Ok(text) => text,
        Err(_) => String::from_utf8_lossy(line).into_owned().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_text_whatever_they_hold() {
        assert_eq!(text(&Bytes::from_static(b"a\r")).as_str(), "a\r");
        assert_eq!(text(&Bytes::from_static(b"a\xff")).as_str(), "a\u{fffd}");
        assert_eq!(text(&Bytes::new()).as_str(), "");
    }
}
