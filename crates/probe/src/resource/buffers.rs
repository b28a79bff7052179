//! Flooding what the kernel holds for a process: descriptors, pipes, sockets, messages.

use std::time::Duration;

use super::crew::{Takings, take_together};
use super::number;
use crate::child::{Outcome, attempt_within, volunteer_for_oom};
use crate::report::{AttackResult, Report, Usage};
use crate::sys::{Errno, SysResult, syscall};

const CREW: usize = 16;
/// No program of a sandbox needs more; a limit at or above it is none.
const MANY_DESCRIPTORS: usize = 65_536;

/// RS-09: descriptors, own ones and ones in flight.
pub(crate) fn fds(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    let resource = libc::RLIMIT_NOFILE as i32;
    let mut limit = [0u64; 2];
    let _ = syscall!(libc::SYS_prlimit64, 0, resource, 0, limit.as_mut_ptr());
    report.must_fail(&format!("raise RLIMIT_NOFILE from {limit:?}"), || {
        let raised = [limit[1].saturating_add(1); 2];
        syscall!(libc::SYS_prlimit64, 0, resource, raised.as_ptr(), 0)
    });
    let _ = syscall!(libc::SYS_prlimit64, 0, resource, [limit[1]; 2].as_ptr(), 0);
    for (name, flood) in
        [("duplicates", duplicates as fn() -> SysResult), ("descriptors in flight", in_flight)]
    {
        let what = format!("{MANY_DESCRIPTORS} {name}");
        match report.attempt(&what, attempt_within(Duration::from_secs(6), flood)) {
            Outcome::Returned(_) => report.breach(what),
            Outcome::Failed(Errno(libc::EMFILE | libc::ENFILE | libc::ETOOMANYREFS | libc::ENOMEM)) => {}
            Outcome::Killed(libc::SIGKILL) | Outcome::NotMade(_) => {}
            outcome => report.remark(format!("{what} ended with {outcome}, which is no limit")),
        }
    }
    report.verdict("descriptors end with EMFILE")
}

fn duplicates() -> SysResult {
    let root = crate::sys::open("/", libc::O_PATH)?;
    (0..MANY_DESCRIPTORS).try_fold(0, |_, _| syscall!(libc::SYS_dup, root))
}

/// Sends descriptors over sockets that nobody reads, closing the own copies.
fn in_flight() -> SysResult {
    const PER_MESSAGE: usize = 200;
    let root = crate::sys::open("/", libc::O_PATH)?;
    let mut sent = 0;
    while sent < MANY_DESCRIPTORS {
        let mut ends = [0i32; 2];
        syscall!(
            libc::SYS_socketpair,
            libc::AF_UNIX,
            libc::SOCK_DGRAM | libc::SOCK_NONBLOCK,
            0,
            ends.as_mut_ptr()
        )?;
        loop {
            let byte = 0u8;
            let vector = [&raw const byte as u64, 1];
            let mut control = vec![0u64; 2 + PER_MESSAGE / 2];
            control[0] = 16 + PER_MESSAGE as u64 * 4;
            control[1] = libc::SOL_SOCKET as u64 | (libc::SCM_RIGHTS as u64) << 32;
            control[2..].fill(root as u64 | (root as u64) << 32);
            let control_size = control.len() as u64 * 8;
            let message = [0, 0, vector.as_ptr() as u64, 1, control.as_ptr() as u64, control_size, 0];
            match syscall!(libc::SYS_sendmsg, ends[0], message.as_ptr(), 0) {
                Ok(_) => sent += PER_MESSAGE,
                Err(Errno(libc::EAGAIN)) => break,
                Err(errno) => {
                    println!("attempt: descriptors in flight -> {sent}, then {errno}");
                    return Err(errno);
                }
            }
        }
    }
    Ok(sent as i64)
}

/// RS-52: bytes in pipes, by several processes.
pub(crate) fn pipes(arguments: &[String]) -> AttackResult {
    flood(arguments, "pipes", |share| {
        let mut ends = [0i32; 2];
        syscall!(libc::SYS_pipe2, ends.as_mut_ptr(), libc::O_NONBLOCK)?;
        let _ = syscall!(libc::SYS_fcntl, ends[1], libc::F_SETPIPE_SZ, 1 << 20);
        Ok(fill(ends[1], share))
    })
}

/// RS-53: bytes in socket buffers, by several processes.
pub(crate) fn sockets(arguments: &[String]) -> AttackResult {
    flood(arguments, "socket buffers", |share| {
        let mut ends = [0i32; 2];
        syscall!(
            libc::SYS_socketpair,
            libc::AF_UNIX,
            libc::SOCK_STREAM | libc::SOCK_NONBLOCK,
            0,
            ends.as_mut_ptr()
        )?;
        let size = 1i32 << 26;
        for end in ends {
            let option = libc::SO_SNDBUF;
            let _ = syscall!(libc::SYS_setsockopt, end, libc::SOL_SOCKET, option, &raw const size, 4);
        }
        Ok(fill(ends[0], share) + fill(ends[1], share))
    })
}

/// RS-54: bytes in System V message queues, which outlive the process that filled them.
///
/// The process holds some memory of its own: its death makes room for removing the queues.
pub(crate) fn messages(arguments: &[String]) -> AttackResult {
    const MESSAGE: usize = 8000;
    let mib: usize = number(arguments, Some(300))?;
    let outcome = attempt_within(Duration::from_secs(10), || {
        volunteer_for_oom();
        let room = std::hint::black_box(vec![1u8; 16 << 20]);
        let message = [1u64; 1 + MESSAGE / 8];
        let mut sent = 0;
        while sent < mib << 20 {
            let queue = syscall!(libc::SYS_msgget, libc::IPC_PRIVATE, libc::IPC_CREAT | 0o600)?;
            while syscall!(libc::SYS_msgsnd, queue, message.as_ptr(), MESSAGE, libc::IPC_NOWAIT).is_ok() {
                sent += MESSAGE;
            }
        }
        drop(room);
        Ok(sent as i64)
    });
    remove_queues();
    let mut report = Report::default();
    let what = format!("{mib} MiB in message queues");
    if matches!(report.attempt(&what, outcome), Outcome::Returned(_) | Outcome::Hung) {
        report.breach(format!("{what} were held"));
    }
    report.verdict(&format!("{mib} MiB cannot be held in message queues"))
}

/// Queues outlive their makers; identifiers stand in the second column.
fn remove_queues() {
    let listed = std::fs::read_to_string("/proc/sysvipc/msg").unwrap_or_default();
    for line in listed.lines().skip(1) {
        if let Some(queue) = line.split_whitespace().nth(1).and_then(|word| word.parse::<i64>().ok()) {
            let _ = syscall!(libc::SYS_msgctl, queue, libc::IPC_RMID, 0);
        }
    }
}

fn fill(fd: i32, share: u64) -> u64 {
    let block = [0x5au8; 65536];
    let mut total = 0;
    while total < share {
        match syscall!(libc::SYS_write, fd, block.as_ptr(), block.len()) {
            Ok(written) if written > 0 => total += written as u64,
            _ => break,
        }
    }
    total
}

/// Every child opens one container after the other until its share is held or the kernel says no.
fn flood(arguments: &[String], what: &str, open_and_fill: fn(u64) -> Result<u64, Errno>) -> AttackResult {
    let mib: u64 = number(arguments, Some(300))?;
    let share = (mib << 20) / CREW as u64;
    let Takings { total, reported, killed } = take_together(CREW, Duration::from_secs(10), || {
        let mut total = 0;
        while total < share {
            match open_and_fill(share - total) {
                Ok(0) | Err(_) => break,
                Ok(filled) => total += filled,
            }
        }
        total
    })
    .map_err(|errno| Usage(format!("cannot start the children: {errno}")))?;
    let mut report = Report::default();
    println!("attempt: {mib} MiB in {what} -> {} MiB by {reported} children, {killed} killed", total >> 20);
    report.held();
    if total >= share * CREW as u64 && killed == 0 {
        report.breach(format!("{} MiB held in {what}", total >> 20));
    }
    report
        .verdict(&format!("{} of {mib} MiB held in {what}, {killed} of {CREW} processes killed", total >> 20))
}
