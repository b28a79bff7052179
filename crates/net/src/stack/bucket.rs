//! How fast a box may open connections and move bytes.

use std::time::Instant;

/// A bucket that fills at a steady rate.
#[derive(Debug)]
pub(super) struct Bucket {
    per_second: u64,
    level: u64,
    filled: Instant,
}

impl Bucket {
    /// Holds one second's worth, full at first.
    pub(super) fn new(per_second: u64, now: Instant) -> Self {
        Self { per_second, level: per_second, filled: now }
    }

    pub(super) fn level(&mut self, now: Instant) -> u64 {
        let passed = now.saturating_duration_since(self.filled).as_micros().min(1_000_000) as u64;
        let more = self.per_second.saturating_mul(passed) / 1_000_000;
        if more > 0 {
            self.level = self.level.saturating_add(more).min(self.per_second);
            self.filled = now;
        }
        self.level
    }

    pub(super) fn take(&mut self, amount: u64) {
        self.level = self.level.saturating_sub(amount);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_bucket_fills_at_its_rate_and_no_higher() {
        let start = Instant::now();
        let mut bucket = Bucket::new(100, start);
        assert_eq!(bucket.level(start), 100);
        bucket.take(100);
        assert_eq!(bucket.level(start), 0);
        assert_eq!(bucket.level(start + Duration::from_millis(500)), 50);
        assert_eq!(bucket.level(start + Duration::from_secs(100)), 100);
    }
}
