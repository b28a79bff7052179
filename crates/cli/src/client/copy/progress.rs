//! How far a copy is, on one line of a terminal.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use crate::units::show_size;

/// Short copies need no progress, and faster changes nobody reads.
const EVERY: Duration = Duration::from_millis(200);
const BAR_CELLS: u64 = 24;

#[derive(Debug)]
pub(super) struct Progress {
    enabled: bool,
    name: String,
    total: Option<u64>,
    done: u64,
    began: Instant,
    drawn: Instant,
    on_screen: bool,
}

impl Progress {
    pub(super) fn new(quiet: bool) -> Self {
        let now = Instant::now();
        let enabled = !quiet && io::stderr().is_terminal();
        Self { enabled, name: String::new(), total: None, done: 0, began: now, drawn: now, on_screen: false }
    }

    /// A file begins; its length where that is known.
    pub(super) fn file(&mut self, name: &str, total: Option<u64>) {
        self.name = name.chars().map(|c| if c.is_control() { '?' } else { c }).take(40).collect();
        (self.total, self.done, self.began) = (total, 0, Instant::now());
    }

    pub(super) fn add(&mut self, bytes: usize) {
        self.done += bytes as u64;
        if self.enabled && self.drawn.elapsed() >= EVERY {
            self.drawn = Instant::now();
            self.on_screen = true;
            // Nobody is left to tell when stderr itself is gone.
            let _ = write!(
                io::stderr().lock(),
                "\r\x1b[K{}",
                line(&self.name, self.done, self.total, self.began.elapsed())
            );
        }
    }

    /// Takes the line away.
    pub(super) fn clear(&mut self) {
        if std::mem::take(&mut self.on_screen) {
            let _ = write!(io::stderr().lock(), "\r\x1b[K");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

fn line(name: &str, done: u64, total: Option<u64>, time: Duration) -> String {
    let rate = show_size((done as f64 / time.as_secs_f64().max(0.001)) as u64);
    match total.filter(|total| *total > 0) {
        Some(total) => {
            let share = done.min(total);
            let cells = share.saturating_mul(BAR_CELLS) / total;
            let bar: String = (0..BAR_CELLS).map(|cell| if cell < cells { '#' } else { '.' }).collect();
            let percent = share.saturating_mul(100) / total;
            format!("{name}  [{bar}] {percent:>3}%  {} of {}  {rate}/s", show_size(done), show_size(total))
        }
        None => format!("{name}  {}  {rate}/s", show_size(done)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_how_far_it_is() {
        assert_eq!(
            line("a", 25 << 20, Some(50 << 20), Duration::from_secs(1)),
            "a  [############............]  50%  25M of 50M  25M/s"
        );
        assert_eq!(line("-", 2 << 10, None, Duration::from_secs(2)), "-  2k  1k/s");
        assert!(line("grew", 9, Some(3), Duration::ZERO).contains("100%"));
    }
}
