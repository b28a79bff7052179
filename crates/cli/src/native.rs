//! The native backend, which this crate alone names.

pub(crate) use sandcrate_backend_native::{NativeBackend, NativeConfig, dispatch_role, image};
