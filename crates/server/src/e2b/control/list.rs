//! Lists of sandboxes: filtered, in order of their start, a page at a time.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use sandcrate_e2b_wire::control::{ListedSandbox, SandboxState};
use sandcrate_e2b_wire::header::NEXT_TOKEN;
use serde::Deserialize;

use super::super::error::Refused;
use super::Params;
use super::show::listed;
use crate::App;

const DEFAULT_LIMIT: usize = 100;
const MAX_LIMIT: usize = 1000;

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ListParams {
    /// A query in a query: `user=42&app=x`, each part escaped once more.
    metadata: Option<String>,
    /// With commas between.
    state: Option<String>,
    order: Option<String>,
    started_after: Option<Timestamp>,
    template: Option<String>,
    next_token: Option<String>,
    limit: Option<usize>,
}

/// Where a page begins: behind this one.
type Place = (Timestamp, String);

pub(super) async fn list(
    State(app): State<App>,
    Params(params): Params<ListParams>,
) -> Result<(HeaderMap, Json<Vec<ListedSandbox>>), Refused> {
    let filter = Filter::read(&params)?;
    let limit = params.limit.unwrap_or(DEFAULT_LIMIT);
    if !(1..=MAX_LIMIT).contains(&limit) {
        return Err(Refused::invalid(format!("limit must be from 1 to {MAX_LIMIT}")));
    }
    let mut found: Vec<_> = app
        .e2b
        .sandboxes
        .all()
        .into_iter()
        .filter_map(|sandbox| Some(listed(&sandbox, &app.runtime.session(sandbox.id()).ok()?)))
        .filter(|sandbox| filter.takes(sandbox))
        .collect();
    found.sort_by_key(place);
    if filter.newest_first {
        found.reverse();
    }
    let mut headers = HeaderMap::new();
    if found.len() > limit {
        found.truncate(limit);
        if let Some(last) = found.last()
            && let Ok(token) = HeaderValue::try_from(token_of(&place(last)))
        {
            headers.insert(NEXT_TOKEN, token);
        }
    }
    Ok((headers, Json(found)))
}

fn place(sandbox: &ListedSandbox) -> Place {
    (sandbox.started_at, sandbox.sandbox_id.clone())
}

struct Filter {
    metadata: BTreeMap<String, String>,
    states: Vec<SandboxState>,
    started_after: Option<Timestamp>,
    template: Option<String>,
    behind: Option<Place>,
    newest_first: bool,
}

impl Filter {
    fn read(params: &ListParams) -> Result<Self, Refused> {
        let states = params.state.as_deref().unwrap_or_default();
        let states = states.split(',').filter(|state| !state.is_empty()).map(|state| match state {
            "running" => Ok(SandboxState::Running),
            "paused" => Ok(SandboxState::Paused),
            _ => Err(Refused::invalid("state must be running, paused, or both with a comma between")),
        });
        let newest_first = match params.order.as_deref() {
            None | Some("desc") => true,
            Some("asc") => false,
            Some(_) => return Err(Refused::invalid("order must be asc or desc")),
        };
        let behind = params.next_token.as_deref().filter(|token| !token.is_empty()).map(|token| {
            place_of(token).ok_or_else(|| Refused::invalid("nextToken is none that this server gave"))
        });
        Ok(Self {
            metadata: params.metadata.as_deref().map(read_metadata).transpose()?.unwrap_or_default(),
            states: states.collect::<Result<_, _>>()?,
            started_after: params.started_after,
            template: params.template.clone(),
            behind: behind.transpose()?,
            newest_first,
        })
    }

    fn takes(&self, sandbox: &ListedSandbox) -> bool {
        let later = self.behind.as_ref().is_none_or(|behind| match self.newest_first {
            true => place(sandbox) < *behind,
            false => place(sandbox) > *behind,
        });
        later
            && (self.states.is_empty() || self.states.contains(&sandbox.state))
            && self.started_after.is_none_or(|after| sandbox.started_at > after)
            && self.template.as_ref().is_none_or(|template| *template == sandbox.template_id)
            && self.metadata.iter().all(|(key, value)| sandbox.metadata.get(key) == Some(value))
    }
}

/// SDKs escape keys and values, and then the whole.
fn read_metadata(text: &str) -> Result<BTreeMap<String, String>, Refused> {
    let problem = || Refused::invalid("metadata must be like `user=42&app=x`, percent-encoded");
    let uri =
        axum::http::Uri::builder().path_and_query(format!("/?{text}")).build().map_err(|_| problem())?;
    let pairs: Vec<(String, String)> = axum::extract::Query::try_from_uri(&uri).map_err(|_| problem())?.0;
    let once_more = |text: String| unescaped(&text).ok_or_else(problem);
    pairs.into_iter().map(|(key, value)| Ok((once_more(key)?, once_more(value)?))).collect()
}

fn unescaped(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let escaped =
            (*first == b'%').then(|| after.split_at_checked(2)).flatten().and_then(|(digits, after)| {
                Some((u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?, after))
            });
        let (byte, after) = escaped.unwrap_or((*first, after));
        bytes.push(byte);
        rest = after;
    }
    String::from_utf8(bytes).ok()
}

fn token_of((at, id): &Place) -> String {
    URL_SAFE_NO_PAD.encode(format!("{at} {id}"))
}

fn place_of(token: &str) -> Option<Place> {
    let text = String::from_utf8(URL_SAFE_NO_PAD.decode(token).ok()?).ok()?;
    let (at, id) = text.split_once(' ')?;
    Some((at.parse().ok()?, id.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_escaped_twice_by_the_sdks_and_once_by_others() {
        let read = |text: &str| read_metadata(text).unwrap().into_iter().collect::<Vec<_>>();
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(read("user=42&a%2520b=c%253Dd"), [pair("a b", "c=d"), pair("user", "42")]);
        assert_eq!(read("a=100%25"), [pair("a", "100%")]);
    }

    #[test]
    fn a_token_is_a_place_and_nothing_else_is() {
        let place: Place = (Timestamp::from_microsecond(1_700_000_000_123_456).unwrap(), "i1".to_owned());
        assert_eq!(place_of(&token_of(&place)), Some(place));
        for bad in ["", "!", "aGVsbG8"] {
            assert_eq!(place_of(bad), None, "{bad}");
        }
    }
}
