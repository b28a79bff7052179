//! A file, or a range of it, out of the box.

use std::io;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::{Stream, stream};
use sandcrate_backend::{FileEntry, FileKind, FileReply, FileRequest};
use sandcrate_runtime::Runtime;

use super::range::{Wanted, wanted};
use super::{failed, follow, unexpected};
use crate::App;
use crate::rest::error::ApiError;

/// A client that does not read holds one of these, so it is far shorter than what an upload gathers; each is a
/// worker in the box, so it is not shorter still.
const PIECE_BYTES: u64 = 512 << 10;
/// Of a file whose length is not known, which should come in one piece.
const LONGEST_PIECE_BYTES: u64 = 4 << 20;

pub(crate) async fn answer(
    app: App,
    session: String,
    path: String,
    method: &Method,
    headers: &HeaderMap,
) -> Result<Response, ApiError> {
    let (resolved, entry) = follow(&app.runtime, &session, &path).await?;
    match entry.kind {
        FileKind::File => {}
        FileKind::Directory => return Err(failed(&path, "is a directory; `?list=1` gives its entries")),
        // A pipe or a device would hold the reader for as long as it likes.
        _ => return Err(failed(&path, "is not a regular file")),
    }
    let tag = tag(&entry);
    if headers.get_all(header::IF_NONE_MATCH).iter().any(|known| matches(known, &tag)) {
        return Ok((StatusCode::NOT_MODIFIED, common(&tag)).into_response());
    }
    // The tag is weak, and a weak tag never allows a part to be put together with another.
    let range = if headers.contains_key(header::IF_RANGE) { None } else { headers.get(header::RANGE) };
    let (status, part) = match wanted(range.and_then(|range| range.to_str().ok()), entry.bytes) {
        Wanted::Whole => (StatusCode::OK, 0..entry.bytes),
        Wanted::Part(part) => (StatusCode::PARTIAL_CONTENT, part),
        Wanted::Unsatisfiable => return Ok(unsatisfiable(entry.bytes)),
    };
    let mut answer = (status, common(&tag)).into_response();
    let fields = answer.headers_mut();
    if status == StatusCode::PARTIAL_CONTENT {
        insert(
            fields,
            header::CONTENT_RANGE,
            format!("bytes {}-{}/{}", part.start, part.end - 1, entry.bytes),
        );
    }
    // The kernel's own files say that they are empty, and are not.
    let unknown = entry.bytes == 0;
    if !unknown {
        insert(fields, header::CONTENT_LENGTH, (part.end - part.start).to_string());
    }
    if method != Method::HEAD {
        let end = if unknown { None } else { Some(part.end) };
        let mut reading = Reading { runtime: app.runtime, session, path: resolved, offset: part.start, end };
        // The first piece before the head is sent: a file that cannot be read is an error and not a broken body.
        let first = reading.piece().await?;
        if first.is_empty() {
            insert(fields, header::CONTENT_LENGTH, "0".to_owned());
        } else {
            *answer.body_mut() = Body::from_stream(pieces(first, reading));
        }
    }
    Ok(answer)
}

/// Size and time of the last change, in seconds: weak, as two changes in one second look the same.
fn tag(entry: &FileEntry) -> String {
    format!("W/\"{:x}-{:x}\"", entry.bytes, entry.modified)
}

fn matches(known: &HeaderValue, tag: &str) -> bool {
    let strong = |tag: &str| tag.trim().trim_start_matches("W/").to_owned();
    let known = known.to_str().unwrap_or_default();
    known.split(',').any(|one| one.trim() == "*" || strong(one) == strong(tag))
}

/// What a program in the box wrote must not become a page of this origin.
fn common(tag: &str) -> [(header::HeaderName, String); 6] {
    [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::ACCEPT_RANGES, "bytes".to_owned()),
        (header::ETAG, tag.to_owned()),
        (header::CONTENT_DISPOSITION, "attachment".to_owned()),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
        (header::CONTENT_SECURITY_POLICY, "sandbox".to_owned()),
    ]
}

fn insert(fields: &mut HeaderMap, name: header::HeaderName, value: String) {
    if let Ok(value) = HeaderValue::try_from(value) {
        fields.insert(name, value);
    }
}

fn unsatisfiable(file_bytes: u64) -> Response {
    let status = StatusCode::RANGE_NOT_SATISFIABLE;
    let message = format!("the file has {file_bytes} bytes");
    let mut answer = ApiError::new(status, "range_not_satisfiable", message).into_response();
    insert(answer.headers_mut(), header::CONTENT_RANGE, format!("bytes */{file_bytes}"));
    answer
}

struct Reading {
    runtime: Runtime,
    session: String,
    path: String,
    offset: u64,
    /// `None`: until there is no more.
    end: Option<u64>,
}

impl Reading {
    /// The next piece; empty at the end.
    async fn piece(&mut self) -> Result<Bytes, ApiError> {
        let left = self.end.map_or(u64::MAX, |end| end - self.offset);
        if left == 0 {
            return Ok(Bytes::new());
        }
        let longest = if self.end.is_some() { PIECE_BYTES } else { LONGEST_PIECE_BYTES };
        let limit = left.min(longest);
        let request = FileRequest::Read { path: self.path.clone(), offset: self.offset, limit };
        let FileReply::Data { mut data, .. } = self.runtime.files(&self.session, request).await? else {
            return Err(unexpected("read", &self.path));
        };
        data.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        self.offset += data.len() as u64;
        if data.is_empty() && self.end.is_some() {
            return Err(failed(&self.path, "became shorter while it was read"));
        }
        // Of a file whose length is not known, a piece that is not full is the last: another look at what the kernel
        // makes up as it is read could add one of another moment.
        if self.end.is_none() && (data.len() as u64) < limit {
            self.end = Some(self.offset);
        }
        Ok(data)
    }
}

/// A failure ends the body before its length is reached, so no client takes a part for the whole.
fn pieces(first: Bytes, reading: Reading) -> impl Stream<Item = io::Result<Bytes>> + Send {
    stream::unfold((Some(first), Some(reading)), |(first, reading)| async move {
        let mut reading = reading?;
        if let Some(first) = first {
            return Some((Ok(first), (None, Some(reading))));
        }
        match reading.piece().await {
            Ok(data) if data.is_empty() => None,
            Ok(data) => Some((Ok(data), (None, Some(reading)))),
            Err(error) => Some((Err(io::Error::other(error.to_value().to_string())), (None, None))),
        }
    })
}
