//! The life of a sandbox: made, given time, paused, resumed, ended; and the one task that watches the clock.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::http::StatusCode;
use jiff::Timestamp;
use sandcrate_e2b_wire::control::{LogLevel, OnTimeout, SandboxState};
use sandcrate_protocol::{BoxSpec, ErrorKind};
use sandcrate_runtime::{Runtime, SessionOptions, SessionState};
use tokio::time::Instant;

use super::TEMPLATE_LABEL;
use super::control::Keys;
use super::error::Refused;
use super::sandbox::{Facts, Sandbox, Sandboxes, Span};
use super::store::{Paused, Store};
use super::target::is_id;
use crate::App;

/// What the E2B face knows. One per server.
#[derive(Debug)]
pub(crate) struct Face {
    pub(crate) sandboxes: Sandboxes,
    pub(crate) keys: Keys,
    store: Store,
}

/// What became of a `connect`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    Running,
    Resumed,
}

impl Face {
    pub(crate) fn new(runtime: &Runtime) -> Self {
        Self {
            sandboxes: Sandboxes::default(),
            keys: Keys::default(),
            store: Store::new(&runtime.config().state_dir),
        }
    }

    /// The sandbox of this id, while the session it is has not been ended by another face.
    pub(crate) fn find(&self, runtime: &Runtime, id: &str) -> Option<Arc<Sandbox>> {
        let sandbox = self.sandboxes.get(id)?;
        match runtime.session(id) {
            Ok(_) => Some(sandbox),
            Err(_) => {
                self.sandboxes.remove(id);
                None
            }
        }
    }

    pub(crate) fn running(&self) -> Vec<Arc<Sandbox>> {
        let mut sandboxes = self.sandboxes.all();
        sandboxes.retain(|sandbox| sandbox.is_running());
        sandboxes
    }

    pub(crate) fn expect(&self, runtime: &Runtime, id: &str) -> Result<Arc<Sandbox>, Refused> {
        self.find(runtime, id).ok_or_else(|| Refused::no_sandbox(id))
    }

    pub(crate) async fn create(
        &self,
        runtime: &Runtime,
        facts: Facts,
        spec: &BoxSpec,
        options: SessionOptions,
        time: Duration,
    ) -> Result<Arc<Sandbox>, Refused> {
        runtime.create_session(spec, options).await?;
        let sandbox = Sandbox::new(facts, Span::running(time));
        sandbox.journal.note(
            LogLevel::Info,
            "sandbox created",
            &[("template", sandbox.facts.template.clone())],
        );
        self.sandboxes.insert(Arc::clone(&sandbox));
        Ok(sandbox)
    }

    /// From now on it has so much time.
    pub(crate) async fn set_time(&self, sandbox: &Sandbox, time: Duration) -> Result<(), Refused> {
        let _turn = sandbox.turn.lock().await;
        if !sandbox.is_running() {
            return Err(Refused::no_sandbox(sandbox.id()));
        }
        self.sandboxes.set_span(sandbox, Span::running(time));
        Ok(())
    }

    /// At least so much time: a `connect` never takes any away.
    pub(crate) async fn connect(
        &self,
        runtime: &Runtime,
        sandbox: &Sandbox,
        time: Duration,
    ) -> Result<Found, Refused> {
        let _turn = sandbox.turn.lock().await;
        let had = sandbox.span();
        let span = Span::running(time);
        if had.state == SandboxState::Running {
            if span.deadline > had.deadline {
                self.sandboxes.set_span(sandbox, span);
            }
            return Ok(Found::Running);
        }
        runtime.wake_session(sandbox.id()).await.map_err(|error| match error.kind() {
            ErrorKind::SessionNotFound => Refused::no_sandbox(sandbox.id()),
            _ => error.into(),
        })?;
        self.forget_pause(sandbox.id()).await;
        self.sandboxes.set_span(sandbox, Span::running(time));
        sandbox.journal.note(LogLevel::Info, "sandbox resumed", &[]);
        Ok(Found::Resumed)
    }

    /// Ends what runs in it, and keeps its files.
    pub(crate) async fn pause(&self, runtime: &Runtime, sandbox: &Sandbox) -> Result<(), Refused> {
        let _turn = sandbox.turn.lock().await;
        if !sandbox.is_running() {
            let message = format!("sandbox {} is paused already", sandbox.id());
            return Err(Refused::new(StatusCode::CONFLICT, message));
        }
        self.put_to_sleep(runtime, sandbox).await
    }

    async fn put_to_sleep(&self, runtime: &Runtime, sandbox: &Sandbox) -> Result<(), Refused> {
        let before = sandbox.span();
        let since = Timestamp::now();
        // Before the box goes: whoever asks meanwhile must not be the one who wakes it.
        self.sandboxes.set_span(sandbox, Span::paused(since));
        sandbox.watchers.clear();
        if let Err(error) = runtime.sleep_session(sandbox.id()).await {
            self.sandboxes.set_span(sandbox, before);
            return Err(error.into());
        }
        sandbox.processes.clear();
        let (internet, network) = sandbox.network();
        let facts = Facts { internet, network, ..sandbox.facts.clone() };
        let (store, id) = (self.store.clone(), sandbox.id().to_owned());
        let saved = tokio::task::spawn_blocking(move || store.save(&Paused { facts, since })).await;
        if let Err(error) = saved.map_err(io::Error::other).and_then(|done| done) {
            tracing::warn!(session.id = id, %error, "a paused sandbox will not survive this server");
        }
        sandbox.journal.note(LogLevel::Info, "sandbox paused: its files are kept, its memory is not", &[]);
        Ok(())
    }

    /// For good, with its files.
    pub(crate) async fn kill(&self, runtime: &Runtime, sandbox: &Sandbox) -> Result<(), Refused> {
        let _turn = sandbox.turn.lock().await;
        self.end(runtime, sandbox).await
    }

    async fn end(&self, runtime: &Runtime, sandbox: &Sandbox) -> Result<(), Refused> {
        if self.sandboxes.remove(sandbox.id()).is_none() {
            return Err(Refused::no_sandbox(sandbox.id()));
        }
        sandbox.watchers.clear();
        self.forget_pause(sandbox.id()).await;
        match runtime.delete_session(sandbox.id()).await {
            Err(error) if error.kind() == ErrorKind::SessionNotFound => Ok(()),
            other => Ok(other?),
        }
    }

    async fn forget_pause(&self, id: &str) {
        let (store, name) = (self.store.clone(), id.to_owned());
        let removed = tokio::task::spawn_blocking(move || store.remove(&name)).await;
        if let Ok(Err(error)) = removed {
            tracing::warn!(session.id = id, %error, "the record of a pause cannot be removed");
        }
    }

    /// What a former server left: paused sandboxes come back, of others the files go.
    async fn restore(&self, runtime: &Runtime) {
        let store = self.store.clone();
        let paused = tokio::task::spawn_blocking(move || store.load()).await.unwrap_or_default();
        let mut known = BTreeSet::new();
        for Paused { facts, since } in paused {
            if runtime.session(&facts.id).is_ok() {
                known.insert(facts.id.clone());
                self.sandboxes.insert(Sandbox::new(facts, Span::paused(since)));
            } else {
                self.forget_pause(&facts.id).await;
            }
        }
        for session in runtime.sessions() {
            let id = &session.info.session_id;
            let left = is_id(id)
                && session.labels.contains_key(TEMPLATE_LABEL)
                && session.state == SessionState::Dormant
                && self.sandboxes.get(id).is_none();
            if left && !known.contains(id) {
                // One that is gone in the meantime needs no end.
                let _ = runtime.delete_session(id).await;
            }
        }
    }

    /// Ends or pauses one whose time is over, unless it was given more meanwhile.
    async fn expire(&self, runtime: &Runtime, sandbox: &Sandbox) {
        let _turn = sandbox.turn.lock().await;
        let span = sandbox.span();
        if span.state != SandboxState::Running || span.deadline > Instant::now() {
            sandbox.ending.store(false, Ordering::Release);
            self.sandboxes.changed.notify_one();
            return;
        }
        tracing::debug!(session.id = sandbox.id(), "sandbox expired");
        let done = match sandbox.facts.on_timeout {
            OnTimeout::Kill => self.end(runtime, sandbox).await,
            OnTimeout::Pause => self.put_to_sleep(runtime, sandbox).await,
        };
        if let Err(error) = done {
            tracing::warn!(session.id = sandbox.id(), ?error, "a sandbox whose time is over did not end");
            // Not at once again, or this would spin.
            self.sandboxes.set_span(sandbox, Span { deadline: Instant::now() + RETRY, ..sandbox.span() });
        }
        sandbox.ending.store(false, Ordering::Release);
        self.sandboxes.changed.notify_one();
    }
}

/// After an end that failed.
const RETRY: Duration = Duration::from_secs(5);

/// Ends sandboxes when their time is over. One task for all of them; each end is a task of the server's, so that a
/// slow one does not keep the others alive.
pub(crate) async fn keep_time(app: App) {
    let face = Arc::clone(&app.e2b);
    face.restore(&app.runtime).await;
    loop {
        let due = async {
            match face.sandboxes.next_deadline() {
                Some(deadline) => tokio::time::sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = app.shutdown.cancelled() => return,
            () = face.sandboxes.changed.notified() => continue,
            () = due => {}
        }
        let now = Instant::now();
        for sandbox in face.sandboxes.all() {
            if sandbox.due().is_some_and(|due| due <= now) {
                sandbox.ending.store(true, Ordering::Release);
                let (face, runtime) = (Arc::clone(&face), app.runtime.clone());
                app.tasks.spawn(async move { face.expire(&runtime, &sandbox).await });
            }
        }
    }
}
