//! What a box uses now, as far as its own `/proc` and `du` tell: the figures of the SDKs' `get_metrics`.
//!
//! Memory is the sum of what its processes hold, so what they share counts for each of them.

use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use sandcrate_backend::ExecRequest;
use sandcrate_runtime::{Runtime, RuntimeError};
use tokio::time::Instant;

use super::HOME;
use super::sandbox::{Sandbox, locked};

/// A box whose files take longer to count has no figures.
const PATIENCE: Duration = Duration::from_secs(5);
/// Linux tells times of processes in these (`USER_HZ`), whatever its own clock is.
const TICKS_PER_SECOND: f64 = 100.0;
const PAGE_BYTES: u64 = 4096;

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Used {
    /// Of one CPU.
    pub(crate) cpu_percent: f64,
    pub(crate) memory_bytes: u64,
    pub(crate) disk_bytes: u64,
}

/// The CPU time at the last look, to tell what was used since.
#[derive(Debug, Default)]
pub(crate) struct LastLook(Mutex<Option<(Instant, u64)>>);

pub(crate) async fn measure(runtime: &Runtime, sandbox: &Sandbox) -> Result<Used, RuntimeError> {
    let script = format!("cat /proc/[0-9]*/stat 2>/dev/null; echo; du -sk {HOME} 2>/dev/null; true");
    let request = ExecRequest::shell(script).cwd("/").timeout(PATIENCE);
    let outcome = runtime.exec_in(sandbox.id(), request, Bytes::new()).await?;
    let (ticks, used) = read(&String::from_utf8_lossy(&outcome.collected.stdout));
    let now = Instant::now();
    let before = locked(&sandbox.last_look.0).replace((now, ticks));
    let cpu_percent = before.map_or(0.0, |(then, had)| {
        let seconds = now.duration_since(then).as_secs_f64().max(0.001);
        // Fewer than before when a program has ended meanwhile.
        ticks.saturating_sub(had) as f64 / TICKS_PER_SECOND / seconds * 100.0
    });
    Ok(Used { cpu_percent, ..used })
}

/// Ticks of all processes, and their memory; then the kibibytes of the home.
fn read(text: &str) -> (u64, Used) {
    let (mut ticks, mut used) = (0, Used::default());
    for line in text.lines() {
        // A program's name may hold anything, and ends with the last parenthesis.
        match line.rsplit_once(") ") {
            Some((_, rest)) => {
                let field =
                    |index: usize| rest.split(' ').nth(index).and_then(|text| text.parse::<u64>().ok());
                ticks += field(11).unwrap_or(0) + field(12).unwrap_or(0);
                used.memory_bytes += field(21).unwrap_or(0) * PAGE_BYTES;
            }
            None => {
                let kibibytes = line.split_whitespace().next().and_then(|text| text.parse::<u64>().ok());
                used.disk_bytes = kibibytes.map_or(used.disk_bytes, |kibibytes| kibibytes << 10);
            }
        }
    }
    (ticks, used)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_the_sums_over_all_processes() {
        let stat = |name: &str| {
            format!(
                "1 ({name}) S 0 1 1 0 -1 4194560 1 2 3 4 30 20 0 0 20 0 1 0 5 1000 7 18446744073709551615 1 1"
            )
        };
        let (ticks, used) = read(&format!("{}\n{}\n\n12\t/home/user\n", stat("sh"), stat("a) b (c")));
        assert_eq!((ticks, used.memory_bytes, used.disk_bytes), (100, 14 * PAGE_BYTES, 12 << 10));
    }
}
