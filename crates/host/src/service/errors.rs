//! The last failures, for whoever asks how the Box fares.

use std::collections::VecDeque;
use std::sync::PoisonError;

use sandcrate_protocol::Timestamp;
use serde::Serialize;

use super::Service;
use crate::session_id::shown;
use crate::{HostError, Query};

const KEPT: usize = 50;

/// One failure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RecordedError {
    /// ISO 8601 in UTC, with microseconds.
    pub timestamp: String,
    #[serde(rename = "type")]
    pub class: &'static str,
    pub message: String,
    pub query_id: String,
}

#[derive(Debug, Default)]
pub(super) struct ErrorRing(VecDeque<RecordedError>);

impl ErrorRing {
    fn push(&mut self, error: RecordedError) {
        if self.0.len() == KEPT {
            self.0.pop_front();
        }
        self.0.push_back(error);
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

impl Service {
    /// The last 50 failures, oldest first.
    pub fn recent_errors(&self) -> Vec<RecordedError> {
        let errors = self.inner.errors.lock().unwrap_or_else(PoisonError::into_inner);
        errors.0.iter().cloned().collect()
    }

    pub(super) fn record(&self, error: HostError, query: &Query) -> HostError {
        let recorded = RecordedError {
            timestamp: Timestamp::now().0.strftime("%Y-%m-%dT%H:%M:%S.%6f+00:00").to_string(),
            class: error.class(),
            message: error.message.clone(),
            query_id: query_id(query),
        };
        self.inner.errors.lock().unwrap_or_else(PoisonError::into_inner).push(recorded);
        error
    }
}

pub(super) fn query_id(query: &Query) -> String {
    query.query_id.as_ref().filter(|id| !id.is_null()).map(shown).unwrap_or_default()
}
