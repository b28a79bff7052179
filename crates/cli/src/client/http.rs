//! Requests to the server: HTTP/1.1 over TCP or a unix socket, and WebSockets over the same.
//!
//! A connection serves the next request too while it is fresh; one that carries a stream is used up by it.

use std::io;
use std::pin::Pin;
use std::sync::Mutex;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderName};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::mpsc;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite;

use super::address::{Address, Target};
use super::problem::{ClientError, ServerError};

/// A server closes a connection that is idle for ten seconds; long before that we no longer trust one.
const FRESH: Duration = Duration::from_secs(3);
/// A server on this machine or near it answers at once or not at all.
const CONNECT_TIME: Duration = Duration::from_secs(10);
/// The longest answer that is held in memory: the kept output of a process, and a good deal more.
const MAX_ANSWER_BYTES: usize = 64 << 20;

pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

pub(super) type WebSocket = WebSocketStream<Box<dyn Stream>>;

/// What goes with a request.
#[derive(Debug)]
pub(super) enum Payload {
    Whole(Option<Bytes>),
    /// Pieces as they come; an error breaks the request off.
    Pieces(mpsc::Receiver<io::Result<Bytes>>),
}

impl Body for Payload {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match self.get_mut() {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Pieces(pieces) => {
                pieces.poll_recv(context).map(|piece| piece.map(|piece| piece.map(Frame::data)))
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Self::Pieces(_) => SizeHint::default(),
        }
    }
}

#[derive(Debug)]
pub(super) struct Client {
    pub(super) address: Address,
    token: Option<String>,
    idle: Mutex<Option<(Instant, SendRequest<Payload>)>>,
}

impl Client {
    pub(super) fn new(target: &Target) -> anyhow::Result<Self> {
        let (address, token) = target.resolve()?;
        Ok(Self { address, token, idle: Mutex::new(None) })
    }

    /// A request without a body, answered by a document.
    pub(super) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.ask(Method::GET, path, Payload::Whole(None)).await
    }

    pub(super) async fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.ask(Method::DELETE, path, Payload::Whole(None)).await
    }

    pub(super) async fn post<T: DeserializeOwned>(&self, path: &str, body: &Value) -> Result<T, ClientError> {
        self.ask(Method::POST, path, Payload::Whole(Some(body.to_string().into()))).await
    }

    /// A request with a document, answered by events, or by a document where the server has none for it.
    pub(super) async fn post_for_events(
        &self,
        path: &str,
        body: &Value,
    ) -> Result<Response<Incoming>, ClientError> {
        let payload = Payload::Whole(Some(body.to_string().into()));
        let accept = [(ACCEPT, "text/event-stream, application/json")];
        Ok(self.exchange(Method::POST, path, payload, &accept).await?.0)
    }

    /// A body with headers of its own, whose answer is read as it comes.
    pub(super) async fn post_as(
        &self,
        path: &str,
        body: Bytes,
        headers: &[(HeaderName, &str)],
    ) -> Result<Response<Incoming>, ClientError> {
        Ok(self.exchange(Method::POST, path, Payload::Whole(Some(body)), headers).await?.0)
    }

    /// An end with headers of its own.
    pub(super) async fn delete_as(
        &self,
        path: &str,
        headers: &[(HeaderName, &str)],
    ) -> Result<(), ClientError> {
        self.exchange(Method::DELETE, path, Payload::Whole(None), headers).await.map(drop)
    }

    /// A request of any kind, answered by a document.
    pub(super) async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        payload: Payload,
    ) -> Result<T, ClientError> {
        let (answer, sender) = self.exchange(method, path, payload, &[]).await?;
        let body = self.collect(answer.into_body()).await?;
        self.keep(sender);
        serde_json::from_slice(&body).map_err(|error| self.garbled(error.to_string()))
    }

    /// A body with headers of its own, whose answer says nothing that is wanted.
    pub(super) async fn put(
        &self,
        path: &str,
        payload: Payload,
        headers: &[(HeaderName, &str)],
    ) -> Result<(), ClientError> {
        let (answer, sender) = self.exchange(Method::PUT, path, payload, headers).await?;
        self.collect(answer.into_body()).await?;
        self.keep(sender);
        Ok(())
    }

    /// A request whose answer is read as it comes.
    pub(super) async fn open(
        &self,
        path: &str,
        headers: &[(HeaderName, &str)],
    ) -> Result<Response<Incoming>, ClientError> {
        Ok(self.exchange(Method::GET, path, Payload::Whole(None), headers).await?.0)
    }

    /// The answer when it is a success, and the connection it came on.
    async fn exchange(
        &self,
        method: Method,
        path: &str,
        payload: Payload,
        headers: &[(HeaderName, &str)],
    ) -> Result<(Response<Incoming>, SendRequest<Payload>), ClientError> {
        let mut request = Request::builder().method(method).uri(path).header(HOST, self.host());
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        if !headers.iter().any(|(name, _)| name == ACCEPT) {
            request = request.header(ACCEPT, "application/json");
        }
        if !headers.iter().any(|(name, _)| name == CONTENT_TYPE) {
            request = request.header(CONTENT_TYPE, "application/octet-stream");
        }
        for (name, value) in headers {
            request = request.header(name, *value);
        }
        let request = request.body(payload).map_err(|error| self.garbled(error.to_string()))?;
        let mut sender = self.sender().await?;
        let answer = sender.send_request(request).await.map_err(|error| self.lost(error))?;
        if answer.status().is_success() {
            return Ok((answer, sender));
        }
        let status = answer.status();
        let body = self.collect(answer.into_body()).await?;
        self.keep(sender);
        Err(self.refused(status, &body))
    }

    pub(super) async fn collect(&self, mut body: Incoming) -> Result<Bytes, ClientError> {
        let mut collected = BytesMut::new();
        while let Some(piece) = self.piece(&mut body).await? {
            if collected.len() + piece.len() > MAX_ANSWER_BYTES {
                return Err(self.garbled("it is too long"));
            }
            collected.extend_from_slice(&piece);
        }
        Ok(collected.freeze())
    }

    /// The next bytes of an answer; `None` at its end. Safe to cancel.
    pub(super) async fn piece(&self, body: &mut Incoming) -> Result<Option<Bytes>, ClientError> {
        loop {
            match std::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await {
                None => return Ok(None),
                Some(Ok(frame)) => {
                    // Trailers say nothing to us.
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
                Some(Err(error)) => return Err(self.lost(error)),
            }
        }
    }

    pub(super) async fn websocket(&self, path: &str) -> Result<WebSocket, ClientError> {
        let stream = self.connect().await?;
        let mut request = Request::builder()
            .uri(format!("ws://{}{path}", self.host()))
            .header(HOST, self.host())
            .header("connection", "Upgrade")
            .header("upgrade", "websocket")
            .header("sec-websocket-version", "13")
            .header("sec-websocket-key", tungstenite::handshake::client::generate_key());
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(()).map_err(|error| self.garbled(error.to_string()))?;
        match tokio_tungstenite::client_async(request, stream).await {
            Ok((socket, _)) => Ok(socket),
            Err(tungstenite::Error::Http(answer)) => {
                Err(self.refused(answer.status(), answer.body().as_deref().unwrap_or_default()))
            }
            Err(tungstenite::Error::Io(error)) => Err(self.lost(error)),
            Err(error) => Err(self.garbled(error.to_string())),
        }
    }

    /// The next message with content; `None` when the server is gone without a goodbye.
    pub(super) async fn message(
        &self,
        socket: &mut (impl StreamExt<Item = Received> + Unpin),
    ) -> Option<Message> {
        loop {
            return match socket.next().await? {
                Ok(tungstenite::Message::Text(text)) => Some(Message::Text(text.as_str().to_owned())),
                Ok(tungstenite::Message::Binary(data)) => Some(Message::Binary(data)),
                Ok(tungstenite::Message::Close(frame)) => Some(Message::Close(
                    frame.map(|frame| frame.reason.as_str().to_owned()).unwrap_or_default(),
                )),
                Ok(_) => continue,
                Err(_) => None,
            };
        }
    }

    fn host(&self) -> &str {
        match &self.address {
            Address::Tcp(authority) => authority,
            Address::Unix(_) => "localhost",
        }
    }

    async fn sender(&self) -> Result<SendRequest<Payload>, ClientError> {
        let idle = self.idle.lock().ok().and_then(|mut idle| idle.take());
        if let Some((since, mut sender)) = idle
            && since.elapsed() < FRESH
            && sender.ready().await.is_ok()
        {
            return Ok(sender);
        }
        let stream = self.connect().await?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|error| self.lost(error))?;
        // Ends with its sender and the body it carries; what goes wrong on it is told to them.
        tokio::spawn(async move { drop(connection.await) });
        Ok(sender)
    }

    fn keep(&self, sender: SendRequest<Payload>) {
        if let Ok(mut idle) = self.idle.lock() {
            *idle = Some((Instant::now(), sender));
        }
    }

    async fn connect(&self) -> Result<Box<dyn Stream>, ClientError> {
        let connected = tokio::time::timeout(CONNECT_TIME, async {
            Ok::<Box<dyn Stream>, io::Error>(match &self.address {
                Address::Tcp(authority) => {
                    let stream = TcpStream::connect(authority).await?;
                    // Keystrokes and whole requests: waiting for more to send only adds delay.
                    stream.set_nodelay(true)?;
                    Box::new(stream)
                }
                Address::Unix(path) => Box::new(UnixStream::connect(path).await?),
            })
        });
        let connected = connected.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        connected.map_err(|source| ClientError::Unreachable { address: self.address.clone(), source })
    }

    pub(super) fn lost(&self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> ClientError {
        ClientError::Lost { address: self.address.clone(), source: source.into() }
    }

    pub(super) fn garbled(&self, why: impl Into<String>) -> ClientError {
        ClientError::Garbled { address: self.address.clone(), why: why.into() }
    }

    fn refused(&self, status: StatusCode, body: &[u8]) -> ClientError {
        #[derive(Deserialize)]
        struct Refused {
            error: ServerError,
        }
        match serde_json::from_slice::<Refused>(body) {
            Ok(refused) => refused.error.into(),
            Err(_) => self.garbled(format!("status {status}")),
        }
    }
}

pub(super) type Received = Result<tungstenite::Message, tungstenite::Error>;

/// A message of a WebSocket.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Message {
    Text(String),
    Binary(Bytes),
    /// The server's goodbye, and its reason.
    Close(String),
}
