//! The native backend, which this crate alone names.

use std::path::Path;

pub(crate) use sandcrate_backend_native::{NativeBackend, NativeConfig, NewLauncher, dispatch_role, image};

/// For a command line that begins like those that make a box of their own, and like that of no hidden role: the
/// launcher starts while the rest is read. Where it turns out not to be wanted it is dropped, and where it cannot be had
/// another is tried, and reported, when it is needed.
pub(crate) fn launcher_ahead() -> Option<NewLauncher> {
    makes_a_box().then(|| NewLauncher::spawn(Path::new("/proc/self/exe")))?.ok()
}

fn makes_a_box() -> bool {
    let mut words = std::env::args_os().skip(1);
    match words.next() {
        Some(verb) if verb == "run" => true,
        Some(verb) if verb == "mcp" => words.next().is_some_and(|verb| verb == "run"),
        _ => false,
    }
}
