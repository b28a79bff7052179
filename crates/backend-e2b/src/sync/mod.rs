//! Directories of the host in a sandbox: copies, brought up to date before a command and back after it.
//!
//! Both sides are known by what was last seen of each file, so only what changed travels, removals too. Everything
//! has a bound, and what is left out is said in the command's own output. A read-only directory is never copied back.
//! Names that come from a sandbox are taken for hostile: on the host they are opened below the shared directory,
//! and no link is followed.

mod host;
mod remote;
mod report;
mod share;

use std::path::PathBuf;

use sandcrate_backend::{BackendError, LimitHit, Mount};
use tokio::sync::Mutex;

use crate::envd::Envd;
use crate::places::Places;

pub(crate) use report::Report;
use share::Share;

/// Files, directories and links of one share.
const MAX_ENTRIES: usize = 2048;
/// Of one file.
const FILE_BYTES: u64 = 10 << 20;
/// Of all files of one share.
const TOTAL_BYTES: u64 = 256 << 20;

/// All directories that a session shares.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    /// One exchange at a time: two would undo each other's work. The outer ones first.
    shares: Mutex<Vec<Share>>,
    /// Where they are, in the box.
    targets: Vec<String>,
    /// What has to be there for them: a file is put into a directory.
    directories: Vec<String>,
}

impl Shares {
    /// Opens and checks the directories. Blocks.
    pub(crate) fn open(mounts: &[Mount], own_state: &[PathBuf]) -> Result<Self, BackendError> {
        let mut shares =
            mounts.iter().map(|mount| Share::open(mount, own_state)).collect::<Result<Vec<_>, _>>()?;
        shares.sort_by(|one, other| one.target.cmp(&other.target));
        let targets: Vec<String> = shares.iter().map(|share| share.target.clone()).collect();
        for share in &mut shares {
            share.hide(&targets);
        }
        let directories = shares.iter().map(Share::directory).collect();
        Ok(Self { shares: Mutex::new(shares), targets, directories })
    }

    pub(crate) fn directories(&self) -> &[String] {
        &self.directories
    }

    pub(crate) fn targets(&self) -> &[String] {
        &self.targets
    }

    /// Where the directories lie in the sandbox.
    pub(crate) async fn place(&self, places: &Places) {
        for share in self.shares.lock().await.iter_mut() {
            share.remote = places.remote(&share.target);
        }
    }

    /// Brings the sandbox up to date.
    pub(crate) async fn push(&self, envd: &Envd) -> Result<Report, BackendError> {
        let mut report = Report::default();
        if self.targets.is_empty() {
            return Ok(report);
        }
        for share in self.shares.lock().await.iter_mut() {
            share.push(envd, &mut report).await?;
        }
        Ok(report)
    }

    /// Brings the host up to date; and the first quota that is overrun.
    pub(crate) async fn pull(&self, envd: &Envd) -> Result<(Report, Option<LimitHit>), BackendError> {
        let (mut report, mut over) = (Report::default(), None);
        if self.targets.is_empty() {
            return Ok((report, over));
        }
        for share in self.shares.lock().await.iter_mut() {
            let hit = share.pull(envd, &mut report).await?;
            over = over.or(hit);
        }
        Ok((report, over))
    }
}
