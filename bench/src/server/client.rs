//! A client of LangBot's Box RPC over WebSocket: as little between the socket and the clock as there can be.

use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

/// One connection to the RPC.
#[derive(Debug)]
pub(crate) struct Client {
    socket: WebSocketStream<TcpStream>,
    next: u64,
}

impl Client {
    pub(crate) async fn connect(port: u16) -> anyhow::Result<Self> {
        Ok(Self { socket: open(port, "/rpc/ws").await?, next: 0 })
    }

    /// Asks and waits for the answer.
    pub(crate) async fn call(&mut self, action: &str, data: Value) -> anyhow::Result<Value> {
        self.send(action, data).await?;
        self.receive().await.with_context(|| format!("the action {action}"))
    }

    pub(crate) async fn send(&mut self, action: &str, data: Value) -> anyhow::Result<()> {
        self.next += 1;
        let request = json!({"seq_id": self.next, "action": action, "data": data});
        Ok(self.socket.send(Message::text(request.to_string())).await?)
    }

    /// The result in the next reply. Long replies come in pieces.
    pub(crate) async fn receive(&mut self) -> anyhow::Result<Value> {
        let mut text = String::new();
        loop {
            let Some(piece) = message(&mut self.socket).await? else { bail!("the server closed") };
            text.push_str(&piece);
            let Ok(mut reply) = serde_json::from_str::<Value>(&text) else { continue };
            if reply["code"] != 0 {
                bail!("refused: {}", reply["message"]);
            }
            return Ok(reply["data"].take());
        }
    }
}

/// The line to a managed process.
#[derive(Debug)]
pub(crate) struct Relay {
    socket: WebSocketStream<TcpStream>,
}

impl Relay {
    pub(crate) async fn attach(port: u16, session: &str) -> anyhow::Result<Self> {
        let path = format!("/v1/sessions/{session}/managed-process/default/ws");
        Ok(Self { socket: open(port, &path).await? })
    }

    pub(crate) async fn send(&mut self, line: &str) -> anyhow::Result<()> {
        Ok(self.socket.send(Message::text(line)).await?)
    }

    /// How long a line takes to a process that echoes it, and back.
    pub(crate) async fn round_trip(&mut self, line: &str) -> anyhow::Result<Duration> {
        let started = Instant::now();
        self.send(line).await?;
        ensure!(self.line().await? == Some(line.len()), "a line came back changed");
        Ok(started.elapsed())
    }

    /// The next line's length; `None` after the end of the process.
    pub(crate) async fn line(&mut self) -> anyhow::Result<Option<usize>> {
        Ok(message(&mut self.socket).await?.map(|line| line.len()))
    }
}

async fn open(port: u16, path: &str) -> anyhow::Result<WebSocketStream<TcpStream>> {
    let stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream.set_nodelay(true)?;
    let (socket, _) = tokio_tungstenite::client_async(format!("ws://127.0.0.1:{port}{path}"), stream).await?;
    Ok(socket)
}

/// The next text; `None` when the other side says goodbye.
async fn message(
    socket: &mut WebSocketStream<TcpStream>,
) -> anyhow::Result<Option<tokio_tungstenite::tungstenite::Utf8Bytes>> {
    loop {
        match socket.next().await {
            Some(Ok(Message::Text(text))) => return Ok(Some(text)),
            Some(Ok(Message::Close(_))) | None => return Ok(None),
            // Pings are answered below us.
            Some(Ok(_)) => {}
            Some(Err(error)) => return Err(error.into()),
        }
    }
}
