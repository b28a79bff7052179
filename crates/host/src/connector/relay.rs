//! The line to a managed process of another runtime: a WebSocket whose text messages are lines.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{Sink as _, StreamExt as _, stream};
use sandcrate_protocol::ErrorKind;
use tokio::io::AsyncWrite;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::http::{HeaderValue, StatusCode, header};
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{self, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};
use tokio_util::io::StreamReader;

use super::{Endpoint, wire};
use crate::{HostError, ProcessStreams, Result};

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// The subprotocol that MCP clients ask for, and get.
const PROTOCOL: HeaderValue = HeaderValue::from_static("mcp");
/// How long the opening may take.
const OPEN: Duration = Duration::from_secs(10);
/// What the other side takes in one message.
const MAX_LINE: usize = 16 << 20;

pub(super) async fn attach(endpoint: &Endpoint, session: &str, process: &str) -> Result<ProcessStreams> {
    let broken =
        |cause: String| HostError::unavailable(format!("the process's relay cannot be reached: {cause}"));
    let mut request = wire::request(&endpoint.attach_url(session, process), endpoint).map_err(broken)?;
    request.headers_mut().insert(header::SEC_WEBSOCKET_PROTOCOL, PROTOCOL);
    let opening = tokio_tungstenite::connect_async_with_config(request, None, true);
    let opened =
        tokio::time::timeout(OPEN, opening).await.map_err(|_| broken("it does not answer".to_owned()))?;
    let (socket, _) = opened.map_err(|error| match error {
        tungstenite::Error::Http(response) => refusal(response.status(), response.body().as_deref()),
        error => broken(error.to_string()),
    })?;
    let (sink, messages) = socket.split();
    Ok(ProcessStreams {
        reader: Box::pin(StreamReader::new(stream::unfold(Some(messages), next))),
        writer: Box::pin(LineWriter { sink, partial: Vec::new() }),
    })
}

/// What a runtime answers instead of an upgrade.
fn refusal(status: StatusCode, body: Option<&[u8]>) -> HostError {
    let kind = match status {
        StatusCode::CONFLICT => ErrorKind::ProcessConflict,
        StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND => ErrorKind::ProcessNotFound,
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => ErrorKind::Denied,
        _ => ErrorKind::RuntimeUnavailable,
    };
    let said = body.map(String::from_utf8_lossy).unwrap_or_default();
    let said: String = said.chars().filter(|c| !c.is_control()).take(400).collect();
    HostError::new(kind, format!("the process's relay refuses ({status}): {said}"))
}

type Messages = SplitStream<Socket>;

async fn next(messages: Option<Messages>) -> Option<(io::Result<Bytes>, Option<Messages>)> {
    let mut messages = messages?;
    loop {
        return match messages.next().await {
            Some(Ok(Message::Text(text))) => {
                let mut line = BytesMut::with_capacity(text.len() + 1);
                line.put_slice(text.as_bytes());
                line.put_u8(b'\n');
                Some((Ok(line.freeze()), Some(messages)))
            }
            // The process ended, or was stopped: its output ends here.
            Some(Ok(Message::Close(Some(CloseFrame { code: CloseCode::Normal, .. })))) => None,
            Some(Ok(Message::Close(frame))) => {
                let why = frame.map(|frame| frame.reason.to_string()).unwrap_or_default();
                Some((Err(io::Error::other(format!("the relay closed the line: {why}"))), None))
            }
            Some(Ok(_)) => continue,
            Some(Err(error)) => Some((Err(io::Error::other(error)), None)),
            None => Some((Err(io::ErrorKind::UnexpectedEof.into()), None)),
        };
    }
}

/// Makes a message of every line.
struct LineWriter {
    sink: SplitSink<Socket, Message>,
    partial: Vec<u8>,
}

impl AsyncWrite for LineWriter {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let Some(end) = memchr::memchr(b'\n', data) else {
            if self.partial.len() + data.len() > MAX_LINE {
                return Poll::Ready(Err(io::Error::other("a line is longer than the relay's 16 MiB")));
            }
            self.partial.extend_from_slice(data);
            return Poll::Ready(Ok(data.len()));
        };
        ready!(Pin::new(&mut self.sink).poll_ready(cx)).map_err(io::Error::other)?;
        let mut line = std::mem::take(&mut self.partial);
        line.extend_from_slice(&data[..end]);
        let line = String::from_utf8(line)
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "a line for the relay is not UTF-8"))?;
        Pin::new(&mut self.sink).start_send(Message::text(line)).map_err(io::Error::other)?;
        Poll::Ready(Ok(end + 1))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.sink).poll_flush(cx).map_err(io::Error::other)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.sink).poll_close(cx).map_err(io::Error::other)
    }
}
