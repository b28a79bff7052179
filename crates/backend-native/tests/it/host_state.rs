//! What the host has: processes, mounts, cgroups, loop devices, descriptors and memory, counted without any help of
//! Sandcrate's own.

use std::fs;
use std::path::{Path, PathBuf};

/// Resident memory of a process.
pub(crate) fn resident_bytes(pid: u32) -> Result<u64, String> {
    let path = format!("/proc/{pid}/status");
    let status = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.map(|kib| kib << 10).ok_or_else(|| format!("{path} has no VmRSS"))
}

/// Live processes, zombies apart, with the text in their command line.
pub(crate) fn processes_with(marker: &str) -> Result<Vec<u32>, String> {
    let has = |pid: &u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.windows(marker.len()).any(|window| window == marker.as_bytes())
    };
    Ok(process_ids()?.into_iter().filter(has).collect())
}

pub(crate) fn process_ids() -> Result<Vec<u32>, String> {
    let entries = fs::read_dir("/proc").map_err(|error| format!("/proc: {error}"))?;
    Ok(entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

/// (pid, parent) of every process, zombies too.
fn parents() -> Result<Vec<(u32, u32)>, String> {
    let parent = |pid: u32| {
        // `pid (name) state parent …`; the name may hold anything, so its end is the last bracket.
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        Some((pid, stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?))
    };
    Ok(process_ids()?.into_iter().filter_map(parent).collect())
}

pub(crate) fn children(root: u32) -> Result<Vec<u32>, String> {
    Ok(parents()?.into_iter().filter(|(_, parent)| *parent == root).map(|(pid, _)| pid).collect())
}

/// All processes below one, itself apart.
pub(crate) fn descendants(root: u32) -> Result<Vec<u32>, String> {
    let parents = parents()?;
    let (mut found, mut pending) = (Vec::new(), vec![root]);
    while let Some(above) = pending.pop() {
        let below = parents.iter().filter(|(_, parent)| *parent == above).map(|(pid, _)| *pid);
        pending.extend(below.clone());
        found.extend(below);
    }
    Ok(found)
}

/// Open descriptors of a process.
pub(crate) fn descriptors(pid: u32) -> Result<usize, String> {
    let path = format!("/proc/{pid}/fd");
    fs::read_dir(&path).map(Iterator::count).map_err(|error| format!("{path}: {error}"))
}

/// Lines of a process's mount table.
pub(crate) fn mounts(pid: u32) -> Result<Vec<String>, String> {
    let path = format!("/proc/{pid}/mountinfo");
    let table = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    Ok(table.lines().map(str::to_owned).collect())
}

/// Loop devices whose file lies below a directory, deleted or not.
pub(crate) fn loop_devices_of(directory: &Path) -> Result<Vec<String>, String> {
    let entries = fs::read_dir("/sys/block").map_err(|error| format!("/sys/block: {error}"))?;
    let backing = |name: &str| fs::read_to_string(format!("/sys/block/{name}/loop/backing_file")).ok();
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    Ok(names
        .filter(|name| backing(name).is_some_and(|file| Path::new(&file).starts_with(directory)))
        .collect())
}

/// Cgroups of instances of Sandcrate, in every hierarchy.
pub(crate) fn cgroups_of(instance: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut pending = vec![(PathBuf::from("/sys/fs/cgroup"), 0)];
    while let Some((directory, depth)) = pending.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let ours = entry
                .file_name()
                .to_str()
                .is_some_and(|name| name.starts_with(&format!("sandcrate-{instance}")));
            if ours {
                found.push(entry.path());
            }
            if ours || depth < 6 {
                pending.push((entry.path(), depth + 1));
            }
        }
    }
    // Boxes below an instance's directory count too.
    let below: Vec<PathBuf> = found.iter().flat_map(|directory| directories_in(directory)).collect();
    found.into_iter().chain(below).collect()
}

/// Private storage directories of the boxes of every instance below a state directory.
pub(crate) fn storage_directories(state: &Path) -> Result<Vec<PathBuf>, String> {
    let launchers = instances(state)?.into_iter().flat_map(|instance| directories_in(&instance));
    Ok(launchers.flat_map(|launcher| directories_in(&launcher.join("boxes"))).collect())
}

/// Directories of the instances below a state directory.
pub(crate) fn instances(state: &Path) -> Result<Vec<PathBuf>, String> {
    let path = state.join("instances");
    fs::read_dir(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(directories_in(&path))
}

pub(crate) fn directories_in(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}
