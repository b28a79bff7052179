//! Who descends from whom in the box, and the end of such a tree, where no cgroup says it.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

/// A tree that still grows after so many looks is left to the next kill.
const PASSES: u32 = 200;
/// What is killed takes a moment to go.
const PAUSE: Duration = Duration::from_millis(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    parent: i32,
    session: i32,
    ended: bool,
}

/// Whether this process has any, ended ones that nobody waited for included. To whom orphans fall, all that live below it
/// are known by this.
pub(crate) fn has_children() -> bool {
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    !matches!(waitid(WaitId::All, look), Err(rustix::io::Errno::CHILD))
}

/// Every process of the box.
fn processes() -> HashMap<i32, Seen> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter_map(|pid| Some((pid, seen(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?)))
        .collect()
}

/// What proc_pid_stat(5) says of a process. The name may hold anything, so the fields are counted from its end.
fn seen(stat: &str) -> Option<Seen> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    let session = fields.nth(1)?.parse().ok()?;
    Some(Seen { parent, session, ended: state == "Z" || state == "X" })
}

/// The child of `root` that the process is or descends from.
fn top(all: &HashMap<i32, Seen>, root: i32, mut pid: i32) -> Option<(i32, Seen)> {
    // No chain is longer than there are processes.
    for _ in 0..all.len() {
        let seen = all.get(&pid)?;
        if seen.parent == root {
            return Some((pid, *seen));
        }
        pid = seen.parent;
    }
    None
}

/// The living among those whose branch below `root` is wanted.
fn branches(all: &HashMap<i32, Seen>, root: i32, wanted: impl Fn(i32, Seen) -> bool) -> HashSet<i32> {
    let living = all.iter().filter(|(_, seen)| !seen.ended).map(|(pid, _)| *pid);
    living.filter(|pid| top(all, root, *pid).is_some_and(|(pid, seen)| wanted(pid, seen))).collect()
}

/// Ends every process below `root`, but not `root`. First all are stopped, until no look finds another: what is
/// stopped cannot fork away.
pub(crate) fn end_below(root: i32) {
    end(|| branches(&processes(), root, |_, _| true));
}

/// Ends what fell to `own`, PID 1, because its keeper is gone: children that are nobody's, and all below them.
pub(crate) fn end_strays(own: i32, known: impl Fn(i32) -> bool) {
    end(|| branches(&processes(), own, |pid, _| !known(pid)));
}

/// Ends everything below `own`, PID 1, that is not of the others: below one of their processes, or an orphan of one of
/// their sessions. An orphan that began a session of its own is nobody's, and ends too. False when the box forks faster
/// than it can be looked at.
pub(crate) fn end_all_but(own: i32, others: impl Fn(i32) -> bool) -> bool {
    end(|| branches(&processes(), own, |pid, seen| !others(pid) && !others(seen.session)))
}

fn end(find: impl Fn() -> HashSet<i32>) -> bool {
    let mut stopped: HashSet<i32> = HashSet::new();
    for _ in 0..PASSES {
        let new: Vec<i32> = find().into_iter().filter(|pid| !stopped.contains(pid)).collect();
        if new.is_empty() {
            break;
        }
        for pid in new {
            send(pid, Signal::STOP);
            stopped.insert(pid);
        }
    }
    for pid in stopped {
        send(pid, Signal::KILL);
    }
    // One that another command woke may have forked meanwhile.
    for _ in 0..PASSES {
        let left = find();
        if left.is_empty() {
            return true;
        }
        for pid in left {
            send(pid, Signal::KILL);
        }
        std::thread::sleep(PAUSE);
    }
    false
}

fn send(pid: i32, signal: Signal) {
    // One that is gone needs no signal.
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = kill_process(pid, signal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(parent: i32, session: i32) -> Seen {
        Seen { parent, session, ended: false }
    }

    #[test]
    fn a_name_may_hold_anything() {
        let of_four = |ended| Seen { parent: 4, session: 13, ended };
        assert_eq!(seen("12 (a b) Z 7) S 4 12 13 0"), Some(of_four(false)));
        assert_eq!(seen("12 (sh) Z 4 12 13"), Some(of_four(true)));
        assert_eq!(seen("12 (sh) Z 4 12"), None);
        assert_eq!(seen("12 (sh"), None);
    }

    #[test]
    fn descendants_are_found_at_any_depth_and_the_ended_left_out() {
        let ended = Seen { ended: true, ..process(3, 2) };
        let all =
            [(2, process(1, 2)), (3, process(2, 2)), (4, process(3, 2)), (5, ended), (6, process(1, 6))];
        let below = |root| branches(&all.into(), root, |_, _| true);
        assert_eq!(below(2), HashSet::from([3, 4]));
        assert_eq!(below(6), HashSet::new());
    }

    #[test]
    fn an_orphan_is_of_the_session_it_stayed_in() {
        // 2 and 6 are commands; 4 and 7 are orphans of theirs, 9 left its session.
        let all = HashMap::from([
            (2, process(1, 2)),
            (3, process(2, 2)),
            (4, process(1, 2)),
            (6, process(1, 6)),
            (7, process(1, 6)),
            (8, process(7, 7)),
            (9, process(1, 9)),
        ]);
        let others = |pid| pid == 6;
        let found = branches(&all, 1, |pid, seen| !others(pid) && !others(seen.session));
        assert_eq!(found, HashSet::from([2, 3, 4, 9]));
    }
}
