//! Attempts to take more than the limits give. Each stops itself well above the limit, so that a box that does
//! not hold costs the machine little.

use std::fs::File;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::Bait;
use super::outcome::Outcome;

/// How far beyond a limit an attempt goes.
const BEYOND: u64 = 3;

/// A child that waits until we are gone.
fn waiting_child() -> std::io::Result<Child> {
    // `cat` on a pipe that we hold ends with us.
    Command::new("/bin/cat").stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
}

/// Held when at most `limit` of something could be had before an error.
fn counted(had: u64, limit: u64, error: Option<&std::io::Error>) -> Outcome {
    match error {
        Some(error) if had <= limit => Outcome::held(format!("{had} of {limit}, then: {error}")),
        Some(error) => Outcome::broken(format!("{had}, the limit is {limit}; then: {error}")),
        None => Outcome::broken(format!("{had} without an end, the limit is {limit}")),
    }
}

pub(super) fn processes(bait: &Bait) -> Outcome {
    let limit = u64::from(bait.pids);
    let mut children = Vec::new();
    let mut failure = None;
    while (children.len() as u64) < limit * BEYOND {
        match waiting_child() {
            Ok(child) => children.push(child),
            Err(error) => {
                failure = Some(error);
                break;
            }
        }
    }
    let outcome = counted(children.len() as u64, limit, failure.as_ref());
    for mut child in children {
        drop(child.stdin.take());
        let _ = child.wait();
    }
    outcome
}

pub(super) fn threads(bait: &Bait) -> Outcome {
    let limit = u64::from(bait.pids);
    let mut threads = Vec::new();
    let mut failure = None;
    while (threads.len() as u64) < limit * BEYOND {
        match std::thread::Builder::new().stack_size(64 << 10).spawn(std::thread::park) {
            Ok(thread) => threads.push(thread),
            Err(error) => {
                failure = Some(error);
                break;
            }
        }
    }
    let outcome = counted(threads.len() as u64, limit, failure.as_ref());
    for thread in threads {
        thread.thread().unpark();
        let _ = thread.join();
    }
    outcome
}

pub(super) fn open_files(bait: &Bait) -> Outcome {
    let mut open = Vec::new();
    loop {
        match File::open("/dev/null") {
            Ok(file) => open.push(file),
            Err(error) => return counted(open.len() as u64, bait.open_files, Some(&error)),
        }
        if open.len() as u64 > bait.open_files * BEYOND {
            return counted(open.len() as u64, bait.open_files, None);
        }
    }
}

pub(super) fn fill_tmp(bait: &Bait) -> Outcome {
    let outcome = fill("/tmp", bait.tmp_bytes);
    let _ = std::fs::remove_dir_all("/tmp/fill");
    outcome
}

pub(super) fn fill_disk(bait: &Bait) -> Outcome {
    let outcome = fill("/workspace", bait.disk_bytes);
    let _ = std::fs::remove_dir_all("/workspace/fill");
    outcome
}

/// Fills a directory with files of 1 MiB, so that no limit on single files is mistaken for one on the whole.
fn fill(dir: &str, limit: u64) -> Outcome {
    const PIECE: u64 = 1 << 20;
    let piece = vec![0x5a; PIECE as usize];
    let dir = format!("{dir}/fill");
    if let Err(error) = std::fs::create_dir(&dir) {
        return Outcome::not_applicable(format!("{dir}: {error}"));
    }
    let mut written = 0;
    while written < limit * BEYOND {
        let result = File::create(format!("{dir}/{written}")).and_then(|mut file| {
            file.write_all(&piece)?;
            file.sync_data()
        });
        if let Err(error) = result {
            return counted(written >> 10, limit >> 10, Some(&error));
        }
        written += PIECE;
    }
    counted(written >> 10, limit >> 10, None)
}

pub(super) fn inodes(bait: &Bait) -> Outcome {
    /// Inodes per MiB of quota, as the project gives them; file systems round up to a block of them.
    const PER_MIB: u64 = 256;
    let limit = (bait.disk_bytes >> 20) * PER_MIB + 1024;
    let dir = "/workspace/inodes";
    if let Err(error) = std::fs::create_dir(dir) {
        return Outcome::not_applicable(format!("{dir}: {error}"));
    }
    let mut made = 0;
    let mut failure = None;
    while made < limit * BEYOND {
        if let Err(error) = File::create(format!("{dir}/{made}")) {
            failure = Some(error);
            break;
        }
        made += 1;
    }
    let _ = std::fs::remove_dir_all(dir);
    counted(made, limit, failure.as_ref())
}

/// Does not come back where the limit holds.
pub(super) fn memory(bait: &Bait) -> Outcome {
    const PIECE: usize = 1 << 20;
    let mut pieces = Vec::new();
    while (pieces.len() * PIECE) as u64 <= bait.memory_bytes * 2 {
        pieces.push(std::hint::black_box(vec![1_u8; PIECE]));
    }
    Outcome::broken(format!("took {} MiB, the limit is {} MiB", pieces.len(), bait.memory_bytes >> 20))
}

pub(super) fn cpu(bait: &Bait) -> Outcome {
    const SPIN: Duration = Duration::from_millis(1500);
    /// On a busy machine ticks come late, and a quota that was overdrawn is paid back later.
    const LONGER: Duration = Duration::from_secs(6);
    /// A quota is handed out in slices, and the first comes at once.
    const TOLERANCE: f64 = 1.35;
    let allowed = f64::from(bait.cpu_millis) / 1000.0;
    let mut share = cpu_share(SPIN);
    if share > allowed * TOLERANCE {
        share = cpu_share(LONGER);
    }
    let detail = format!("{share:.2} CPUs, the limit is {allowed:.2}");
    if share <= allowed * TOLERANCE { Outcome::held(detail) } else { Outcome::broken(detail) }
}

/// How many processors this process gets when it wants all of them.
fn cpu_share(time: Duration) -> f64 {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let used = || {
        let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        used.tv_sec as f64 + used.tv_nsec as f64 / 1e9
    };
    let (began, before) = (Instant::now(), used());
    std::thread::scope(|scope| {
        for _ in 0..cpus.clamp(2, 8) {
            scope.spawn(|| {
                while began.elapsed() < time {
                    std::hint::black_box(0);
                }
            });
        }
    });
    (used() - before) / began.elapsed().as_secs_f64()
}

/// Does not come back where the time limit holds; its child would outlive a kill of our process group.
pub(super) fn outlive(_: &Bait) -> Outcome {
    let child = Command::new("/bin/sleep")
        .arg("60")
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn();
    std::thread::sleep(Duration::from_secs(20));
    Outcome::broken(format!("still there after 20 s, with {child:?}"))
}
