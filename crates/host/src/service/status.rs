//! How the Box fares, in the one shape that all its readers know.

use std::sync::PoisonError;

use serde_json::{Map, Value, json};

use super::Service;

impl Service {
    /// Disabled, not connected, connected to a runtime without a backend, or well: `available` and
    /// `connector_error` tell, and what the runtime says of itself is there when it answers.
    pub async fn status(&self) -> Value {
        let known = self.inner.availability.borrow().clone();
        if !known.available {
            return self.status_with(Map::new(), Some(known.reason));
        }
        let runtime = match self.inner.client.status().await {
            Ok(Value::Object(runtime)) => runtime,
            Ok(_) => Map::new(),
            Err(error) => return self.status_with(Map::new(), Some(error.message)),
        };
        let backend = runtime.get("backend").cloned().unwrap_or_default();
        if backend["available"] == true {
            return self.status_with(runtime, None);
        }
        let why = match (runtime.get("connector_error"), backend["name"].as_str()) {
            (Some(Value::String(told)), _) => told.clone(),
            (_, Some(name)) => format!("Configured sandbox backend \"{name}\" is unavailable"),
            (_, None) => "No supported sandbox backend (Docker / nsjail / E2B) is available".to_owned(),
        };
        self.status_with(runtime, Some(why))
    }

    /// What the host knows wins over what the runtime says.
    fn status_with(&self, mut status: Map<String, Value>, error: Option<String>) -> Value {
        let errors = self.inner.errors.lock().unwrap_or_else(PoisonError::into_inner).len();
        status.insert("available".to_owned(), error.is_none().into());
        status.insert("enabled".to_owned(), self.is_enabled().into());
        status.insert("profile".to_owned(), json!(self.inner.config.profile.name));
        status.insert("recent_error_count".to_owned(), errors.into());
        match error {
            Some(error) => status.insert("connector_error".to_owned(), error.into()),
            None => status.remove("connector_error"),
        };
        Value::Object(status)
    }

    /// The sessions of the runtime; none when it does not answer.
    pub async fn sessions(&self) -> Vec<Value> {
        if !self.is_available() {
            return Vec::new();
        }
        self.inner.client.sessions().await.unwrap_or_default()
    }
}
