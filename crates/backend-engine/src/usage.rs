//! The cgroups of a container, found through its init, for counters that no engine tells rightly.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, open};
use sandcrate_jail::cgroup::UsageReader;

/// The cgroups of one container.
#[derive(Debug)]
pub(crate) struct Cgroups {
    directories: Vec<PathBuf>,
}

impl Cgroups {
    /// Those of the container's init; what cannot be found is not told.
    pub(crate) fn of_process(pid: i32) -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        Self {
            directories: directories(&read(&format!("/proc/{pid}/cgroup")), &read("/proc/self/mountinfo")),
        }
    }

    /// Reads the counters of the box.
    pub(crate) fn usage(&self) -> UsageReader {
        UsageReader::new(self.directories.iter().filter_map(|directory| opened(directory)).collect())
    }

    /// Removes what an engine forgot to remove of a dead container: Podman leaves a cgroup now and then, when it is
    /// told to remove a container that has just ended. Only what bears the container's id, and is empty.
    pub(crate) fn clear(&self, container: &str) {
        let of_container = |directory: &&PathBuf| {
            directory.file_name().is_some_and(|name| name.to_string_lossy().contains(container))
        };
        for directory in self.directories.iter().filter(of_container) {
            let _ = fs::remove_dir(directory);
        }
    }
}

fn opened(directory: &Path) -> Option<OwnedFd> {
    open(directory, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()
}

/// Where every hierarchy is mounted, joined with the process's place in it: cgroups(7).
fn directories(own: &str, mounts: &str) -> Vec<PathBuf> {
    let mounted = |wanted: &str| {
        mounts.lines().find_map(|line| {
            let (front, back) = line.split_once(" - ")?;
            let mut back = back.split(' ');
            let (kind, options) = (back.next()?, back.nth(1)?);
            let fits = match wanted {
                "" => kind == "cgroup2",
                name => kind == "cgroup" && options.split(',').any(|option| option == name),
            };
            // Seen from its root only: a part of the tree has other paths.
            let mut front = front.split(' ').skip(3);
            let (root, point) = (front.next()?, front.next()?);
            (fits && root == "/").then(|| PathBuf::from(point))
        })
    };
    let places = own.lines().filter_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        Some(mounted(controllers.split(',').next()?)?.join(path.trim_start_matches('/')))
    });
    places.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_are_found() {
        let own = "9:memory:/docker/abc\n5:cpu,cpuacct:/docker/abc\n3:pids:/docker/abc\n0::/\n";
        let mounts = "30 24 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                      31 24 0:27 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n\
                      32 24 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let found = directories(own, mounts);
        assert_eq!(found[0], PathBuf::from("/sys/fs/cgroup/memory/docker/abc"));
        assert_eq!(
            found[1],
            PathBuf::from("/sys/fs/cgroup/pids/docker/abc"),
            "what is not mounted is left out"
        );
        let own = "0::/system.slice/docker-abc.scope\n";
        let mounts = "32 24 0:28 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
        assert_eq!(directories(own, mounts), [PathBuf::from("/sys/fs/cgroup/system.slice/docker-abc.scope")]);
    }
}
