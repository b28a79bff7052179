//! Flooding processes, threads and processor time.

use std::time::{Duration, Instant};

use super::number;
use crate::child::Child;
use crate::report::{AttackResult, Report, Usage, Verdict};
use crate::sys::{syscall, zeroed};

fn sleep_long() -> i32 {
    std::thread::sleep(Duration::from_secs(15));
    0
}

type ForkForm = (&'static str, fn() -> Result<Child, crate::sys::Errno>);

/// RS-01: `N` sleeping children, by fork and then by clone.
pub(crate) fn fork(arguments: &[String]) -> AttackResult {
    let wanted: usize = number(arguments, None)?;
    let mut children = Vec::new();
    let mut stops = Vec::new();
    let forms: [ForkForm; 2] =
        [("fork", || Child::spawn(sleep_long)), ("clone", || Child::spawn_by_clone(sleep_long))];
    for (name, form) in forms {
        while children.len() < wanted {
            match form() {
                Ok(child) => children.push(child),
                Err(errno) => {
                    println!("attempt: {name} number {} -> {errno}", children.len() + 1);
                    stops.push(errno.to_string());
                    break;
                }
            }
        }
    }
    let spawned = children.len();
    drop(children);
    println!("spawned {spawned}");
    Ok(if spawned >= wanted {
        Verdict::Unsafe(format!("all {wanted} children started"))
    } else {
        Verdict::Safe(format!("{spawned} of {wanted} children started, then {}", stops.join(", ")))
    })
}

/// RS-02: `N` sleeping threads.
pub(crate) fn threads(arguments: &[String]) -> AttackResult {
    let wanted: usize = number(arguments, None)?;
    let mut started = 0;
    let mut stop = String::new();
    while started < wanted {
        let thread = std::thread::Builder::new().stack_size(64 << 10).spawn(sleep_long);
        match thread {
            Ok(_) => started += 1,
            Err(error) => {
                stop = error.to_string();
                println!("attempt: thread number {} -> {error}", started + 1);
                break;
            }
        }
    }
    println!("spawned {started}");
    Ok(if started >= wanted {
        Verdict::Unsafe(format!("all {wanted} threads started"))
    } else {
        Verdict::Safe(format!("{started} of {wanted} threads started, then {stop}"))
    })
}

/// RS-13: four busy processes for two seconds against a limit in processors.
pub(crate) fn cpu(arguments: &[String]) -> AttackResult {
    let limit: f64 = number(arguments, None)?;
    if limit <= 0.0 || limit.is_nan() {
        return Err(Usage("the limit must be above zero".into()));
    }
    let before = children_seconds();
    let start = Instant::now();
    let mut busy = Vec::new();
    for _ in 0..4 {
        let child = Child::spawn(|| {
            let mut sum = 0u64;
            while start.elapsed() < Duration::from_secs(2) {
                for step in 0..10_000u64 {
                    sum = std::hint::black_box(sum.wrapping_add(step));
                }
            }
            0
        });
        busy.push(child.map_err(|errno| Usage(format!("cannot fork: {errno}")))?);
    }
    for child in &mut busy {
        child.wait(Duration::from_secs(10));
    }
    let wall = start.elapsed().as_secs_f64();
    drop(busy);
    let used = (children_seconds() - before) / wall;
    let mut report = Report::default();
    println!("attempt: four busy processes for {wall:.2} s -> {used:.2} processors");
    report.held();
    if used > 1.25 * limit {
        report.breach(format!("{used:.2} processors used, limit {limit}"));
    }
    report.verdict(&format!("{used:.2} processors used, limit {limit}"))
}

fn children_seconds() -> f64 {
    let mut usage = zeroed::<libc::rusage>();
    if syscall!(libc::SYS_getrusage, libc::RUSAGE_CHILDREN, &raw mut usage).is_err() {
        return 0.0;
    }
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}
