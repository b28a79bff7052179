//! Who descends from whom in the box, and the end of such a tree.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// A tree that still grows after so many looks is left to the next kill.
const PASSES: u32 = 200;
/// What is killed takes a moment to go.
const PAUSE: Duration = Duration::from_millis(1);

/// Every process of the box: its parent, and whether it has ended.
fn processes() -> HashMap<i32, (i32, bool)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter_map(|pid| Some((pid, parent(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?)))
        .collect()
}

/// The parent's pid and whether the process is a zombie, from proc_pid_stat(5). The name may hold anything, so the
/// fields are counted from its end.
fn parent(stat: &str) -> Option<(i32, bool)> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    Some((fields.next()?.parse().ok()?, state == "Z" || state == "X"))
}

/// Living descendants of the roots; of the roots themselves those that `wanted` names.
fn below(all: &HashMap<i32, (i32, bool)>, is_root: impl Fn(i32) -> bool) -> HashSet<i32> {
    let descends = |start: i32| {
        let mut pid = start;
        // No chain is longer than there are processes.
        for _ in 0..all.len() {
            let Some((parent, _)) = all.get(&pid) else { return false };
            if is_root(*parent) {
                return true;
            }
            pid = *parent;
        }
        false
    };
    all.iter().filter(|(_, (_, ended))| !ended).map(|(pid, _)| *pid).filter(|pid| descends(*pid)).collect()
}

/// Ends every process below `root`, but not `root`. First all are stopped, until no look finds another: what is
/// stopped cannot fork away.
pub(super) fn end_below(root: i32) {
    end(|| below(&processes(), |pid| pid == root));
}

/// Ends what fell to `own`, PID 1, because its keeper is gone: children that are nobody's, and all below them.
pub(super) fn end_strays(own: i32, known: impl Fn(i32) -> bool) {
    end(|| {
        let all = processes();
        let strays: HashSet<i32> = all
            .iter()
            .filter(|(pid, (parent, ended))| *parent == own && !ended && !known(**pid))
            .map(|(pid, _)| *pid)
            .collect();
        let mut found = below(&all, |pid| strays.contains(&pid));
        found.extend(strays);
        found
    });
}

fn end(find: impl Fn() -> HashSet<i32>) {
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
            return;
        }
        for pid in left {
            send(pid, Signal::KILL);
        }
        std::thread::sleep(PAUSE);
    }
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

    #[test]
    fn a_name_may_hold_anything() {
        assert_eq!(parent("12 (a b) Z 7) S 4 12 12 0"), Some((4, false)));
        assert_eq!(parent("12 (sh) Z 4 12"), Some((4, true)));
        assert_eq!(parent("12 (sh"), None);
    }

    #[test]
    fn descendants_are_found_at_any_depth_and_the_ended_left_out() {
        let all: HashMap<_, _> =
            [(2, (1, false)), (3, (2, false)), (4, (3, false)), (5, (3, true)), (6, (1, false))].into();
        assert_eq!(below(&all, |pid| pid == 2), HashSet::from([3, 4]));
        assert_eq!(below(&all, |pid| pid == 6), HashSet::new());
    }
}
