//! Reading `/proc`: processes, namespaces of fields and the mount table.

use std::fs;

/// Every process number with a directory, listed or not: `hidepid` hides entries from
/// listings, so the low numbers are also tried by name.
pub(crate) fn process_ids() -> Vec<u32> {
    let mut found: Vec<u32> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str().and_then(|name| name.parse().ok()))
        .collect();
    found.extend((1..=1024).filter(|pid| crate::sys::lstat(format!("/proc/{pid}")).is_ok()));
    found.sort_unstable();
    found.dedup();
    found
}

/// The value of `field` in a status file such as `/proc/self/status`.
pub(crate) fn status_field(path: &str, field: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().find_map(|line| Some(line.strip_prefix(field)?.strip_prefix(':')?.trim().to_owned()))
}

/// Whether `pid` runs under another user than this process.
pub(crate) fn belongs_to_another(pid: u32) -> bool {
    let own = status_field("/proc/self/status", "Uid");
    let other = status_field(&format!("/proc/{pid}/status"), "Uid");
    other.is_some() && other != own
}

/// One line of mountinfo.
pub(crate) struct Mount {
    pub(crate) root: String,
    pub(crate) target: String,
    pub(crate) options: Vec<String>,
    pub(crate) tags: Vec<String>,
    pub(crate) kind: String,
    pub(crate) super_options: String,
}

impl Mount {
    fn parse(line: &str) -> Option<Self> {
        let (head, tail) = line.split_once(" - ")?;
        let head: Vec<&str> = head.split(' ').collect();
        let mut tail = tail.split(' ');
        Some(Self {
            root: (*head.get(3)?).to_owned(),
            target: (*head.get(4)?).to_owned(),
            options: head.get(5)?.split(',').map(str::to_owned).collect(),
            tags: head.iter().skip(6).map(|tag| (*tag).to_owned()).collect(),
            kind: tail.next()?.to_owned(),
            super_options: tail.nth(1).unwrap_or_default().to_owned(),
        })
    }

    pub(crate) fn has(&self, option: &str) -> bool {
        self.options.iter().any(|found| found == option)
    }
}

/// The mounts of this process, or none when the table cannot be read.
pub(crate) fn mounts() -> Vec<Mount> {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    text.lines().filter_map(Mount::parse).collect()
}
