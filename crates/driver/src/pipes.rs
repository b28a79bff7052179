//! The pipes of commands: made for one, or made ahead while another runs.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use rustix::fs::{Gid, Uid, fchown};
use rustix::pipe::{PipeFlags, pipe_with};
use sandcrate_backend::StdinMode;

use crate::fd_io::FdIo;
use crate::lock::lock;
use crate::streams::{Output, Streams};

/// The program's ends.
#[derive(Debug)]
pub struct Pipes {
    stdin: OwnedFd,
    stdout: OwnedFd,
    stderr: OwnedFd,
}

impl Pipes {
    pub fn fds(&self) -> [BorrowedFd<'_>; 3] {
        [self.stdin.as_fd(), self.stdout.as_fd(), self.stderr.as_fd()]
    }
}

/// Makes the pipes of a box's commands.
#[derive(Debug, Default)]
pub struct PipeMaker {
    /// Where it is not the daemon's user.
    owner: Option<(u32, u32)>,
    spare: Option<Arc<SparePipes>>,
}

impl PipeMaker {
    pub fn new(owner: Option<(u32, u32)>) -> Self {
        Self { owner, spare: None }
    }

    /// With a stock that all boxes of a backend share.
    pub fn with_spare(owner: Option<(u32, u32)>, spare: Arc<SparePipes>) -> Self {
        Self { owner, spare: Some(spare) }
    }

    /// The program's ends and ours.
    pub fn make(&self, stdin_mode: StdinMode) -> io::Result<(Pipes, Streams)> {
        let ready = self.spare.as_ref().and_then(|spare| lock(&spare.next).take());
        let PipeSet { theirs, stdin, stdout, stderr, .. } = match ready {
            Some(set) if set.owner == self.owner => set,
            _ => PipeSet::make(self.owner)?,
        };
        // Dropped here, it is the end of file.
        let stdin = (stdin_mode == StdinMode::Piped).then_some(stdin);
        Ok((theirs, Streams::by_pipes(stdin.map(FdIo::new).transpose()?, stdout, stderr)))
    }

    /// For the next command, and in place of the last one's, while there is time. Without descriptors to spare the next
    /// one makes its own, or says why it cannot.
    pub(crate) fn restock(&self) {
        let Some(SparePipes { next, last }) = self.spare.as_deref() else { return };
        // Closed when no lock is held, here and below.
        let ended = lock(last).take();
        drop(ended);
        if lock(next).is_none()
            && let Ok(made) = PipeSet::make(self.owner)
        {
            let beaten = lock(next).replace(made);
            drop(beaten);
        }
    }

    /// What a command left, whose caller waits for something else. A terminal is hung up at once: somebody may sit there.
    pub(crate) fn retire(&self, streams: Streams) {
        if let Some(SparePipes { last, .. }) = self.spare.as_deref()
            && !streams.on_terminal()
        {
            let before = lock(last).replace(streams);
            drop(before);
        }
    }
}

/// Pipes that wait for a command, and those that wait to be closed. Both take as long as all else that is done for a
/// command outside its box; while it starts there is nothing to do. One set is enough: who starts many at once has no
/// time to wait in. No two commands ever have the same.
#[derive(Debug, Default)]
pub struct SparePipes {
    next: Mutex<Option<PipeSet>>,
    last: Mutex<Option<Streams>>,
}

/// Three pipes that no command has yet.
#[derive(Debug)]
struct PipeSet {
    owner: Option<(u32, u32)>,
    theirs: Pipes,
    stdin: OwnedFd,
    stdout: Output,
    stderr: Output,
}

impl PipeSet {
    fn make(owner: Option<(u32, u32)>) -> io::Result<Self> {
        let pipe = || -> io::Result<_> {
            let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
            if let Some((uid, gid)) = owner {
                // Or the program could not open /dev/stdout again.
                fchown(&read, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
            }
            Ok((read, write))
        };
        let (stdin, stdin_write) = pipe()?;
        let (stdout_read, stdout) = pipe()?;
        let (stderr_read, stderr) = pipe()?;
        let output = |read, write: &OwnedFd| -> io::Result<_> {
            Ok(Output { io: Arc::new(FdIo::new(read)?), held: Some(write.try_clone()?) })
        };
        let (ours_out, ours_err) = (output(stdout_read, &stdout)?, output(stderr_read, &stderr)?);
        let theirs = Pipes { stdin, stdout, stderr };
        Ok(Self { owner, theirs, stdin: stdin_write, stdout: ours_out, stderr: ours_err })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inodes(pipes: &Pipes) -> [u64; 3] {
        pipes.fds().map(|fd| rustix::fs::fstat(fd).unwrap().st_ino)
    }

    #[tokio::test]
    async fn a_command_gets_what_was_made_ahead_and_nobody_gets_it_again() {
        let maker = PipeMaker::with_spare(None, Arc::default());
        maker.restock();
        let ahead = lock(&maker.spare.as_ref().unwrap().next).as_ref().map(|set| inodes(&set.theirs));
        let (first, _ours) = maker.make(StdinMode::Closed).unwrap();
        assert_eq!(Some(inodes(&first)), ahead);
        let (second, _ours) = maker.make(StdinMode::Closed).unwrap();
        assert!(inodes(&second).iter().all(|inode| !inodes(&first).contains(inode)));
    }

    #[tokio::test]
    async fn pipes_of_another_owner_are_not_taken() {
        let spare = Arc::new(SparePipes::default());
        let user = rustix::process::getuid().as_raw();
        let group = rustix::process::getgid().as_raw();
        let (mine, nobodys) = (Some((user, group)), None);
        PipeMaker::with_spare(nobodys, Arc::clone(&spare)).restock();
        let ahead = lock(&spare.next).as_ref().map(|set| inodes(&set.theirs));
        let (made, _ours) = PipeMaker::with_spare(mine, spare).make(StdinMode::Piped).unwrap();
        assert_ne!(Some(inodes(&made)), ahead);
    }

    #[tokio::test]
    async fn what_a_command_left_is_closed_when_the_next_one_starts() {
        let maker = PipeMaker::with_spare(None, Arc::default());
        let (theirs, ours) = maker.make(StdinMode::Closed).unwrap();
        maker.retire(ours);
        rustix::io::write(&theirs.stdout, b"x").unwrap();
        maker.restock();
        assert_eq!(rustix::io::write(&theirs.stdout, b"x").unwrap_err(), rustix::io::Errno::PIPE);
    }
}
