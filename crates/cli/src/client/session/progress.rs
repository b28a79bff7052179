//! A session that is being made: what the server tells of its image meanwhile, on stderr.

use std::collections::HashMap;

use hyper::header::CONTENT_TYPE;
use sandcrate_backend::StartNotice;
use serde::Deserialize;
use serde_json::Value;

use crate::client::events::Parser;
use crate::client::http::Client;
use crate::client::problem::{ClientError, ServerError};
use crate::output;

/// Makes a session, and returns it.
pub(super) async fn create(client: &Client, body: &Value) -> Result<Value, ClientError> {
    let answer = client.post_for_events("/v1/sessions", body).await?;
    let streamed = answer
        .headers()
        .get(CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
    let mut answer = answer.into_body();
    if !streamed {
        // A server that knows no events for this.
        let body = client.collect(answer).await?;
        return serde_json::from_slice(&body).map_err(|error| client.garbled(error.to_string()));
    }
    let (mut parser, mut told) = (Parser::default(), Told::default());
    while let Some(piece) = client.piece(&mut answer).await? {
        for event in parser.push(&piece).map_err(|why| client.garbled(why))? {
            let garbled =
                |error: serde_json::Error| client.garbled(format!("event `{}`: {error}", event.name));
            match event.name.as_str() {
                "progress" => told.tell(&serde_json::from_str(&event.data).map_err(garbled)?),
                "session" => return serde_json::from_str(&event.data).map_err(garbled),
                "error" => {
                    #[derive(Deserialize)]
                    struct Failed {
                        error: ServerError,
                    }
                    let failed: Failed = serde_json::from_str(&event.data).map_err(garbled)?;
                    return Err(failed.error.into());
                }
                _ => {}
            }
        }
    }
    Err(client.lost("it ended before the session was made"))
}

/// What was said of each layer: a line for each change, not for each byte.
#[derive(Debug, Default)]
struct Told {
    layers: HashMap<String, (String, u64)>,
}

impl Told {
    fn tell(&mut self, notice: &StartNotice) {
        if let Some(line) = self.line(notice) {
            output::notice(&line);
        }
    }

    fn line(&mut self, notice: &StartNotice) -> Option<String> {
        let layer = notice.layer.clone().unwrap_or_default();
        let percent = match (notice.done_bytes, notice.total_bytes) {
            (Some(done), Some(total)) if total > 0 => done.min(total) * 100 / total,
            _ => 0,
        };
        // In steps of a quarter.
        let step = percent / 25;
        let known = self.layers.insert(layer.clone(), (notice.status.clone(), step));
        if known.is_some_and(|(status, before)| status == notice.status && before >= step) {
            return None;
        }
        let layer = if layer.is_empty() { String::new() } else { format!(" {layer}") };
        let percent = if percent > 0 { format!(" {percent} %") } else { String::new() };
        Some(format!("{}:{layer} {}{percent}", notice.image, notice.status))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_for_each_change_and_each_quarter() {
        let mut told = Told::default();
        let mut line = |status: &str, done: Option<u64>| {
            told.line(&StartNotice {
                image: "debian".to_owned(),
                layer: Some("a1".to_owned()),
                status: status.to_owned(),
                done_bytes: done,
                total_bytes: done.map(|_| 100),
            })
        };
        assert_eq!(line("Pulling", None).as_deref(), Some("debian: a1 Pulling"));
        assert_eq!(line("Pulling", None), None);
        assert_eq!(line("Downloading", Some(10)).as_deref(), Some("debian: a1 Downloading 10 %"));
        assert_eq!(line("Downloading", Some(20)), None);
        assert_eq!(line("Downloading", Some(60)).as_deref(), Some("debian: a1 Downloading 60 %"));
    }
}
