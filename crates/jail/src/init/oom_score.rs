//! The OOM score of commands.
//!
//! Commands are the first to go when a box is out of memory. A command would have to be open to tracers to raise its own
//! score, so init raises its own for the moment of the fork, and the command inherits it.

use std::fs::File;
use std::io::{self, Read, Write};

use rustix::process::{DumpableBehavior, dumpable_behavior, set_dumpable_behavior};

/// Of commands.
const RAISED: i32 = 500;

#[derive(Debug)]
pub(super) struct OomScore {
    file: File,
    /// Never negative: a privileged write would let all descendants go down to it.
    own: i32,
}

impl OomScore {
    /// For as long as nothing else runs in the box: what the file belongs to us by also lets others look into us.
    pub(super) fn open() -> io::Result<Self> {
        let open = || File::options().read(true).write(true).open("/proc/self/oom_score_adj");
        let mut file = if dumpable_behavior()? == DumpableBehavior::Dumpable {
            open()?
        } else {
            set_dumpable_behavior(DumpableBehavior::Dumpable)?;
            let opened = open();
            set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
            opened?
        };
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let own = text.trim().parse::<i32>().map_err(io::Error::other)?;
        Ok(Self { file, own: own.max(0) })
    }

    /// Before a fork.
    pub(super) fn raise(&self) -> io::Result<()> {
        self.set(self.own.max(RAISED))
    }

    /// After it, for init alone. A command has what it inherited, whatever becomes of this.
    pub(super) fn lower(&self) {
        let _ = self.set(self.own);
    }

    fn set(&self, score: i32) -> io::Result<()> {
        // One write(2), which is what the file takes.
        (&self.file).write_all(score.to_string().as_bytes())
    }
}
