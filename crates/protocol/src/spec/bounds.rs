//! How much a caller may ask for. The reference has no upper bounds; these are beyond anything that a
//! machine can serve and small enough that no sum or product of them overflows.

use std::ops::RangeInclusive;

/// Up to thirty days.
pub(super) const TIMEOUT_SEC: RangeInclusive<u64> = 1..=30 * 24 * 60 * 60;
/// Up to 16 TiB.
pub(super) const MEMORY_MB: RangeInclusive<u64> = 32..=16 << 20;
/// Up to 16 TiB; of one process, 0 for that of its session.
pub(super) const PROCESS_MEMORY_MB: RangeInclusive<u64> = 0..=16 << 20;
/// Up to 16 TiB.
pub(super) const WORKSPACE_QUOTA_MB: RangeInclusive<u64> = 0..=16 << 20;
/// Up to what a 64-bit Linux can number (`PID_MAX_LIMIT`).
pub(super) const PIDS_LIMIT: RangeInclusive<u64> = 1..=1 << 22;
/// The most that a Linux kernel can be built for.
pub(super) const CPUS: f64 = 8192.0;
/// Ids become file names, labels and parts of URLs.
pub(super) const ID_CHARS: usize = 256;
/// `PATH_MAX` without its terminator.
pub(super) const PATH_BYTES: usize = 4095;
/// Arguments of a process, and extra mounts of a box.
pub(super) const LIST_ITEMS: usize = 4096;
