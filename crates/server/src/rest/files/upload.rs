//! A body of any length into a file of the box, a piece at a time.

use axum::http::StatusCode;
use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt};
use sandcrate_backend::{FileKind, FileRequest};
use sandcrate_protocol::ErrorKind;
use sandcrate_runtime::Runtime;

use super::{PIECE_BYTES, failed, follow};
use crate::rest::error::ApiError;

pub(crate) struct Upload {
    runtime: Runtime,
    session: String,
    path: String,
}

impl Upload {
    pub(crate) fn new(runtime: Runtime, session: String, path: String) -> Self {
        Self { runtime, session, path }
    }

    /// Whether the file was made or replaced, and its length.
    pub(crate) async fn run<S, E>(self, body: S) -> Result<(StatusCode, u64), ApiError>
    where
        S: Stream<Item = Result<Bytes, E>> + Unpin,
    {
        let (target, status) = match follow(&self.runtime, &self.session, &self.path).await {
            Ok((_, entry)) if entry.kind == FileKind::Directory => {
                return Err(failed(&self.path, "is a directory"));
            }
            Ok((_, entry)) if entry.kind != FileKind::File => {
                return Err(failed(&self.path, "is not a regular file"));
            }
            Ok((resolved, _)) => (resolved, StatusCode::OK),
            Err(error) if error.is(ErrorKind::FileNotFound) => (self.path.clone(), StatusCode::CREATED),
            Err(error) => return Err(error),
        };
        let mut pieces = Pieces { body, gathered: BytesMut::new(), ended: false };
        let first = pieces.next().await?;
        let bytes = if pieces.ended {
            // All of it is here: nothing can break off, and the file keeps its mode and its links.
            let bytes = first.len() as u64;
            self.ask(FileRequest::Write { path: target, data: first }).await?;
            bytes
        } else {
            self.replace(target, first, pieces).await?
        };
        Ok((status, bytes))
    }

    async fn replace<S, E>(&self, target: String, first: Bytes, pieces: Pieces<S>) -> Result<u64, ApiError>
    where
        S: Stream<Item = Result<Bytes, E>> + Unpin,
    {
        let parent = target.rfind('/').map_or("", |at| &target[..at]);
        // In the same directory, hence on the same file system, so that taking the place is one step.
        let beside = format!("{parent}/.{}.upload", uuid::Uuid::now_v7().simple());
        let written = self.write_all(&beside, first, pieces).await;
        let moved = match written {
            Ok(bytes) => {
                self.ask(FileRequest::Rename { from: beside.clone(), to: target }).await.map(|()| bytes)
            }
            Err(error) => Err(error),
        };
        if moved.is_err() {
            // The reason is told; a file that cannot be removed either goes with its session.
            let _ = self.ask(FileRequest::Remove { path: beside }).await;
        }
        moved
    }

    async fn write_all<S, E>(&self, path: &str, first: Bytes, mut pieces: Pieces<S>) -> Result<u64, ApiError>
    where
        S: Stream<Item = Result<Bytes, E>> + Unpin,
    {
        let mut bytes = first.len() as u64;
        self.ask(FileRequest::Write { path: path.to_owned(), data: first }).await?;
        while !pieces.ended {
            let data = pieces.next().await?;
            if !data.is_empty() {
                bytes += data.len() as u64;
                self.ask(FileRequest::Append { path: path.to_owned(), data }).await?;
            }
        }
        Ok(bytes)
    }

    async fn ask(&self, request: FileRequest) -> Result<(), ApiError> {
        self.runtime.files(&self.session, request).await?;
        Ok(())
    }
}

/// A body cut anew: as it arrives it comes in pieces of a few KiB, each of which would be a worker in the box.
struct Pieces<S> {
    body: S,
    gathered: BytesMut,
    ended: bool,
}

impl<S: Stream<Item = Result<Bytes, E>> + Unpin, E> Pieces<S> {
    /// The next piece, full unless it is the last.
    async fn next(&mut self) -> Result<Bytes, ApiError> {
        while self.gathered.len() < PIECE_BYTES {
            match self.body.next().await {
                Some(Ok(data)) => self.gathered.extend_from_slice(&data),
                Some(Err(_)) => return Err(ApiError::invalid("body", "did not arrive whole")),
                None => {
                    self.ended = true;
                    return Ok(self.gathered.split().freeze());
                }
            }
        }
        Ok(self.gathered.split_to(PIECE_BYTES).freeze())
    }
}
