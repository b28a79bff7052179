//! The native backend, which this crate alone names.

use std::fs::File;
use std::io::Read as _;

pub(crate) use sandcrate_backend_native::{NativeBackend, NativeConfig, NewLauncher, dispatch_role, image};

/// For a command line that begins like those that make a box of their own, and like that of no hidden role: the
/// launcher starts while the rest is read. Must be the first call of `main`: the launcher, and all its boxes, have a copy
/// of whatever was in memory before. Where it turns out not to be wanted it is dropped, and where it cannot be had
/// another is tried, and reported, when it is needed.
pub(crate) fn launcher_ahead() -> Option<NewLauncher> {
    makes_a_box().then(NewLauncher::fork)?.ok()
}

fn makes_a_box() -> bool {
    let mut start = [0_u8; 512];
    let read = File::open("/proc/self/cmdline").and_then(|mut file| file.read(&mut start));
    let mut words = start[..read.unwrap_or(0)].split(|byte| *byte == 0).skip(1);
    let wanted = match words.next() {
        Some(b"run") => true,
        Some(b"mcp") => words.next() == Some(b"run"),
        _ => false,
    };
    // What follows may be a secret.
    start.fill(0);
    std::hint::black_box(&start);
    wanted
}
