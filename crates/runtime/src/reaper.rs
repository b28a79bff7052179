//! Ends sessions that nobody has used for longer than their time to live, and forgets ended processes of workspaces.
//!
//! One task per runtime. Sessions with a command, a process, a stream or somebody waiting are not idle, whatever
//! their clock says; persistent ones stay.

use std::sync::Weak;
use std::time::Duration;

use crate::runtime::Inner;

/// Looks this many times per time to live.
const LOOKS: u32 = 10;
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(5);

pub(crate) async fn run(runtime: Weak<Inner>, ttl: Duration) {
    let mut timer = tokio::time::interval((ttl / LOOKS).clamp(SHORTEST, LONGEST));
    timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        timer.tick().await;
        let Some(runtime) = runtime.upgrade() else { return };
        for session in runtime.table.all() {
            session.streams.forget_old(runtime.config.limits.commands);
            let ttl = session.options.ttl.unwrap_or(runtime.config.session_ttl);
            if session.spec.persistent || session.clock.idle() < ttl || !session.is_idle() {
                continue;
            }
            tracing::debug!(session.id = session.id.as_str(), "session expired");
            runtime.metrics.session_reaped();
            // Not awaited: a backend that stops one slowly must not keep the others waiting.
            runtime.close_in_background(session);
        }
        runtime.forget_completed();
        runtime.refresh_gauges();
    }
}
