//! The RPC over a WebSocket: one text message per frame. With clients of the first dialect, requests in pieces are
//! joined and long replies cut; with newer ones, every message is whole.

use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{WebSocket, WebSocketUpgrade};
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use sandcrate_protocol::framing::ws::{Joined, SplitRequests, split_reply};
use sandcrate_protocol::rpc::{BadFrame, SeqId};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::answer;
use super::desk::{Desk, Reply};
use super::dialect::Dialect;
use crate::websocket::{self, Incoming, Receiver, Sender, code};
use crate::{App, Identity, Refusal};

/// A request that should have been an upgrade.
pub(crate) fn no_upgrade(rejection: &WebSocketUpgradeRejection) -> Refusal {
    Refusal::new(StatusCode::BAD_REQUEST, "not_a_websocket", rejection.body_text())
}

pub(super) async fn upgrade(
    State(app): State<App>,
    Extension(identity): Extension<Identity>,
    headers: HeaderMap,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Refusal> {
    let instance = app.tenancy.named(&headers)?;
    let upgrade = upgrade.map_err(|rejection| no_upgrade(&rejection))?;
    let dialect = match instance {
        Some(instance) => app.tenancy.pin(&instance).map(|()| Dialect::Tenant)?,
        None => Dialect::First,
    };
    // Counted from here on: an upgrade under way is waited for too.
    let owned = app.tasks.token();
    Ok(websocket::bounded(upgrade).on_upgrade(async move |socket| {
        serve(socket, app, identity, dialect).await;
        drop(owned);
    }))
}

async fn serve(socket: WebSocket, app: App, identity: Identity, dialect: Dialect) {
    tokio::select! {
        () = converse(socket, &app, identity, dialect) => {}
        () = app.abort.cancelled() => {}
    }
}

async fn converse(socket: WebSocket, app: &App, identity: Identity, dialect: Dialect) {
    let (sender, mut receiver) = websocket::split(socket, &app.config.limits);
    let (desk, replies) = Desk::new(app.clone(), identity, dialect);
    // Each direction ends the other when the peer is gone.
    let gone = CancellationToken::new();
    let reading = async {
        let end = tokio::select! {
            end = read(&mut receiver, desk) => end,
            () = app.shutdown.cancelled() => ReadEnd::Stopping,
            () = gone.cancelled() => ReadEnd::Gone,
        };
        if end == ReadEnd::Gone {
            gone.cancel();
        }
        end
    };
    let (end, sender) = tokio::join!(reading, write(sender, replies, app, &gone, dialect));
    let Some(mut sender) = sender else { return };
    let said = match end {
        ReadEnd::Gone => return,
        ReadEnd::TooLong => sender.close(code::TOO_BIG, "message is longer than 16 MiB").await,
        ReadEnd::Stopping => sender.close(code::GOING_AWAY, "the server is stopping").await,
    };
    if said.is_ok() {
        receiver.drain().await;
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReadEnd {
    Gone,
    TooLong,
    Stopping,
}

async fn read(receiver: &mut Receiver, mut desk: Desk) -> ReadEnd {
    let mut pieces = SplitRequests::new();
    loop {
        let Some(slot) = desk.slot().await else { return ReadEnd::Stopping };
        let text = match receiver.next().await {
            Incoming::Text(text) => text,
            Incoming::Binary => {
                let message = "ValueError: binary frames are not served; send JSON as text".to_owned();
                desk.refuse(BadFrame { seq_id: SeqId::UNKNOWN, message }).await;
                continue;
            }
            Incoming::TooLong => return ReadEnd::TooLong,
            Incoming::Gone => return ReadEnd::Gone,
        };
        if desk.dialect() == Dialect::Tenant {
            // Newer clients send every message whole.
            desk.take(slot, text.as_str()).await;
            continue;
        }
        match pieces.push(text.as_str().to_owned()) {
            Joined::Message(message) => desk.take(slot, &message).await,
            Joined::Pending => {}
            Joined::Broken { error, message } => {
                desk.refuse(error).await;
                if let Some(message) = message {
                    desk.take(slot, &message).await;
                }
            }
        }
    }
}

/// Writes replies until there can be no more, and gives the sender back for a goodbye. One at a time, so the
/// pieces of a long one stay together.
async fn write(
    mut sender: Sender,
    mut replies: mpsc::Receiver<Reply>,
    app: &App,
    gone: &CancellationToken,
    dialect: Dialect,
) -> Option<Sender> {
    let mut pings = websocket::pings(&app.config.limits);
    loop {
        let sent = tokio::select! {
            () = gone.cancelled() => return None,
            reply = replies.recv() => match reply {
                Some(reply) => send(&mut sender, reply, dialect).await,
                None => return Some(sender),
            },
            _ = pings.tick() => sender.ping().await,
        };
        if sent.is_err() {
            gone.cancel();
            return None;
        }
    }
}

async fn send(sender: &mut Sender, reply: Reply, dialect: Dialect) -> Result<(), websocket::Gone> {
    let text = reply.encode();
    if dialect == Dialect::Tenant {
        if text.len() <= websocket::MAX_MESSAGE_BYTES {
            return sender.text(text).await;
        }
        let message = "BoxError: the result is longer than the 16 MiB of a message".to_owned();
        return sender.text(answer::failure(reply.seq_id, message).encode()).await;
    }
    drop(reply);
    for piece in split_reply(&text) {
        sender.text(piece.to_owned()).await?;
    }
    Ok(())
}
