//! Locks of short critical sections.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Nothing panics while holding one of our locks; a poisoned one is as good as any.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
