//! `multipart/form-data` (RFC 7578) as it arrives, a part at a time, so that a file is never held whole.

use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt};
use memchr::memmem;

/// The head of a part holds a name and a path.
const MAX_HEAD_BYTES: usize = 16 << 10;
/// RFC 2046, 5.1.1.
const MAX_BOUNDARY_BYTES: usize = 70;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum MultipartError {
    #[error("the content type has no usable boundary")]
    Boundary,
    #[error("the form broke off")]
    Cut,
    #[error("a part of the form has no readable head")]
    Head,
}

/// What a part says of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) name: String,
    pub(super) filename: Option<String>,
}

#[derive(Debug)]
pub(super) struct Multipart<S> {
    body: S,
    buffer: BytesMut,
    /// A line's end, two dashes, and the boundary.
    delimiter: Vec<u8>,
    /// The buffer begins with the empty line behind a head. An empty part's delimiter begins with its end.
    fresh: bool,
}

/// The boundary of a content type, if it is a form's.
pub(super) fn boundary(content_type: &str) -> Option<Result<String, MultipartError>> {
    let (kind, parameters) = content_type.split_once(';').unwrap_or((content_type, ""));
    if !kind.trim().eq_ignore_ascii_case("multipart/form-data") {
        return None;
    }
    let found = parameters.split(';').find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        name.trim().eq_ignore_ascii_case("boundary").then(|| value.trim().trim_matches('"').to_owned())
    });
    let usable = found.filter(|text| !text.is_empty() && text.len() <= MAX_BOUNDARY_BYTES);
    Some(usable.ok_or(MultipartError::Boundary))
}

impl<S, E> Multipart<S>
where
    S: Stream<Item = Result<Bytes, E>> + Unpin,
{
    pub(super) fn new(body: S, boundary: &str) -> Self {
        // The first boundary stands at the start of the body, with no line before it to end.
        let (buffer, delimiter) = (BytesMut::from(&b"\r\n"[..]), format!("\r\n--{boundary}").into_bytes());
        Self { body, buffer, delimiter, fresh: false }
    }

    /// The next part; what is left of the one before is passed over.
    pub(super) async fn next_part(&mut self) -> Result<Option<Part>, MultipartError> {
        while self.next_piece().await?.is_some() {}
        self.fill(self.delimiter.len() + 2).await?;
        let _ = self.buffer.split_to(self.delimiter.len());
        if self.buffer.starts_with(b"--") {
            return Ok(None);
        }
        let head = loop {
            if let Some(end) = memmem::find(&self.buffer, b"\r\n\r\n") {
                break self.buffer.split_to(end + 2);
            }
            if self.buffer.len() > MAX_HEAD_BYTES {
                return Err(MultipartError::Head);
            }
            self.more().await?;
        };
        self.fresh = true;
        read_head(&head).map(Some).ok_or(MultipartError::Head)
    }

    /// The next piece of the part's content; `None` at its end.
    pub(super) async fn next_piece(&mut self) -> Result<Option<Bytes>, MultipartError> {
        if std::mem::take(&mut self.fresh) {
            self.fill(self.delimiter.len()).await?;
            if self.buffer.starts_with(&self.delimiter) {
                return Ok(None);
            }
            let _ = self.buffer.split_to(2);
        }
        loop {
            match memmem::find(&self.buffer, &self.delimiter) {
                Some(0) => return Ok(None),
                Some(end) => return Ok(Some(self.buffer.split_to(end).freeze())),
                None => {}
            }
            // The end may be the beginning of a delimiter.
            let sure = self.buffer.len().saturating_sub(self.delimiter.len() - 1);
            if sure > 0 {
                return Ok(Some(self.buffer.split_to(sure).freeze()));
            }
            self.more().await?;
        }
    }

    async fn fill(&mut self, bytes: usize) -> Result<(), MultipartError> {
        while self.buffer.len() < bytes {
            self.more().await?;
        }
        Ok(())
    }

    async fn more(&mut self) -> Result<(), MultipartError> {
        match self.body.next().await {
            Some(Ok(piece)) => self.buffer.extend_from_slice(&piece),
            Some(Err(_)) | None => return Err(MultipartError::Cut),
        }
        Ok(())
    }
}

fn read_head(head: &[u8]) -> Option<Part> {
    let head = std::str::from_utf8(head).ok()?;
    let disposition = head.split("\r\n").find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.trim().eq_ignore_ascii_case("content-disposition").then_some(value)
    })?;
    let mut part = Part::default();
    let mut rest = disposition.split_once(';').map_or("", |(_, rest)| rest);
    while let Some((name, after)) = rest.split_once('=') {
        let (value, next) = parameter(after);
        match name.trim_matches([' ', ';', '\t']).to_ascii_lowercase().as_str() {
            "name" => part.name = value,
            "filename" => part.filename = Some(value),
            // RFC 5987: meant before the plain one.
            "filename*" => {
                part.filename = value.rsplit_once('\'').and_then(|(_, text)| percent_decoded(text))
            }
            _ => {}
        }
        rest = next;
    }
    (!part.name.is_empty()).then_some(part)
}

/// A value, quoted or not, and what comes behind it.
fn parameter(text: &str) -> (String, &str) {
    let text = text.trim_start();
    let Some(quoted) = text.strip_prefix('"') else {
        let (value, rest) = text.split_once(';').unwrap_or((text, ""));
        return (value.trim().to_owned(), rest);
    };
    let mut value = String::new();
    let mut chars = quoted.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return (html_unescaped(&value), &quoted[at + 1..]),
            '\\' => value.extend(chars.next().map(|(_, char)| char)),
            other => value.push(other),
        }
    }
    (html_unescaped(&value), "")
}

/// The three characters that forms escape (HTML, 4.10.21.8).
fn html_unescaped(text: &str) -> String {
    text.replace("%22", "\"").replace("%0D", "\r").replace("%0A", "\n")
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        if *first != b'%' {
            bytes.push(*first);
            rest = after;
            continue;
        }
        let (digits, after) = after.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
        rest = after;
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
#[path = "multipart_tests.rs"]
mod tests;
