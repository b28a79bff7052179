//! The making of a session as server-sent events: `progress`, then `session` or `error`.
//!
//! A box is made in milliseconds, unless its image has to come from far away: then a client may want to see it come.

use std::convert::Infallible;

use axum::response::Response;
use axum::response::sse::Event;
use futures_util::stream;
use sandcrate_protocol::BoxSpec;
use sandcrate_runtime::{SessionOptions, SessionView, StartNotice};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use super::error::ApiError;
use super::events::answer_with;
use super::sessions::SessionBody;
use crate::App;

type Creating = std::pin::Pin<Box<dyn Future<Output = Result<SessionView, ApiError>> + Send>>;

struct Start {
    app: App,
    id: String,
    notices: Receiver<(String, StartNotice)>,
    /// Gone when it has ended.
    creating: Option<Creating>,
}

impl Start {
    async fn next(mut self) -> Option<(Result<Event, Infallible>, Self)> {
        let mut creating = self.creating.take()?;
        loop {
            tokio::select! {
                // What was told before the end comes before it.
                biased;
                notice = self.notices.recv() => match notice {
                    Ok((id, notice)) if id == self.id => {
                        self.creating = Some(creating);
                        return Some((Ok(event("progress", &notice)), self));
                    }
                    // Of another session, or too many to keep.
                    Ok(_) | Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return None,
                },
                made = &mut creating => {
                    let last = match made {
                        Ok(view) => event("session", &SessionBody::new(&self.app, view).await),
                        Err(error) => Event::default().event("error").data(error.to_value().to_string()),
                    };
                    return Some((Ok(last), self));
                }
            }
        }
    }
}

fn event(name: &str, data: &impl serde::Serialize) -> Event {
    // Our own types cannot fail to be written.
    Event::default().event(name).data(serde_json::to_string(data).unwrap_or_default())
}

/// Makes the session and tells of it; dropped by a client that leaves, as a plain request is.
pub(crate) fn answer(app: &App, spec: BoxSpec, options: SessionOptions) -> Response {
    let (runtime, id) = (app.runtime.clone(), spec.session_id.clone());
    // Before the start, or its first words would be missed.
    let notices = runtime.start_notices();
    let creating: Creating = Box::pin(async move { Ok(runtime.create_session(&spec, options).await?) });
    let start = Start { app: app.clone(), id, notices, creating: Some(creating) };
    answer_with(stream::unfold(start, Start::next), app.abort.clone())
}
