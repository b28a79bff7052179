//! A look from inside: whether a box holds what others are to rely on.
//!
//! A box is made as theirs are, only smaller, and a script in it tries to get past every bound. What is reported is
//! what it came to, never what a backend believes of itself alone.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use sandcrate_protocol::{Control, Enforcement};

use crate::{Backend, BackendError, ExecRequest, SessionSpec};

/// One thing that a box is examined for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Promise {
    /// Memory, processes and processor time are held by cgroup v2 alone.
    CgroupV2,
    /// No namespace is shared with us.
    Namespaces,
    /// Directories of the host that were not asked for are not to be seen.
    Mounts,
    /// There is no way out.
    Network,
    /// The workspace takes no more bytes than its quota.
    WorkspaceQuota,
    /// The workspace takes no more files than its quota.
    InodeQuota,
    /// What is mounted read-only cannot be changed.
    ReadOnlyMounts,
    /// Everything else that can be written has a bound of its own.
    EphemeralStorage,
}

impl Promise {
    pub const ALL: [Self; 8] = [
        Self::CgroupV2,
        Self::Namespaces,
        Self::Mounts,
        Self::Network,
        Self::WorkspaceQuota,
        Self::InodeQuota,
        Self::ReadOnlyMounts,
        Self::EphemeralStorage,
    ];
}

/// What is made for an examination, and what is looked for in it.
#[derive(Debug, Clone)]
pub struct Examination {
    /// The workspace is mounted at its `workspace`, with `workspace_bytes` as its quota.
    pub spec: SessionSpec,
    pub workspace_bytes: u64,
    /// The most files that it may take.
    pub workspace_inodes: u64,
    /// Where something with a file [`Self::KEPT`] is mounted read-only.
    pub read_only: String,
    /// No other place may take so much.
    pub ephemeral_bytes: u64,
    /// Paths of the host that a box must not see.
    pub hidden: Vec<PathBuf>,
}

impl Examination {
    /// The file in the directory that is mounted read-only.
    pub const KEPT: &str = "kept";
}

/// What held, and why the rest did not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Examined {
    findings: BTreeMap<Promise, Result<(), String>>,
}

impl Examined {
    /// Nothing holds, for one reason.
    pub fn nothing(why: &str) -> Self {
        Self { findings: Promise::ALL.into_iter().map(|promise| (promise, Err(why.to_owned()))).collect() }
    }

    /// Everything does.
    pub fn everything() -> Self {
        Self { findings: Promise::ALL.into_iter().map(|promise| (promise, Ok(()))).collect() }
    }

    pub fn set(&mut self, promise: Promise, found: Result<(), String>) {
        self.findings.insert(promise, found);
    }

    /// Why it does not hold, if so.
    pub fn broken(&self, promise: Promise) -> Option<&str> {
        match self.findings.get(&promise) {
            Some(Ok(())) => None,
            Some(Err(why)) => Some(why),
            None => Some("it was not looked at"),
        }
    }
}

/// Namespaces that a box must not share.
const NAMESPACES: [&str; 7] = ["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"];
/// For the whole script; it takes a fraction of a second.
const LIMIT: Duration = Duration::from_secs(60);
const OUTPUT_BYTES: usize = 64 << 10;

/// Arguments: the workspace, the read-only directory, bytes to try in the workspace, bytes to try elsewhere, files to
/// try, then hidden paths. A fact is a line of words; a path is the last of them.
const SCRIPT: &str = r#"work=$1 ro=$2 bytes=$3 elsewhere=$4 files=$5
shift 5
for n in cgroup ipc mnt net pid user uts; do echo "ns $n $(readlink /proc/self/ns/$n)"; done
while read -r line; do echo "cgroup $line"; done </proc/self/cgroup
while read -r name rest; do case $name in *:*) echo "interface ${name%%:*}";; esac; done </proc/net/dev
for path in "$@"; do if [ -e "$path" ]; then echo "visible $path"; fi; done
fill() {
  head -c "$1" /dev/zero >"$2/.fill" 2>/dev/null
  if [ -f "$2/.fill" ]; then echo "$3 $(stat -c %s "$2/.fill") $2"; rm -f "$2/.fill"; fi
}
fill "$bytes" "$work" workspace
mkdir "$work/.files" && i=0
while [ "$i" -lt "$files" ] && true 2>/dev/null >"$work/.files/$i"; do i=$((i+1)); done
echo "files $i"
rm -rf "$work/.files"
if true 2>/dev/null >"$ro/new" || rm "$ro/kept" 2>/dev/null || chmod 777 "$ro/kept" 2>/dev/null; then echo changed; fi
[ -e "$ro/kept" ] && echo kept
while read -r a b c d place rest; do
  case $place in "$work"|"$ro"|/proc|/proc/*|/sys|/sys/*) ;; *) [ -d "$place" ] && fill "$elsewhere" "$place" place;; esac
done </proc/self/mountinfo
echo done
"#;

/// Makes the box, asks it, and ends it. Whoever drops this may leave the box behind.
pub(crate) async fn examine<B: Backend + ?Sized>(
    backend: &B,
    examination: &Examination,
) -> Result<Examined, BackendError> {
    let info = backend.start(examination.spec.clone()).await?;
    let asked = ask(backend, examination).await;
    backend.stop(&examination.spec.id).await?;
    Ok(judge(examination, &info.enforcement, &asked?))
}

async fn ask<B: Backend + ?Sized>(
    backend: &B,
    examination: &Examination,
) -> Result<Vec<String>, BackendError> {
    let Examination { spec, workspace_bytes, workspace_inodes, ephemeral_bytes, read_only, hidden } =
        examination;
    // More than there may be, by enough to tell.
    let numbers = [workspace_bytes * 2, ephemeral_bytes * 2, workspace_inodes * 2].map(|n| n.to_string());
    let mut argv = vec!["sh".into(), "-c".into(), SCRIPT.into(), "sh".into()];
    argv.extend([spec.workspace.clone().into(), read_only.into()]);
    argv.extend(numbers.map(Into::into));
    argv.extend(hidden.iter().map(|path| path.clone().into_os_string()));
    let request = ExecRequest::argv(argv).cwd("/".to_owned()).timeout(LIMIT);
    let collected = backend.exec(&spec.id, request).await?.collect(OUTPUT_BYTES).await?;
    Ok(String::from_utf8_lossy(&collected.stdout).lines().map(str::to_owned).collect())
}

/// The first words of lines that begin with a word.
fn told<'a>(lines: &'a [String], word: &'static str) -> impl Iterator<Item = &'a str> {
    lines.iter().filter_map(move |line| line.strip_prefix(word)?.strip_prefix(' '))
}

fn judge(examination: &Examination, record: &Enforcement, lines: &[String]) -> Examined {
    if lines.last().map(String::as_str) != Some("done") {
        return Examined::nothing("the script in the box did not come to its end");
    }
    let held = |controls: &[Control]| match controls.iter().find(|control| !record.holds(**control)) {
        None => Ok(()),
        Some(control) => {
            let by = record.get(*control).map_or("nothing is known of it", |finding| &finding.by);
            Err(format!("{control}: {by}"))
        }
    };
    let mut examined = Examined { findings: BTreeMap::new() };
    examined.set(
        Promise::CgroupV2,
        held(&[Control::Memory, Control::Pids, Control::Cpu]).and_then(|()| cgroup_v2(lines)),
    );
    examined.set(Promise::Namespaces, held(&[Control::Namespaces]).and_then(|()| namespaces(lines)));
    let seen = told(lines, "visible").next().map(|path| format!("the box sees {path} of the host"));
    examined.set(Promise::Mounts, held(&[Control::Filesystem]).and_then(|()| seen.map_or(Ok(()), Err)));
    let other = told(lines, "interface").find(|name| *name != "lo");
    let other = other.map(|name| format!("the box has a network interface {name}"));
    examined.set(Promise::Network, held(&[Control::Network]).and_then(|()| other.map_or(Ok(()), Err)));
    examined.set(Promise::WorkspaceQuota, workspace_quota(examination, lines));
    examined.set(Promise::InodeQuota, inode_quota(examination, lines));
    let changed = lines.iter().any(|line| line == "changed") || !lines.iter().any(|line| line == "kept");
    let changed = changed.then(|| "what is mounted read-only could be changed".to_owned());
    examined.set(Promise::ReadOnlyMounts, changed.map_or(Ok(()), Err));
    examined.set(
        Promise::EphemeralStorage,
        held(&[Control::Disk, Control::Tmpfs]).and_then(|()| ephemeral_storage(examination, lines)),
    );
    examined
}

fn cgroup_v2(lines: &[String]) -> Result<(), String> {
    let mut cgroups = told(lines, "cgroup");
    match (cgroups.next(), cgroups.next()) {
        (Some(only), None) if only.starts_with("0::") => Ok(()),
        (None, _) => Err("the box is in no cgroup".to_owned()),
        _ => Err("limits are held by cgroup v1; boot with systemd.unified_cgroup_hierarchy=1".to_owned()),
    }
}

/// Compared with those of this process.
fn namespaces(lines: &[String]) -> Result<(), String> {
    for name in NAMESPACES {
        let theirs = told(lines, "ns").find_map(|fact| fact.strip_prefix(name)?.strip_prefix(' '));
        let theirs = theirs.filter(|link| !link.is_empty());
        let theirs = theirs.ok_or_else(|| format!("the box does not know its {name} namespace"))?;
        let ours = std::fs::read_link(format!("/proc/self/ns/{name}"))
            .map_err(|error| format!("our own {name} namespace cannot be looked at: {error}"))?;
        if ours.as_os_str() == theirs {
            return Err(format!("the box shares the {name} namespace of this process"));
        }
    }
    Ok(())
}

fn workspace_quota(examination: &Examination, lines: &[String]) -> Result<(), String> {
    let limit = examination.workspace_bytes;
    let took = told(lines, "workspace").next().and_then(|fact| fact.split(' ').next()?.parse::<u64>().ok());
    match took {
        Some(bytes) if bytes > limit => {
            Err(format!("the workspace took {bytes} bytes with a quota of {limit}; {PROJECT_QUOTA}"))
        }
        // One that takes hardly anything is full for another reason.
        Some(bytes) if bytes >= limit / 2 => Ok(()),
        Some(bytes) => Err(format!("the workspace took {bytes} bytes and should take {limit}")),
        None => Err("the workspace cannot be written".to_owned()),
    }
}

const PROJECT_QUOTA: &str = "its file system needs project quotas (ext4 or xfs, mounted with prjquota)";

fn inode_quota(examination: &Examination, lines: &[String]) -> Result<(), String> {
    let limit = examination.workspace_inodes;
    match told(lines, "files").next().and_then(|count| count.parse::<u64>().ok()) {
        Some(files) if files > limit => {
            Err(format!("the workspace took {files} files with a quota of {limit}; {PROJECT_QUOTA}"))
        }
        Some(files) if files >= limit / 2 => Ok(()),
        Some(files) => Err(format!("the workspace took {files} files and should take {limit}")),
        None => Err("files of the workspace could not be counted".to_owned()),
    }
}

fn ephemeral_storage(examination: &Examination, lines: &[String]) -> Result<(), String> {
    let limit = examination.ephemeral_bytes;
    for fact in told(lines, "place") {
        let (bytes, place) = fact.split_once(' ').unwrap_or((fact, "a place"));
        if bytes.parse::<u64>().map_or(true, |bytes| bytes > limit) {
            return Err(format!("{place} took {bytes} bytes and should take {limit}"));
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "examine_tests.rs"]
mod tests;
