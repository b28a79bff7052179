//! One piece of code in its context: handed to the kernel, its events streamed as lines of JSON, and interrupted when
//! the client goes away.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::{BufMut, Bytes, BytesMut};
use futures_util::stream;
use jiff::Timestamp;
use sandcrate_protocol::ErrorKind;
use sandcrate_runtime::RelayEvent;
use serde_json::json;
use tokio::sync::{OwnedMutexGuard, mpsc};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep_until, timeout};

use super::ExecuteBody;
use super::contexts::{Context, Language};
use super::kernel::{Kernel, Said, runs, said};
use crate::App;
use crate::e2b::error::Refused;
use crate::e2b::sandbox::Sandbox;

/// Lines on their way to a client. Each may be as large as a result.
const QUEUE: usize = 8;
/// From an interrupt to the end of the process, for code that does not heed it.
const GRACE: Duration = Duration::from_secs(5);
/// Silence in between may be taken for a dead connection.
const KEEPALIVE: Duration = Duration::from_secs(15);

pub(super) async fn execute(
    app: &App,
    sandbox: &Arc<Sandbox>,
    body: ExecuteBody,
) -> Result<Response, Refused> {
    let context = match (&body.context_id, &body.language) {
        (Some(_), Some(_)) => return Err(Refused::invalid("`context_id` and `language` exclude each other")),
        (Some(id), None) => sandbox.contexts.get(id).ok_or_else(|| Context::unknown(id))?,
        (None, language) => sandbox.contexts.default_of(Language::named(language.as_deref())?)?,
    };
    let mut kernel = Arc::clone(&context.kernel).lock_owned().await;
    if !runs(app, sandbox, &context) {
        *kernel = None;
    }
    let id = match &mut *kernel {
        Some(kernel) => kernel.execute(&body).await?,
        None => kernel.insert(Kernel::start(app, sandbox, &context).await?).execute(&body).await?,
    };
    let (sender, receiver) = mpsc::channel(QUEUE);
    let execution = Execution {
        app: app.clone(),
        sandbox: Arc::clone(sandbox),
        context,
        kernel,
        id,
        client: Some(sender),
    };
    app.tasks.spawn(execution.run());
    let lines = stream::unfold(receiver, |mut receiver| async move {
        let line: Option<io::Result<Bytes>> = receiver.recv().await;
        line.map(|line| (line, receiver))
    });
    Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(lines)).into_response())
}

/// Owns the context's turn until the code has ended, whether or not the client waits for it.
struct Execution {
    app: App,
    sandbox: Arc<Sandbox>,
    context: Arc<Context>,
    kernel: OwnedMutexGuard<Option<Kernel>>,
    id: String,
    /// `None`: it went away, or reads too slowly.
    client: Option<mpsc::Sender<io::Result<Bytes>>>,
}

impl Execution {
    async fn run(mut self) {
        let mut signs_of_life = interval_at(Instant::now() + KEEPALIVE, KEEPALIVE);
        signs_of_life.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut deadline = None;
        loop {
            if self.client.is_none() && deadline.is_none() {
                self.interrupt().await;
                deadline = Some(Instant::now() + GRACE);
            }
            let Some(kernel) = self.kernel.as_mut() else { return };
            let gone = async {
                match &self.client {
                    Some(client) => client.closed().await,
                    None => std::future::pending().await,
                }
            };
            let event = tokio::select! {
                // Loses nothing when something else comes first.
                event = kernel.reader.next() => event,
                () = gone => {
                    self.client = None;
                    continue;
                }
                () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                    return self.end_process().await;
                }
                () = self.app.abort.cancelled() => return,
                _ = signs_of_life.tick() => {
                    self.tell(line(&json!({"type": "keepalive"}))).await;
                    continue;
                }
            };
            match event {
                RelayEvent::Line(text) => match said(&text) {
                    Said::End(id) if id == self.id => return,
                    Said::Event => self.tell(ended(&text)).await,
                    // Of an execution that was given up, or forged by the code.
                    Said::End(_) | Said::Ready | Said::Nonsense => {}
                },
                RelayEvent::Piece(piece) => self.lost(piece.len() as u64).await,
                RelayEvent::Lost { bytes } => self.lost(bytes).await,
                RelayEvent::Exited { exit_code } => return self.died(exit_code).await,
            }
        }
    }

    /// A client that takes nothing for too long is as good as gone.
    async fn tell(&mut self, line: Bytes) {
        self.send(Ok(line)).await;
    }

    async fn send(&mut self, line: io::Result<Bytes>) {
        if let Some(client) = &self.client
            && !matches!(timeout(self.app.config.limits.write_timeout, client.send(line)).await, Ok(Ok(())))
        {
            self.client = None;
        }
    }

    async fn lost(&mut self, bytes: u64) {
        let text = format!("{bytes} bytes of output are lost: they were not read in time, or are one line\n");
        let timestamp = i64::try_from(Timestamp::now().as_nanosecond()).unwrap_or(0);
        self.tell(line(&json!({"type": "stderr", "text": text, "timestamp": timestamp}))).await;
    }

    async fn died(&mut self, exit_code: Option<i32>) {
        *self.kernel = None;
        let sandbox = self.app.e2b.find(&self.app.runtime, self.sandbox.id());
        if !sandbox.is_some_and(|sandbox| sandbox.is_running()) {
            // Broken off: an end in order would say that the code has ended.
            return self.send(Err(io::Error::other("the sandbox is gone"))).await;
        }
        let how = exit_code.map_or_else(|| "was stopped".to_owned(), |code| format!("ended with {code}"));
        let value = format!(
            "the interpreter of this context {how}; what it knew is lost, the next code starts a new one"
        );
        self.tell(line(&json!({"type": "error", "name": "ContextEnded", "value": value, "traceback": ""})))
            .await;
    }

    async fn interrupt(&mut self) {
        let Some(kernel) = self.kernel.as_mut() else { return };
        if let Ok(Err(error)) = timeout(GRACE, kernel.interrupt(&self.id)).await {
            tracing::debug!(session.id = self.sandbox.id(), %error, "code not interrupted");
        }
    }

    /// For code that nothing else ends.
    async fn end_process(&mut self) {
        *self.kernel = None;
        let stopped = self.app.runtime.stop_process(self.sandbox.id(), &self.context.process_id()).await;
        if let Err(error) = stopped
            && error.kind() != ErrorKind::ProcessNotFound
        {
            tracing::debug!(session.id = self.sandbox.id(), %error, "interpreter not stopped");
        }
    }
}

fn line(event: &serde_json::Value) -> Bytes {
    ended(event.to_string().as_bytes())
}

fn ended(text: &[u8]) -> Bytes {
    let mut line = BytesMut::with_capacity(text.len() + 1);
    line.put_slice(text);
    line.put_u8(b'\n');
    line.freeze()
}
