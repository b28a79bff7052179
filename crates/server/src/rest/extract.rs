//! Reading requests: path, query and JSON body, each refused with an [`ApiError`] that names the field.

use axum::RequestExt;
use axum::body::Bytes;
use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use serde::de::DeserializeOwned;

use super::error::ApiError;

/// A JSON body is held in memory whole. The largest thing in one is a script or standard input; files have
/// their own route, which streams.
pub(crate) const MAX_JSON_BYTES: usize = 16 << 20;

/// A JSON object; an empty body is an empty object. The content type is not looked at: a page of another
/// origin is refused by its `Origin`.
#[derive(Debug)]
pub(crate) struct JsonBody<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _state: &S) -> Result<Self, ApiError> {
        let body: Bytes =
            request.extract().await.map_err(|rejection: axum::extract::rejection::BytesRejection| {
                match rejection.status() {
                    StatusCode::PAYLOAD_TOO_LARGE => {
                        let message = format!("a JSON body has at most {MAX_JSON_BYTES} bytes");
                        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
                    }
                    _ => ApiError::invalid("body", "did not arrive whole"),
                }
            })?;
        read_json(if body.trim_ascii().is_empty() { b"{}" } else { &body }).map(Self)
    }
}

fn read_json<T: DeserializeOwned>(text: &[u8]) -> Result<T, ApiError> {
    // Serde would take the fields of a structure from an array too, by their order.
    if text.trim_ascii_start().first().is_some_and(|first| *first != b'{') {
        return Err(ApiError::invalid("body", "must be a JSON object"));
    }
    let mut json = serde_json::Deserializer::from_slice(text);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let field = error.path().to_string();
        let problem = error.inner();
        match field.as_str() {
            _ if !problem.is_data() => ApiError::invalid("body", format!("is not JSON: {problem}")),
            "." | "?" => ApiError::invalid("body", format!("is not acceptable: {problem}")),
            _ => ApiError::invalid(field, format!("is not acceptable: {problem}")),
        }
    })?;
    json.end().map_err(|error| ApiError::invalid("body", format!("is not one JSON value: {error}")))?;
    Ok(value)
}

/// Parameters of the path, percent-decoded.
#[derive(Debug)]
pub(crate) struct Segments<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Segments<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let path = Path::<T>::from_request_parts(parts, state).await;
        path.map(|Path(value)| Self(value)).map_err(|rejection: PathRejection| {
            ApiError::invalid("path", format!(": {}", rejection.body_text()))
        })
    }
}

/// Parameters of the query; one that is not known is refused, not overlooked.
#[derive(Debug)]
pub(crate) struct Params<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Params<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, ApiError> {
        Query::try_from_uri(&parts.uri).map(|Query(value)| Self(value)).map_err(|rejection| {
            // Its own text ends with the parameter and what is wrong with it.
            let text = rejection.body_text();
            let problem = text.strip_prefix("Failed to deserialize query string: ").unwrap_or(&text);
            ApiError::invalid("query", format!("is not acceptable: {problem}"))
        })
    }
}

/// A switch in a query: `1`, `true`, or just the name.
pub(crate) fn switch<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    let text: std::borrow::Cow<'de, str> = serde::Deserialize::deserialize(deserializer)?;
    match text.as_ref() {
        "" | "1" | "true" => Ok(true),
        "0" | "false" => Ok(false),
        other => Err(serde::de::Error::custom(format!("`{}` is neither 1 nor 0", cut(other)))),
    }
}

/// What a message repeats of a caller's text.
pub(crate) fn cut(text: &str) -> String {
    let mut shown: String = text.chars().take(100).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only the refusal is looked at")]
    struct Sample {
        count: u8,
    }

    #[test]
    fn a_refused_body_names_the_field() {
        for (text, field, part) in [
            (r#"{"count": "x"}"#, "count", "invalid type"),
            (r#"{"count": 1, "cuont": 2}"#, "cuont", "unknown field `cuont`"),
            ("{", "body", "EOF"),
            (r#"{"count": 1} x"#, "body", "trailing"),
            ("[1]", "body", "must be a JSON object"),
        ] {
            let error = read_json::<Sample>(text.as_bytes()).unwrap_err().to_value();
            assert_eq!(error["error"]["field"], field, "{text}: {error}");
            assert!(error["error"]["message"].as_str().unwrap().contains(part), "{text}: {error}");
        }
    }
}
