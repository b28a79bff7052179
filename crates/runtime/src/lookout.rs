//! Sees backends go and come back.
//!
//! One task per runtime. Sessions notice the end of their own boxes by themselves; this is for status, readiness,
//! metrics and the log, and for a choice that has to be made anew.

use std::sync::Weak;
use std::time::Duration;

use crate::runtime::Inner;

/// A probe is cheap: every backend promises it.
const LOOK_EVERY: Duration = Duration::from_secs(2);

pub(crate) async fn run(runtime: Weak<Inner>) {
    let mut timer = tokio::time::interval(LOOK_EVERY);
    timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        timer.tick().await;
        let Some(runtime) = runtime.upgrade() else { return };
        runtime.look_at_backends().await;
    }
}
