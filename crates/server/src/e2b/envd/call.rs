//! Reading a call of Connect: one JSON message, plain or in an envelope, its deadline and its signs of life.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, header};
use sandcrate_e2b_wire::connect::{Code, Decoder, Envelope, STREAM, TIMEOUT_HEADER, UNARY};
use sandcrate_e2b_wire::header as names;
use serde::de::DeserializeOwned;

use super::super::error::Failed;
use super::MAX_MESSAGE_BYTES;

/// Between two signs of life on a stream whose client does not say.
const KEEPALIVE: Duration = Duration::from_secs(90);
/// A client that wants more signs of life than this wants to keep us busy.
const SHORTEST_KEEPALIVE: Duration = Duration::from_secs(1);

/// The message of a unary call.
#[derive(Debug)]
pub(super) struct Unary<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Unary<T> {
    type Rejection = Failed;

    async fn from_request(request: Request, state: &S) -> Result<Self, Failed> {
        expect(request.headers(), UNARY)?;
        let body = whole(request, state).await?;
        let text: &[u8] = if body.trim_ascii().is_empty() { b"{}" } else { &body };
        read(text).map(Self)
    }
}

/// The one message of a call whose answer streams.
pub(super) async fn first_message<T: DeserializeOwned>(request: Request) -> Result<T, Failed> {
    expect(request.headers(), STREAM)?;
    let body = whole(request, &()).await?;
    let mut decoder = Decoder::new(MAX_MESSAGE_BYTES);
    decoder.push(&body);
    match decoder.next_envelope() {
        Ok(Some(Envelope::Message(json))) => read(&json),
        Ok(Some(Envelope::End(_)) | None) => Err(Failed::invalid("the call has no message")),
        Err(error) => Err(Failed::invalid(error.to_string())),
    }
}

pub(super) fn expect(headers: &HeaderMap, wanted: &str) -> Result<(), Failed> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if kind.eq_ignore_ascii_case(wanted) {
        return Ok(());
    }
    let shown: String = kind.chars().take(60).collect();
    Err(Failed::new(
        Code::Unimplemented,
        format!("this call takes {wanted}, not `{shown}`: speak Connect with JSON"),
    ))
}

async fn whole<S: Send + Sync>(request: Request, state: &S) -> Result<Bytes, Failed> {
    let body = Bytes::from_request(request, state).await;
    body.map_err(|rejection| match rejection.status() {
        axum::http::StatusCode::PAYLOAD_TOO_LARGE => {
            Failed::new(Code::ResourceExhausted, format!("a call has at most {MAX_MESSAGE_BYTES} bytes"))
        }
        _ => Failed::new(Code::Canceled, "the call did not arrive whole"),
    })
}

pub(super) fn read<T: DeserializeOwned>(json: &[u8]) -> Result<T, Failed> {
    let mut json = serde_json::Deserializer::from_slice(json);
    serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let field = error.path().to_string();
        Failed::invalid(format!("{field} is not acceptable: {}", error.inner()))
    })
}

/// How long the whole call may take.
pub(super) fn deadline(headers: &HeaderMap) -> Result<Option<Duration>, Failed> {
    let Some(value) = headers.get(TIMEOUT_HEADER) else { return Ok(None) };
    let millis = value.to_str().ok().and_then(|text| text.trim().parse::<u64>().ok());
    match millis {
        Some(millis @ 1..) => Ok(Some(Duration::from_millis(millis))),
        _ => Err(Failed::invalid("Connect-Timeout-Ms must be a whole number of milliseconds, at least 1")),
    }
}

/// How often a stream shows that it lives.
pub(super) fn keepalive(headers: &HeaderMap) -> Duration {
    let asked = headers.get(names::KEEPALIVE).and_then(|value| value.to_str().ok());
    let seconds = asked.and_then(|text| text.trim().parse::<u64>().ok()).filter(|seconds| *seconds > 0);
    seconds.map_or(KEEPALIVE, Duration::from_secs).clamp(SHORTEST_KEEPALIVE, KEEPALIVE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: &'static str, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name.parse::<header::HeaderName>().unwrap(), value.parse().unwrap())])
    }

    #[test]
    fn a_deadline_is_in_milliseconds_and_none_is_none() {
        assert_eq!(deadline(&HeaderMap::new()).unwrap(), None);
        assert_eq!(
            deadline(&headers("connect-timeout-ms", "1500")).unwrap(),
            Some(Duration::from_millis(1500))
        );
        for bad in ["0", "-1", "x", ""] {
            assert!(deadline(&headers("connect-timeout-ms", bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn signs_of_life_come_as_often_as_asked_within_reason() {
        for (asked, seconds) in [("50", 50), ("1", 1), ("0", 90), ("x", 90), ("3600", 90)] {
            assert_eq!(keepalive(&headers("keepalive-ping-interval", asked)).as_secs(), seconds, "{asked}");
        }
    }

    #[test]
    fn a_field_that_is_wrong_is_named() {
        #[derive(Debug, serde::Deserialize)]
        #[expect(dead_code, reason = "only the refusal is looked at")]
        struct Sample {
            depth: u32,
        }
        let error = read::<Sample>(br#"{"depth": "x"}"#).unwrap_err().0;
        assert!(error.code == Code::InvalidArgument && error.message.starts_with("depth is"), "{error}");
    }
}
