//! Keeps a line to the runtime: connects, shakes hands, listens for its heart, and begins again.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::client::RpcClient;
use super::line::Line;
use super::wire::{self, Wire};
use super::{Link, Timing, Transport};
use crate::service::DISCONNECTED;

#[derive(Debug)]
pub(super) struct Supervisor {
    pub(super) transport: Transport,
    /// What the runtime is told of the configuration.
    pub(super) forwarded: Value,
    pub(super) timing: Timing,
    pub(super) client: Arc<RpcClient>,
    pub(super) link: watch::Sender<Link>,
    pub(super) end: CancellationToken,
}

impl Supervisor {
    pub(super) async fn run(self) {
        let end = self.end.clone();
        let mut delay = self.timing.first_delay;
        loop {
            let attempt = tokio::select! {
                attempt = self.attempt() => attempt,
                () = end.cancelled() => return,
            };
            let reason = match attempt {
                Ok((line, wire)) => {
                    delay = self.timing.first_delay;
                    self.link.send_replace(Link::Up);
                    let lost = tokio::select! {
                        () = self.keep(&line) => true,
                        () = end.cancelled() => false,
                    };
                    self.client.drop_line();
                    if lost {
                        // Told before the child is waited for.
                        tracing::warn!(reason = %line.gone(), "{DISCONNECTED}");
                        self.link.send_replace(Link::Down(DISCONNECTED.to_owned()));
                    }
                    wire.close().await;
                    if !lost {
                        return;
                    }
                    None
                }
                Err(reason) => Some(reason),
            };
            if let Some(reason) = reason {
                tracing::debug!(reason, "no connection to the Box runtime");
                self.link.send_replace(Link::Down(reason));
            }
            tokio::select! {
                () = tokio::time::sleep(with_jitter(delay)) => {}
                () = end.cancelled() => return,
            }
            delay = (delay * 2).min(self.timing.longest_delay);
        }
    }

    /// A line with its handshake, or what the service is told.
    async fn attempt(&self) -> Result<(Arc<Line>, Wire), String> {
        let connected = match tokio::time::timeout(self.timing.connect, self.connect()).await {
            Ok(connected) => connected,
            Err(_) => Err(Fault::TooLate),
        };
        if connected.is_err() {
            self.client.drop_line();
        }
        connected.map_err(|fault| match (fault, &self.transport) {
            (Fault::TooLate, Transport::WebSocket(endpoint)) => {
                format!("box runtime ws connection timed out ({})", endpoint.rpc_url())
            }
            (Fault::TooLate, Transport::Child(_)) => {
                "box runtime subprocess did not connect in time".to_owned()
            }
            (Fault::Failed(cause), _) => format!("box runtime connection failed: {cause}"),
        })
    }

    async fn connect(&self) -> Result<(Arc<Line>, Wire), Fault> {
        let (line, requests) = Line::new();
        let wire = match &self.transport {
            Transport::Child(command) => {
                wire::start_child(command, &self.forwarded, Arc::clone(&line), requests)
            }
            Transport::WebSocket(endpoint) => {
                let opening = wire::open_websocket(endpoint, Arc::clone(&line), requests);
                match tokio::time::timeout(self.timing.open, opening).await {
                    Ok(opened) => opened,
                    Err(_) => return Err(Fault::TooLate),
                }
            }
        };
        let wire = wire.map_err(Fault::Failed)?;
        let hello = async {
            line.call("__ping", json!({}), self.timing.connect).await?;
            if self.forwarded.as_object().is_some_and(|section| !section.is_empty()) {
                line.call("box_init", self.forwarded.clone(), self.timing.connect).await?;
            }
            Ok::<_, crate::HostError>(())
        };
        match hello.await {
            Ok(()) => {
                self.client.take_line(Arc::clone(&line));
                Ok((line, wire))
            }
            Err(error) => {
                wire.close().await;
                Err(Fault::Failed(error.message))
            }
        }
    }

    /// Until the line is closed, or the runtime has not answered often enough.
    async fn keep(&self, line: &Line) {
        let mut missed = 0;
        loop {
            tokio::select! {
                () = line.closed.cancelled() => return,
                () = tokio::time::sleep(self.timing.heartbeat) => {}
            }
            match line.call("__ping", json!({}), self.timing.ping).await {
                Ok(_) => missed = 0,
                Err(error) => {
                    missed += 1;
                    tracing::debug!(%error, missed, "the Box runtime did not answer a ping");
                    if missed >= self.timing.missed_pings {
                        return line.close("the runtime does not answer");
                    }
                }
            }
        }
    }
}

enum Fault {
    TooLate,
    Failed(String),
}

/// Up to a fifth more, so that hosts that lost the same runtime do not come back all at once.
fn with_jitter(delay: Duration) -> Duration {
    // The seeds of a hasher are random; nothing here has to be unpredictable.
    let random = RandomState::new().build_hasher().finish() % 1000;
    delay + delay.mul_f64(random as f64 / 5000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_only_adds_and_not_much() {
        let delay = Duration::from_secs(10);
        for _ in 0..100 {
            let jittered = with_jitter(delay);
            assert!((delay..=Duration::from_secs(12)).contains(&jittered), "{jittered:?}");
        }
    }
}
