//! What a start that takes long has to tell meanwhile.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// How far the image of a box is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartNotice {
    pub image: String,
    /// The part of it that this is about, where the backend says so.
    pub layer: Option<String>,
    /// In the backend's own words.
    pub status: String,
    pub done_bytes: Option<u64>,
    pub total_bytes: Option<u64>,
}

/// Whoever listens to a start. It must not block.
#[derive(Clone, Default)]
pub struct StartNotices(Option<Arc<dyn Fn(StartNotice) + Send + Sync>>);

impl StartNotices {
    pub fn new(listener: impl Fn(StartNotice) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(listener)))
    }

    pub fn tell(&self, notice: &StartNotice) {
        if let Some(listener) = &self.0 {
            listener(notice.clone());
        }
    }
}

impl fmt::Debug for StartNotices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "StartNotices(heard)" } else { "StartNotices" })
    }
}

/// Who listens is no part of what is asked for.
impl PartialEq for StartNotices {
    fn eq(&self, _other: &Self) -> bool {
        true
    }
}

impl Eq for StartNotices {}
