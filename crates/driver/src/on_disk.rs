//! Work that waits for the disk, beside the tasks, which must not.

use std::io;

/// Runs `work` where waiting holds nobody up.
pub async fn on_disk<T, W>(work: W) -> io::Result<T>
where
    T: Send + 'static,
    W: FnOnce() -> io::Result<T> + Send + 'static,
{
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(io::Error::other(error)))
}
