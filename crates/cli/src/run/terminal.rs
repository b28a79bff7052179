//! The caller's terminal: its size, and raw mode that is undone on every way out.
//!
//! Release builds abort on panic, so a guard's drop is not enough there: a panic hook restores as well. A
//! signal that ends us is turned into an ordinary return elsewhere. Nothing helps against SIGKILL.

use std::io::{self, IsTerminal};
use std::sync::{Mutex, PoisonError};

use rustix::termios::{self, OptionalActions, Termios};
use sandcrate_backend::PtySize;

/// The modes to go back to while the terminal is raw.
static SAVED: Mutex<Option<Termios>> = Mutex::new(None);

/// The size of the terminal on stdout or stdin; 80 by 24 without one.
pub(crate) fn size() -> PtySize {
    let found = termios::tcgetwinsize(io::stdout()).or_else(|_| termios::tcgetwinsize(io::stdin()));
    match found {
        Ok(size) if size.ws_row > 0 && size.ws_col > 0 => PtySize { rows: size.ws_row, cols: size.ws_col },
        _ => PtySize { rows: 24, cols: 80 },
    }
}

/// Raw mode as long as it lives.
#[derive(Debug)]
pub(crate) struct RawTerminal(());

impl RawTerminal {
    /// Makes the terminal on stdin raw; `None` when stdin is none.
    pub(crate) fn enter() -> io::Result<Option<Self>> {
        if !io::stdin().is_terminal() {
            return Ok(None);
        }
        let modes = termios::tcgetattr(io::stdin())?;
        *SAVED.lock().unwrap_or_else(PoisonError::into_inner) = Some(modes.clone());
        let default_hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            restore();
            default_hook(info);
        }));
        let mut raw = modes;
        raw.make_raw();
        termios::tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        Ok(Some(Self(())))
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        restore();
    }
}

fn restore() {
    // try_lock: a panic while the lock is held must not hang.
    let Ok(mut saved) = SAVED.try_lock() else { return };
    if let Some(modes) = saved.take() {
        // Now, not Drain: a terminal whose other side does not read would hold us for ever.
        let _ = termios::tcsetattr(io::stdin(), OptionalActions::Now, &modes);
    }
}
