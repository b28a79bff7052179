//! Flooding disks: bytes, inodes and memory-backed file systems.

use std::fs;
use std::time::{Duration, Instant};

use super::{directory_and_number, number};
use crate::child::{Outcome, attempt_within, volunteer_for_oom};
use crate::report::{AttackResult, Report, Usage};
use crate::sys::{Errno, SysResult, close, cstring, syscall};

const MIB: usize = 1 << 20;
const CREATE: i32 = libc::O_CREAT | libc::O_RDWR | libc::O_CLOEXEC;

/// A block that neither compresses nor deduplicates to nothing.
fn noise(seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let words = (0..MIB / 8).flat_map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_ne_bytes()
    });
    words.collect()
}

fn create(path: &str) -> SysResult {
    syscall!(libc::SYS_openat, libc::AT_FDCWD, &cstring(path), CREATE, 0o600)
}

fn write_mib(fd: i64, block: &[u8]) -> Result<(), Errno> {
    let mut rest = block;
    while !rest.is_empty() {
        let written = syscall!(libc::SYS_write, fd, rest.as_ptr(), rest.len())?;
        rest = &rest[written as usize..];
    }
    Ok(())
}

/// Each takes a directory and a size in MiB and succeeds when all of it is there.
type Form = (&'static str, fn(&str, u64) -> SysResult);

const FORMS: [Form; 5] = [
    ("one file", |directory, mib| in_files(directory, mib, mib)),
    ("files of 1 MiB", |directory, mib| in_files(directory, mib, 1)),
    ("reserved by fallocate", |directory, mib| {
        let fd = create(&format!("{directory}/reserved"))?;
        syscall!(libc::SYS_fallocate, fd, 0, 0, mib as usize * MIB)
    }),
    ("deleted but open files", |directory, mib| {
        for index in 0..mib.div_ceil(8) {
            let path = format!("{directory}/deleted{index}");
            let fd = create(&path)?;
            let _ = fs::remove_file(&path);
            for step in 0..8 {
                write_mib(fd, &noise(index * 8 + step + 1))?;
            }
        }
        syscall!(libc::SYS_sync)
    }),
    ("mapped sparse file", |directory, mib| {
        let fd = create(&format!("{directory}/sparse"))?;
        let size = mib as usize * MIB;
        syscall!(libc::SYS_ftruncate, fd, size)?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let address = syscall!(libc::SYS_mmap, 0, size, protection, libc::MAP_SHARED, fd, 0)?;
        for offset in (0..size).step_by(4096) {
            // SAFETY: the mapping has `size` writable bytes; a full disk ends this child by SIGBUS.
            unsafe { ((address as usize + offset) as *mut u64).write_volatile(offset as u64 | 1) };
        }
        syscall!(libc::SYS_fdatasync, fd)
    }),
];

fn in_files(directory: &str, mib: u64, per_file: u64) -> SysResult {
    let block = noise(7);
    for index in 0..mib.div_ceil(per_file) {
        let fd = create(&format!("{directory}/data{index}"))?;
        for _ in 0..per_file.min(mib - index * per_file) {
            write_mib(fd, &block)?;
        }
        syscall!(libc::SYS_fdatasync, fd)?;
        close(fd);
    }
    Ok(0)
}

/// The directory an attack fills; removed with its content when dropped.
struct Filled(String);

impl Filled {
    fn new(directory: &str) -> Result<Self, Usage> {
        let path = format!("{directory}/probe-filled-{}", std::process::id());
        fs::create_dir(&path).map_err(|error| Usage(format!("{path}: {error}")))?;
        Ok(Self(path))
    }
}

impl Drop for Filled {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Without this a file size limit would kill instead of answering EFBIG.
fn ignore_file_size_signal() {
    // SAFETY: ignoring a signal needs no handler.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// RS-07: `MIB` mebibytes below a directory, in several forms.
pub(crate) fn bytes(arguments: &[String]) -> AttackResult {
    let (directory, mib) = directory_and_number(arguments, None)?;
    ignore_file_size_signal();
    let mut report = Report::default();
    let mut by_quota = false;
    let deadline = Instant::now() + Duration::from_secs(15);
    for (name, form) in FORMS {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            report.remark(format!("no time left for {name}"));
            continue;
        }
        let filled = Filled::new(&directory)?;
        let what = format!("{mib} MiB as {name}");
        match report.attempt(&what, attempt_within(left, || form(&filled.0, mib))) {
            Outcome::Returned(_) => report.breach(format!("{what} fits")),
            Outcome::Failed(errno) => by_quota |= [libc::ENOSPC, libc::EDQUOT].contains(&errno.0),
            Outcome::Killed(libc::SIGBUS) => by_quota = true,
            Outcome::NotMade(_) => {}
            Outcome::Killed(_) | Outcome::Hung => report.remark(format!("{what} was not answered")),
        }
    }
    if !by_quota {
        report.remark("no form was stopped by the quota");
    }
    report.verdict(&format!("{mib} MiB do not fit"))
}

/// Makes one inode at a path.
type InodeForm = (&'static str, fn(&str) -> SysResult);

/// RS-08: `COUNT` inodes below a directory, as files and then as other kinds.
pub(crate) fn inodes(arguments: &[String]) -> AttackResult {
    let (directory, count) = directory_and_number(arguments, None)?;
    let filled = Filled::new(&directory)?;
    let mut report = Report::default();
    let mut made = 0;
    let mut stops = Vec::new();
    let forms: [InodeForm; 4] = [
        ("file", |path| create(path).inspect(|fd| close(*fd))),
        ("directory", |path| syscall!(libc::SYS_mkdir, &cstring(path), 0o700)),
        ("symlink", |path| syscall!(libc::SYS_symlink, c"x", &cstring(path))),
        ("fifo", |path| syscall!(libc::SYS_mknod, &cstring(path), libc::S_IFIFO | 0o600, 0)),
    ];
    for (name, form) in forms {
        while made < count {
            let folder = format!("{}/{}", filled.0, made / 1000);
            let result = match made % 1000 {
                0 => fs::create_dir_all(&folder)
                    .map(|()| 0)
                    .map_err(|error| Errno(error.raw_os_error().unwrap_or(0))),
                _ => Ok(0),
            };
            let result = result.and_then(|_| form(&format!("{folder}/{name}{made}")));
            if let Err(errno) = result {
                report.attempt(&format!("{name} after {made} inodes"), result);
                stops.push(errno.0);
                break;
            }
            made += 1;
        }
    }
    println!("made {made}");
    report.held();
    if made >= count {
        report.breach(format!("all {count} inodes were made"));
    } else if !stops.iter().any(|stop| [libc::ENOSPC, libc::EDQUOT].contains(stop)) {
        report.remark(format!("{made} of {count} inodes, stopped by something else than the quota"));
    }
    report.verdict(&format!("{made} of {count} inodes were made"))
}

/// RS-51: every writable memory-backed directory at once.
pub(crate) fn tmpfs(arguments: &[String]) -> AttackResult {
    let mib: u64 = number(arguments, Some(300))?;
    ignore_file_size_signal();
    let mut report = Report::default();
    let mut targets: Vec<String> =
        ["/tmp", "/var/tmp", "/dev/shm", "/run", "/dev", "/run/lock"].map(str::to_owned).to_vec();
    let memory_backed = crate::proc_tree::mounts().into_iter().filter(|mount| mount.kind == "tmpfs");
    targets.extend(memory_backed.map(|mount| mount.target));
    targets.sort();
    targets.dedup();
    let filled: Vec<Filled> = targets.iter().filter_map(|target| Filled::new(target).ok()).collect();
    if filled.is_empty() {
        println!("attempt: none of {targets:?} is writable");
        report.held();
        return report.verdict("no memory-backed directory is writable");
    }
    let outcome = attempt_within(Duration::from_secs(14), || {
        volunteer_for_oom();
        let mut total = 0;
        for directory in &filled {
            let before = total;
            let block = noise(11);
            let stop = create(&format!("{}/data", directory.0)).and_then(|fd| {
                while total < mib {
                    write_mib(fd, &block)?;
                    total += 1;
                }
                Ok(0)
            });
            let stop = stop.map_or_else(|errno| errno.to_string(), |_| "all of it".into());
            println!("attempt: fill {} -> {} MiB, then {stop}", directory.0, total - before);
        }
        if total >= mib { Ok(total as i64) } else { Err(Errno(libc::ENOSPC)) }
    });
    let what = format!("{mib} MiB in {} directories", filled.len());
    if report.attempt(&what, outcome).succeeded() {
        report.breach(format!("{what} fit"));
    }
    report.verdict(&format!("{mib} MiB do not fit into memory-backed directories"))
}
