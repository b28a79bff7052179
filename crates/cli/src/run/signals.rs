//! Signals that reach `sandcrate run` itself.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// What a signal asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    /// Ctrl-C: ends the box, or goes to the program on its terminal.
    Interrupt,
    /// End the box; the number decides the exit code.
    End(i32),
    /// The terminal has another size.
    Resize,
}

pub(crate) const SIGHUP: i32 = 1;
pub(crate) const SIGINT: i32 = 2;
pub(crate) const SIGQUIT: i32 = 3;
pub(crate) const SIGTERM: i32 = 15;

#[derive(Debug)]
pub(crate) struct Signals {
    interrupt: Option<Signal>,
    terminate: Option<Signal>,
    hangup: Option<Signal>,
    quit: Option<Signal>,
    resize: Option<Signal>,
}

impl Signals {
    /// Takes all but those that whoever started us had ignored: `nohup`, or a shell's background job.
    pub(crate) fn install() -> io::Result<Self> {
        let ignored = ignored();
        let take = |kind: SignalKind| {
            let is_ignored = ignored >> (kind.as_raw_value() - 1) & 1 == 1;
            if is_ignored { Ok(None) } else { signal(kind).map(Some) }
        };
        Ok(Self {
            interrupt: take(SignalKind::interrupt())?,
            terminate: take(SignalKind::terminate())?,
            hangup: take(SignalKind::hangup())?,
            quit: take(SignalKind::quit())?,
            resize: take(SignalKind::window_change())?,
        })
    }

    /// The next one of any kind. Safe to cancel.
    pub(crate) async fn next(&mut self) -> Asked {
        tokio::select! {
            () = received(&mut self.interrupt) => Asked::Interrupt,
            () = received(&mut self.terminate) => Asked::End(SIGTERM),
            () = received(&mut self.hangup) => Asked::End(SIGHUP),
            () = received(&mut self.quit) => Asked::End(SIGQUIT),
            () = received(&mut self.resize) => Asked::Resize,
        }
    }

    /// The next one that ends us while no program is there to take Ctrl-C. Safe to cancel.
    pub(crate) async fn ending(&mut self) -> i32 {
        loop {
            match self.next().await {
                Asked::Interrupt => return SIGINT,
                Asked::End(number) => return number,
                Asked::Resize => {}
            }
        }
    }
}

async fn received(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

/// The signals that this process ignores, bit N - 1 for signal N; none where /proc does not say.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
