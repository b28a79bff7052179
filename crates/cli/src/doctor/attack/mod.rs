pub(crate) fn dispatch_role() -> Option<std::process::ExitCode> { None }
