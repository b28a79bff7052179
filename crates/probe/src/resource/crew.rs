//! Several children that each take a share, hold it, and report how much they got.

use std::time::{Duration, Instant};

use crate::child::{Child, volunteer_for_oom};
use crate::sys::{Errno, close, syscall};

/// What the children reported before the deadline.
pub(crate) struct Takings {
    pub(crate) total: u64,
    pub(crate) reported: usize,
    pub(crate) killed: usize,
}

/// Starts `size` children; each runs `take`, reports its result and holds what it took
/// until everybody has reported, died or run out of time.
pub(crate) fn take_together(size: usize, limit: Duration, take: impl Fn() -> u64) -> Result<Takings, Errno> {
    let mut ends = [0i32; 2];
    syscall!(libc::SYS_pipe2, ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK)?;
    let [reader, writer] = ends.map(i64::from);
    let mut crew = Vec::new();
    for _ in 0..size {
        let child = Child::spawn(|| {
            volunteer_for_oom();
            let taken = take();
            let _ = syscall!(libc::SYS_write, writer, &raw const taken, 8);
            std::thread::sleep(Duration::from_secs(15));
            0
        });
        crew.push(child?);
    }
    close(writer);
    let deadline = Instant::now() + limit;
    let mut takings = Takings { total: 0, reported: 0, killed: 0 };
    while Instant::now() < deadline {
        let mut taken = 0u64;
        while syscall!(libc::SYS_read, reader, &raw mut taken, 8) == Ok(8) {
            takings.total += taken;
            takings.reported += 1;
        }
        takings.killed = crew.iter_mut().filter_map(Child::poll).count();
        if takings.reported + takings.killed >= crew.len() {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    // One more look: holding everything for a moment is what the limit must prevent.
    std::thread::sleep(Duration::from_millis(200));
    takings.killed =
        crew.iter_mut().filter_map(Child::poll).filter(|status| libc::WIFSIGNALED(*status)).count();
    close(reader);
    Ok(takings)
}
