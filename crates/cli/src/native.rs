//! The native backend, which this crate alone names.

pub(crate) use sandcrate_backend_native::{NativeBackend, NativeConfig};
pub(crate) use sandcrate_jail::dispatch_role;
