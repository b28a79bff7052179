//! The events of a program, taken from a stream as they arrive.

use std::time::Duration;

use reqwest::Response;
use sandcrate_e2b_wire::connect::{Decoder, Envelope};
use sandcrate_e2b_wire::process::{EventResponse, ProcessEvent};

use crate::http::EndpointError;

/// A stream without any sign of life for so long is broken: three are due in that time.
const SILENCE: Duration = Duration::from_secs(65);
/// Of one message: output comes in far smaller pieces.
const MESSAGE_BYTES: usize = 8 << 20;

#[derive(Debug)]
pub(crate) struct EventStream {
    what: &'static str,
    response: Response,
    decoder: Decoder,
}

impl EventStream {
    pub(crate) fn new(what: &'static str, response: Response) -> Self {
        Self { what, response, decoder: Decoder::new(MESSAGE_BYTES) }
    }

    /// The next event; `None` at the orderly end of the stream. Safe to drop and call again.
    pub(crate) async fn next(&mut self) -> Result<Option<ProcessEvent>, EndpointError> {
        let what = self.what;
        let malformed = |problem: String| EndpointError::Malformed { what, problem };
        loop {
            match self.decoder.next_envelope().map_err(|error| malformed(error.to_string()))? {
                Some(Envelope::Message(json)) => {
                    let message: EventResponse =
                        serde_json::from_slice(&json).map_err(|error| malformed(error.to_string()))?;
                    return Ok(Some(message.event));
                }
                Some(Envelope::End(end)) => {
                    return end.error.map_or(Ok(None), |error| Err(EndpointError::called(what, error)));
                }
                None => {}
            }
            let piece = tokio::time::timeout(SILENCE, self.response.chunk()).await;
            let piece = piece
                .map_err(|_| EndpointError::TimedOut { what, limit: SILENCE })?
                .map_err(|error| EndpointError::transport(what, SILENCE, error))?;
            match piece {
                Some(piece) => self.decoder.push(&piece),
                // A stream says when it is at its end.
                None => {
                    let why = "the stream was cut".to_owned();
                    return Err(EndpointError::Unreachable { what, why });
                }
            }
        }
    }
}
