//! Flooding memory: private, shared, by descriptor, by System V segment, and locked.

use std::time::Duration;

use super::crew::take_together;
use super::number;
use crate::child::{Outcome, attempt_within};
use crate::report::{AttackResult, Report, Usage};
use crate::sys::{SysResult, syscall};

const MIB: usize = 1 << 20;
const PAGE: usize = 4096;
const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// Writes every page with something of its own, so that none can be merged or left out.
fn touch(address: i64, size: usize) {
    for offset in (0..size).step_by(PAGE) {
        // SAFETY: the caller mapped `size` writable bytes at `address`.
        unsafe { ((address as usize + offset) as *mut u64).write_volatile(offset as u64 | 1) };
    }
}

fn anonymous(size: usize, sharing: i32) -> SysResult {
    let address = syscall!(libc::SYS_mmap, 0, size, READ_WRITE, sharing | libc::MAP_ANONYMOUS, -1, 0)?;
    touch(address, size);
    Ok(address)
}

fn by_descriptor(size: usize) -> SysResult {
    let fd = syscall!(libc::SYS_memfd_create, c"probe", 0)?;
    syscall!(libc::SYS_ftruncate, fd, size)?;
    let address = syscall!(libc::SYS_mmap, 0, size, READ_WRITE, libc::MAP_SHARED, fd, 0)?;
    touch(address, size);
    Ok(address)
}

/// Writes into a memfd without mapping it: the pages belong to no address space.
fn written(size: usize) -> SysResult {
    let fd = syscall!(libc::SYS_memfd_create, c"probe", 0)?;
    let block = vec![0x5au8; MIB];
    for _ in 0..size / MIB {
        syscall!(libc::SYS_write, fd, block.as_ptr(), block.len())?;
    }
    Ok(0)
}

fn system_v(size: usize) -> SysResult {
    let segment = syscall!(libc::SYS_shmget, libc::IPC_PRIVATE, size, libc::IPC_CREAT | 0o600)?;
    let address = syscall!(libc::SYS_shmat, segment, 0, 0);
    // Removed at once: it lasts while attached and cannot be left behind by a kill.
    let _ = syscall!(libc::SYS_shmctl, segment, libc::IPC_RMID, 0);
    let address = address?;
    touch(address, size);
    Ok(address)
}

/// A child that is killed or told ENOMEM was stopped; one that holds everything was not.
fn must_be_stopped(report: &mut Report, what: &str, take: impl FnOnce() -> SysResult) {
    match report.attempt(what, attempt_within(Duration::from_secs(6), take)) {
        Outcome::Returned(_) => report.breach(format!("{what} succeeded")),
        Outcome::Hung => report.remark(format!("{what} neither ended nor was stopped")),
        Outcome::Failed(_) | Outcome::Killed(_) | Outcome::NotMade(_) => {}
    }
}

/// RS-03: one process takes `MIB` mebibytes.
pub(crate) fn one(arguments: &[String]) -> AttackResult {
    let mib: usize = number(arguments, None)?;
    let size = mib * MIB;
    let mut report = Report::default();
    must_be_stopped(&mut report, &format!("{mib} MiB private"), || anonymous(size, libc::MAP_PRIVATE));
    must_be_stopped(&mut report, &format!("{mib} MiB shared"), || anonymous(size, libc::MAP_SHARED));
    must_be_stopped(&mut report, &format!("{mib} MiB mapped memfd"), || by_descriptor(size));
    report.verdict(&format!("{mib} MiB cannot be held"))
}

/// RS-55: memory that belongs to no address space, so that a kill by size hits somebody else.
pub(crate) fn ownerless(arguments: &[String]) -> AttackResult {
    let mib: usize = number(arguments, Some(300))?;
    let mut report = Report::default();
    must_be_stopped(&mut report, &format!("{mib} MiB written to a memfd"), || written(mib * MIB));
    report.verdict(&format!("{mib} MiB without an owner cannot be held"))
}

/// RS-04: four processes share `MIB` mebibytes.
pub(crate) fn several(arguments: &[String]) -> AttackResult {
    const CREW: usize = 4;
    let mib: usize = number(arguments, None)?;
    let share = mib * MIB / CREW;
    let takings = take_together(CREW, Duration::from_secs(10), || {
        u64::from(anonymous(share, libc::MAP_PRIVATE).is_ok())
    })
    .map_err(|errno| Usage(format!("cannot start the children: {errno}")))?;
    let mut report = Report::default();
    let held = takings.total;
    println!("attempt: {CREW} children, {mib} MiB together -> {held} hold it, {} killed", takings.killed);
    report.held();
    if held as usize == CREW && takings.killed == 0 {
        report.breach(format!("{CREW} processes hold {mib} MiB together"));
    } else if takings.killed == 0 && takings.reported < CREW {
        report.remark("the children neither ended nor were stopped");
    }
    report.verdict(&format!("{mib} MiB cannot be held by {CREW} processes"))
}

/// RS-19: System V shared memory, alone and by several processes.
pub(crate) fn shm(arguments: &[String]) -> AttackResult {
    let mib: usize = number(arguments, Some(300))?;
    let mut report = Report::default();
    must_be_stopped(&mut report, &format!("{mib} MiB in one segment"), || system_v(mib * MIB));
    must_be_stopped(&mut report, &format!("{mib} MiB in segments of 8 MiB"), || {
        (0..mib.div_ceil(8)).try_fold(0, |_, _| system_v(8 * MIB))
    });
    report.verdict(&format!("{mib} MiB of shared memory cannot be held"))
}

const LOCK_LIMIT: u64 = 64 << 10;

/// RS-18: locking memory beyond 64 KiB.
pub(crate) fn mlock(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    let resource = libc::RLIMIT_MEMLOCK as i32;
    let mut limit = [u64::MAX; 2];
    let asked = syscall!(libc::SYS_prlimit64, 0, resource, 0, limit.as_mut_ptr());
    report.attempt(&format!("getrlimit(memlock) {limit:?}"), asked);
    if limit[1] > LOCK_LIMIT {
        report.breach(format!("RLIMIT_MEMLOCK is {limit:?}"));
    }
    report.must_fail("raise RLIMIT_MEMLOCK", || {
        let raised = [limit[1].saturating_add(4096); 2];
        if raised[1] == u64::MAX {
            Ok(0)
        } else {
            syscall!(libc::SYS_prlimit64, 0, resource, raised.as_ptr(), 0)
        }
    });
    let map = || syscall!(libc::SYS_mmap, 0, MIB, READ_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0);
    report.must_fail("mlock(1 MiB)", || syscall!(libc::SYS_mlock, map()?, MIB));
    report.must_fail("mlock2(1 MiB, on fault)", || syscall!(libc::SYS_mlock2, map()?, MIB, 1));
    report.must_fail("mlockall(current)", || syscall!(libc::SYS_mlockall, libc::MCL_CURRENT));
    report.must_fail("mlockall(future), 1 MiB", || {
        syscall!(libc::SYS_mlockall, libc::MCL_FUTURE)?;
        map()
    });
    report.must_fail("mmap(1 MiB, locked)", || {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_LOCKED;
        syscall!(libc::SYS_mmap, 0, MIB, READ_WRITE, flags, -1, 0)
    });
    report.must_fail("SHM_LOCK of 1 MiB", || {
        let segment = syscall!(libc::SYS_shmget, libc::IPC_PRIVATE, MIB, libc::IPC_CREAT | 0o600)?;
        let locked = syscall!(libc::SYS_shmctl, segment, libc::SHM_LOCK, 0);
        let _ = syscall!(libc::SYS_shmctl, segment, libc::IPC_RMID, 0);
        locked
    });
    report.verdict("no more than 64 KiB can be locked")
}
