//! What both WebSocket faces do alike: bounded messages, bounded waits, pings, goodbyes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, Utf8Bytes, WebSocket, WebSocketUpgrade};
use bytes::Bytes;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use tokio::time::{Interval, MissedTickBehavior};

use crate::ServerLimits;

/// The longest message of a peer, on both faces.
pub(crate) const MAX_MESSAGE_BYTES: usize = sandcrate_protocol::framing::MAX_MESSAGE_BYTES;
/// One buffer per connection; frames are usually far shorter.
const READ_BUFFER_BYTES: usize = 16 << 10;
/// How many pings a peer may leave unanswered, saying nothing else either.
const SILENT_PINGS: u32 = 3;
/// How long a peer may take to say goodbye.
const GOODBYE: Duration = Duration::from_secs(1);

pub(crate) mod code {
    pub(crate) const NORMAL: u16 = 1000;
    pub(crate) const GOING_AWAY: u16 = 1001;
    pub(crate) const TOO_BIG: u16 = 1009;
}

/// The peer is gone, or as good as: it takes nothing any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gone;

/// Sets what a peer may send.
pub(crate) fn bounded(upgrade: WebSocketUpgrade) -> WebSocketUpgrade {
    upgrade
        .max_message_size(MAX_MESSAGE_BYTES)
        .max_frame_size(MAX_MESSAGE_BYTES)
        .read_buffer_size(READ_BUFFER_BYTES)
}

/// Both directions of a connection.
pub(crate) fn split(socket: WebSocket, limits: &ServerLimits) -> (Sender, Receiver) {
    let (sink, stream) = socket.split();
    let progress = Arc::new(AtomicBool::new(false));
    let sender = Sender { sink, timeout: limits.write_timeout, progress: progress.clone() };
    (sender, Receiver { stream, silence: limits.ping_interval * SILENT_PINGS, progress })
}

/// When to ping: not at once, and not several times after a long write.
pub(crate) fn pings(limits: &ServerLimits) -> Interval {
    let mut pings =
        tokio::time::interval_at(tokio::time::Instant::now() + limits.ping_interval, limits.ping_interval);
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    pings
}

#[derive(Debug)]
pub(crate) struct Sender {
    sink: SplitSink<WebSocket, Message>,
    timeout: Duration,
    /// Set when the peer took a message: it is alive, though it may be too busy to answer pings.
    progress: Arc<AtomicBool>,
}

impl Sender {
    pub(crate) async fn text(&mut self, text: impl Into<Utf8Bytes>) -> Result<(), Gone> {
        self.send(Message::Text(text.into())).await?;
        self.progress.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Puts a text behind those that wait for [`Self::flush`].
    pub(crate) async fn feed(&mut self, text: impl Into<Utf8Bytes>) -> Result<(), Gone> {
        let fed = self.sink.feed(Message::Text(text.into()));
        in_time(self.timeout, fed).await
    }

    pub(crate) async fn flush(&mut self) -> Result<(), Gone> {
        in_time(self.timeout, self.sink.flush()).await?;
        self.progress.store(true, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) async fn ping(&mut self) -> Result<(), Gone> {
        self.send(Message::Ping(Bytes::new())).await
    }

    pub(crate) async fn close(&mut self, code: u16, reason: &str) -> Result<(), Gone> {
        self.send(Message::Close(Some(CloseFrame { code, reason: reason.into() }))).await
    }

    async fn send(&mut self, message: Message) -> Result<(), Gone> {
        in_time(self.timeout, self.sink.send(message)).await
    }
}

async fn in_time<E>(limit: Duration, sent: impl Future<Output = Result<(), E>>) -> Result<(), Gone> {
    match tokio::time::timeout(limit, sent).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err(Gone),
        Err(_) => {
            tracing::debug!("peer does not read");
            Err(Gone)
        }
    }
}

/// What a peer sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Incoming {
    Text(Utf8Bytes),
    Binary,
    /// Over the limit; nothing more can be read.
    TooLong,
    Gone,
}

#[derive(Debug)]
pub(crate) struct Receiver {
    stream: SplitStream<WebSocket>,
    silence: Duration,
    progress: Arc<AtomicBool>,
}

impl Receiver {
    /// The next message. Cancel-safe. Only the time spent in here counts against a silent peer.
    pub(crate) async fn next(&mut self) -> Incoming {
        loop {
            match tokio::time::timeout(self.silence, self.stream.next()).await {
                Err(_) if self.progress.swap(false, Ordering::Relaxed) => {}
                Err(_) => {
                    tracing::debug!("peer is silent");
                    return Incoming::Gone;
                }
                Ok(None) => return Incoming::Gone,
                Ok(Some(Ok(Message::Text(text)))) => return Incoming::Text(text),
                Ok(Some(Ok(Message::Binary(_)))) => return Incoming::Binary,
                // Pings are answered below us; the stream ends after a close.
                Ok(Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Close(_)))) => {}
                // The library says it in words only.
                Ok(Some(Err(error))) if error.to_string().starts_with("Space limit exceeded") => {
                    return Incoming::TooLong;
                }
                Ok(Some(Err(_))) => return Incoming::Gone,
            }
        }
    }

    /// After our goodbye: waits for the peer's, so that the connection does not end in a reset.
    pub(crate) async fn drain(&mut self) {
        let drained = async { while !matches!(self.next().await, Incoming::Gone | Incoming::TooLong) {} };
        // Whoever says nothing in time is left alone.
        let _ = tokio::time::timeout(GOODBYE, drained).await;
    }
}
