//! Who is who: the ids of a box, and which ids of the host stand behind them.
//!
//! As root, every box has the same 65536 host ids from 0x7000_0000 up, far from what distributions hand out.
//! Boxes are kept apart by their namespaces, not by different ids, so files on disk have one owner whatever box
//! made them and the root template is mapped once. Host uid 0 stands behind no id of a box. An ordinary user
//! has one id to give, its own.

use rustix::process::{Gid, Uid};
use serde::{Deserialize, Serialize};

/// First host id of boxes made by root.
pub const HOST_BASE: u32 = 0x7000_0000;
/// How many ids a box made by root has.
pub const ID_COUNT: u32 = 1 << 16;
/// The box's ordinary user.
pub const BOX_USER: u32 = 1000;
/// PID 1. Not an id that commands ever have, so that no command can signal, trace or limit it.
pub const INIT_USER: u32 = 65533;

/// The network helper of a daemon that is root: next to the boxes' ids, and none of them.
pub const HELPER_ID: u32 = HOST_BASE + ID_COUNT;

/// How ids of a box become ids of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum IdMapping {
    /// A range of its own: made by root.
    Range,
    /// The one id of the user who made it.
    Single { uid: u32, gid: u32 },
}

impl IdMapping {
    /// What the current user can do.
    pub fn for_this_user() -> Self {
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        if uid.is_root() { Self::Range } else { Self::Single { uid: uid.as_raw(), gid: gid.as_raw() } }
    }

    pub fn is_rootless(self) -> bool {
        self != Self::Range
    }

    /// The host id of a box id.
    pub fn host_uid(self, id: u32) -> u32 {
        match self {
            Self::Range => HOST_BASE + id,
            Self::Single { uid, .. } => uid,
        }
    }

    pub fn host_gid(self, id: u32) -> u32 {
        match self {
            Self::Range => HOST_BASE + id,
            Self::Single { gid, .. } => gid,
        }
    }

    /// Lines for /proc/PID/uid_map and gid_map of a box whose commands are `user`.
    pub fn proc_maps(self, user: u32) -> (String, String) {
        match self {
            Self::Range => {
                let map = format!("0 {HOST_BASE} {ID_COUNT}\n");
                (map.clone(), map)
            }
            Self::Single { uid, gid } => (format!("{user} {uid} 1\n"), format!("{user} {gid} 1\n")),
        }
    }

    /// PID 1's id: its own where there is more than one.
    pub fn init_user(self) -> u32 {
        match self {
            Self::Range => INIT_USER,
            Self::Single { .. } => BOX_USER,
        }
    }
}

/// The map of an id-mapped mount that shows `owner` (an id on disk) as the box's `user`, and every other id of
/// the range as itself; the id that `user` displaces takes the owner's place. Lines of /proc/PID/uid_map:
/// id on disk, host id, count.
pub fn mount_map(owner: u32, user: u32) -> String {
    let mut ranges: Vec<(u32, u32, u32)> = Vec::new();
    let mut push = |disk: u32, shown: u32, count: u32| {
        if count > 0 {
            ranges.push((disk, HOST_BASE + shown, count));
        }
    };
    if owner >= ID_COUNT {
        push(0, 0, user);
        push(user + 1, user + 1, ID_COUNT - user - 1);
        push(owner, user, 1);
    } else {
        let (low, high) = (owner.min(user), owner.max(user));
        push(0, 0, low);
        if low == high {
            push(low, low, 1);
        } else {
            push(low, high, 1);
            push(low + 1, low + 1, high - low - 1);
            push(high, low, 1);
        }
        push(high + 1, high + 1, ID_COUNT - high - 1);
    }
    ranges.iter().map(|(disk, host, count)| format!("{disk} {host} {count}\n")).collect()
}

/// Sets all three user and group ids of this process.
pub fn become_ids(uid: u32, gid: u32) -> rustix::io::Result<()> {
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    rustix::thread::set_thread_res_uid(uid, uid, uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where the map sends an id on disk, as an id of the box.
    fn shown(map: &str, disk: u32) -> Option<u32> {
        map.lines().find_map(|line| {
            let n: Vec<u32> = line.split(' ').map(|part| part.parse().unwrap()).collect();
            (n[0]..n[0] + n[2]).contains(&disk).then(|| n[1] - HOST_BASE + disk - n[0])
        })
    }

    #[test]
    fn the_owner_is_the_box_user_and_everybody_else_keeps_an_id_of_his_own() {
        for (owner, user) in
            [(0, 1000), (1000, 1000), (501, 1000), (65535, 0), (0, 0), (1001, 1000), (999, 1000)]
        {
            let map = mount_map(owner, user);
            assert_eq!(shown(&map, owner), Some(user), "{owner} -> {user}");
            let mut seen: Vec<_> = (0..ID_COUNT).filter_map(|id| shown(&map, id)).collect();
            seen.sort_unstable();
            seen.dedup();
            assert_eq!(seen.len() as u32, ID_COUNT, "a permutation for {owner} -> {user}");
        }
    }

    #[test]
    fn an_owner_outside_the_range_displaces_only_the_box_user() {
        let map = mount_map(1_000_000, 1000);
        assert_eq!(shown(&map, 1_000_000), Some(1000));
        assert_eq!(shown(&map, 1000), None);
        assert_eq!(shown(&map, 0), Some(0));
        assert_eq!(shown(&map, 65535), Some(65535));
    }

    #[test]
    fn host_root_stands_behind_no_id_of_a_box() {
        let (uids, gids) = IdMapping::Range.proc_maps(BOX_USER);
        assert_eq!(uids, "0 1879048192 65536\n");
        assert_eq!(uids, gids);
        assert_eq!(
            IdMapping::Single { uid: 501, gid: 20 }.proc_maps(1000),
            ("1000 501 1\n".into(), "1000 20 1\n".into())
        );
    }
}
