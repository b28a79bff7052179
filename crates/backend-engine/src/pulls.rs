//! Pulls of images: one at a time for each, whoever else wants it waits for that and hears of it too.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use sandcrate_backend::{BackendError, StartNotice, StartNotices};
use sandcrate_driver::lock;

use crate::engine::Engine;

#[derive(Debug, Default)]
pub(crate) struct Pulls {
    under_way: Mutex<HashMap<String, Arc<Pull>>>,
}

#[derive(Debug, Default)]
struct Pull {
    turn: tokio::sync::Mutex<()>,
    /// Whether it came to an end, good or bad; one that was given up did not.
    finished: AtomicBool,
    listeners: Mutex<Vec<StartNotices>>,
}

/// One that wants a pull; the last one of an image forgets it.
struct Wanted<'a> {
    pulls: &'a Pulls,
    image: &'a str,
    pull: Arc<Pull>,
}

impl Drop for Wanted<'_> {
    fn drop(&mut self) {
        let mut under_way = lock(&self.pulls.under_way);
        let is_ours = under_way.get(self.image).is_some_and(|pull| Arc::ptr_eq(pull, &self.pull));
        // The table's own, and ours.
        if is_ours && (self.pull.finished.load(Ordering::Acquire) || Arc::strong_count(&self.pull) <= 2) {
            under_way.remove(self.image);
        }
    }
}

impl Pulls {
    /// Pulls an image unless somebody just did. Given up, it leaves the pull to the next that waits for it.
    pub(crate) async fn pull(
        &self,
        engine: &Engine,
        image: &str,
        notices: &StartNotices,
    ) -> Result<(), BackendError> {
        let wanted = {
            let pull = Arc::clone(lock(&self.under_way).entry(image.to_owned()).or_default());
            Wanted { pulls: self, image, pull }
        };
        let pull = &wanted.pull;
        lock(&pull.listeners).push(notices.clone());
        let _turn = pull.turn.lock().await;
        if pull.finished.load(Ordering::Acquire) {
            // Whoever pulled tells of its failure; our own create tells us.
            return Ok(());
        }
        let pulled = engine.pull(image, |notice| pull.tell(&notice)).await;
        pull.finished.store(true, Ordering::Release);
        pulled
    }
}

impl Pull {
    fn tell(&self, notice: &StartNotice) {
        // Told outside the lock, which whoever comes needs.
        let listeners = lock(&self.listeners).clone();
        for listener in listeners {
            listener.tell(notice);
        }
    }
}
