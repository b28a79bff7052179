//! How far an import is, on a terminal.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use crate::native::image::{ImageName, Progress};
use crate::units::show_size;

/// Often enough to be seen moving.
const PAUSE: Duration = Duration::from_millis(100);

/// One line that is written over; nothing where nobody looks.
pub(super) struct Meter {
    name: String,
    visible: bool,
    shown: Option<Instant>,
}

impl Meter {
    pub(super) fn new(name: &ImageName, quiet: bool) -> Self {
        Self { name: name.to_string(), visible: !quiet && io::stderr().is_terminal(), shown: None }
    }

    pub(super) fn show(&mut self, done: Progress) {
        if !self.visible || self.shown.is_some_and(|last| last.elapsed() < PAUSE) {
            return;
        }
        self.shown = Some(Instant::now());
        let line = format!("{}: {} entries, {}", self.name, done.entries, show_size(done.bytes));
        // Whoever closed stderr does not look.
        let _ = write!(io::stderr().lock(), "\r\x1b[Ksandcrate: importing {line}");
    }

    pub(super) fn clear(&mut self) {
        if self.shown.take().is_some() {
            let _ = write!(io::stderr().lock(), "\r\x1b[K");
        }
    }
}
