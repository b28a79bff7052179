//! The native backend, which this crate alone names.

pub(crate) use sandcrate_backend_native::{NativeBackend, NativeConfig, NewLauncher, dispatch_role, image};

/// For a command line that begins like those that make a box of their own: the launcher starts while the rest is
/// read. Must follow [`dispatch_role`], before anything else. Where it turns out not to be wanted it is dropped, and
/// where it cannot be had another is tried, and reported, when it is needed.
pub(crate) fn launcher_ahead() -> Option<NewLauncher> {
    let mut words = std::env::args_os().skip(1);
    let verb = words.next()?;
    let wanted = verb == "run" || verb == "mcp" && words.next()? == "run";
    wanted.then(NewLauncher::fork)?.ok()
}
