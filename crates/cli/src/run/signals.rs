//! Signals that reach `sandcrate run` itself.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// What a signal asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    /// Ctrl-C: ends the box, or goes to the program on its terminal.
    Interrupt,
    /// End the box; the number decides the exit code.
    End(i32),
    /// The terminal has another size.
    Resize,
}

pub(super) const SIGHUP: i32 = 1;
pub(super) const SIGINT: i32 = 2;
pub(super) const SIGQUIT: i32 = 3;
pub(super) const SIGTERM: i32 = 15;

#[derive(Debug)]
pub(super) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
    quit: Signal,
    resize: Signal,
}

impl Signals {
    pub(super) fn install() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
            quit: signal(SignalKind::quit())?,
            resize: signal(SignalKind::window_change())?,
        })
    }

    /// The next one of any kind. Safe to cancel.
    pub(super) async fn next(&mut self) -> Asked {
        tokio::select! {
            _ = self.interrupt.recv() => Asked::Interrupt,
            _ = self.terminate.recv() => Asked::End(SIGTERM),
            _ = self.hangup.recv() => Asked::End(SIGHUP),
            _ = self.quit.recv() => Asked::End(SIGQUIT),
            _ = self.resize.recv() => Asked::Resize,
        }
    }

    /// The next one that ends us while no program is there to take Ctrl-C. Safe to cancel.
    pub(super) async fn ending(&mut self) -> i32 {
        loop {
            match self.next().await {
                Asked::Interrupt => return SIGINT,
                Asked::End(number) => return number,
                Asked::Resize => {}
            }
        }
    }
}
