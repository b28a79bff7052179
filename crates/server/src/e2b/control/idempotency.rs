//! `Idempotency-Key`: a request that is sent again, because its answer was lost, makes no second sandbox.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::http::{HeaderMap, StatusCode};
use sandcrate_e2b_wire::control::{NewSandbox, Sandbox as Handle};
use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::super::error::Refused;
use super::super::sandbox::locked;

const HEADER: &str = "idempotency-key";
/// E2B's own bound.
const MAX_KEY_CHARS: usize = 255;
/// A client that tries again does so within minutes.
const KEPT: Duration = Duration::from_secs(3600);
const MAX_KEYS: usize = 1024;

#[derive(Debug)]
struct Asked {
    wanted: NewSandbox,
    since: Instant,
    made: OnceCell<Handle>,
}

/// What was asked for lately, by key.
#[derive(Debug, Default)]
pub(crate) struct Keys(Mutex<HashMap<String, Arc<Asked>>>);

impl Keys {
    /// Makes a sandbox, or gives back the one that the same request made. Whoever comes while it is made waits for
    /// it; one that could not be made may be tried again.
    pub(super) async fn once<F>(
        &self,
        headers: &HeaderMap,
        wanted: &NewSandbox,
        make: impl FnOnce() -> F,
    ) -> Result<Handle, Refused>
    where
        F: Future<Output = Result<Handle, Refused>>,
    {
        let Some(key) = headers.get(HEADER) else { return make().await };
        let key = key.to_str().ok().filter(|key| (1..=MAX_KEY_CHARS).contains(&key.len()));
        let key = key.ok_or_else(|| {
            Refused::invalid(format!("Idempotency-Key has 1 to {MAX_KEY_CHARS} characters"))
        })?;
        let asked = self.asked(key, wanted)?;
        if asked.wanted != *wanted {
            let message = "this Idempotency-Key was used for another request: choose a new one";
            return Err(Refused::new(StatusCode::UNPROCESSABLE_ENTITY, message));
        }
        asked.made.get_or_try_init(make).await.cloned()
    }

    fn asked(&self, key: &str, wanted: &NewSandbox) -> Result<Arc<Asked>, Refused> {
        let mut keys = locked(&self.0);
        keys.retain(|_, asked| asked.since.elapsed() < KEPT);
        if let Some(asked) = keys.get(key) {
            return Ok(Arc::clone(asked));
        }
        if keys.len() >= MAX_KEYS {
            let message =
                format!("more than {MAX_KEYS} idempotency keys in an hour: make sandboxes without, or wait");
            return Err(Refused::new(StatusCode::TOO_MANY_REQUESTS, message));
        }
        let asked = Asked { wanted: wanted.clone(), since: Instant::now(), made: OnceCell::new() };
        Ok(Arc::clone(keys.entry(key.to_owned()).or_insert(Arc::new(asked))))
    }
}
