//! The OOM score of commands where they cannot raise their own.
//!
//! Commands are the first to go when a box is out of memory. Made by root, a command raises its score while it still
//! has init's id. An ordinary user's commands have init's id for good, and one that opened its /proc/self would be
//! open to the others: there init raises its own score for the moment of the fork, and the command inherits it.

use std::fs::File;
use std::io::{self, Read, Write};

/// Of commands.
pub(super) const RAISED: i32 = 500;

#[derive(Debug)]
pub(super) struct OomScore {
    file: File,
    /// Never negative: a privileged write would let all descendants go down to it.
    own: i32,
}

impl OomScore {
    /// Possible only until init closes itself to tracers: then its /proc/self is not its own any more.
    pub(super) fn open() -> io::Result<Self> {
        let mut file = File::options().read(true).write(true).open("/proc/self/oom_score_adj")?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let own = text.trim().parse::<i32>().map_err(io::Error::other)?;
        Ok(Self { file, own: own.max(0) })
    }

    /// Before a fork.
    pub(super) fn raise(&self) -> io::Result<()> {
        self.set(self.own.max(RAISED))
    }

    /// After it, in init only.
    pub(super) fn lower(&self) -> io::Result<()> {
        self.set(self.own)
    }

    fn set(&self, score: i32) -> io::Result<()> {
        // One write(2), which is what the file takes.
        (&self.file).write_all(score.to_string().as_bytes())
    }
}
