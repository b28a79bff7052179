//! Whoever is refused in the middle of an upload still hears why.
//!
//! A server that answers before it has read a request has to close the connection, and a client that is still sending
//! then sees a broken connection instead of the answer. So what is left of a refused upload is read and thrown away,
//! up to a bound.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};

/// A client with more to send, or a slow one, has to do with the broken connection.
const MAX_BYTES: usize = 64 << 20;
const MAX_TIME: Duration = Duration::from_secs(10);

/// For routes whose requests carry files.
pub(crate) async fn hear_out(request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let mut body = Shared(Arc::new(Mutex::new(body.into_data_stream())));
    let answer = next.run(Request::from_parts(parts, Body::from_stream(body.clone()))).await;
    if answer.status().is_client_error() || answer.status().is_server_error() {
        let _ = tokio::time::timeout(MAX_TIME, body.drain()).await;
    }
    answer
}

/// A request's body that can be read on when its handler has let go of it.
#[derive(Clone)]
struct Shared(Arc<Mutex<BodyDataStream>>);

impl Shared {
    async fn drain(&mut self) {
        let mut left = MAX_BYTES;
        while let Some(Ok(piece)) = self.next().await {
            match left.checked_sub(piece.len()) {
                Some(less) => left = less,
                None => return,
            }
        }
    }
}

impl Stream for Shared {
    type Item = Result<Bytes, axum::Error>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        // Held for this one look: nothing can panic in between.
        self.0.lock().unwrap_or_else(PoisonError::into_inner).poll_next_unpin(cx)
    }
}
