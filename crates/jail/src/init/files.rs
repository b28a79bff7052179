//! File operations of the API, in a worker with the identity, the root and the filter of a command: whatever a
//! path leads to, it is no more than the box's own user could reach.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use sandcrate_sys::fd::close_on_exec_from_3;
use sandcrate_sys::process::exit_now;
use sandcrate_sys::seccomp::Instruction;

use super::command::{Identity, take_identity};
use super::path_walk::make_directories;
use crate::channel::Channel;
use crate::message::{Failure, FileFacts, FileOperation, FileOutcome, InitReply, Placement, Step};

/// Of names and targets of links in one listing: half of what a message may have, with room for the rest of it.
const MAX_LISTING: usize = 32 << 20;

/// The worker's life. `data` is a pipe: written by a read, read by a write.
pub(super) fn work(
    id: u32,
    operation: &FileOperation,
    data: Option<OwnedFd>,
    identity: Identity,
    filter: &[Instruction],
    control: &Channel,
) -> ! {
    let outcome = become_user(identity, filter).and_then(|()| perform(operation, data));
    let _ = control.send(&InitReply::FileDone { id, outcome }, &[]);
    exit_now(0)
}

fn become_user(identity: Identity, filter: &[Instruction]) -> Result<(), Failure> {
    rustix::process::setsid().step("starting a session")?;
    close_on_exec_from_3().step("closing descriptors")?;
    take_identity(identity)?;
    rustix::process::chdir("/").step("entering the root")?;
    sandcrate_sys::signal::unblock_all().step("unblocking signals")?;
    sandcrate_sys::seccomp::load(filter).step("loading the seccomp filter")
}

pub(crate) fn perform(operation: &FileOperation, data: Option<OwnedFd>) -> Result<FileOutcome, Failure> {
    let pipe = || {
        data.map(File::from).ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF)).step("a pipe is needed")
    };
    match operation {
        FileOperation::Stat { path } => facts(&to_path(path)).map(FileOutcome::Entry).step("stat"),
        FileOperation::List { path, max_entries } => list(&to_path(path), *max_entries).step("list"),
        FileOperation::Read { path, offset, limit } => {
            let pipe = pipe()?;
            read(&to_path(path), *offset, *limit, pipe).step("read")
        }
        FileOperation::Write { path, placement } => {
            let pipe = pipe()?;
            write(path, *placement, pipe).step("write")
        }
        FileOperation::MakeDir { path } => make_directories(path).map(|()| FileOutcome::Done).step("mkdir"),
        FileOperation::Remove { path } => remove(&to_path(path)).map(|()| FileOutcome::Done).step("remove"),
        FileOperation::Rename { from, to } => {
            fs::rename(to_path(from), to_path(to)).map(|()| FileOutcome::Done).step("rename")
        }
    }
}

fn to_path(bytes: &[u8]) -> PathBuf {
    PathBuf::from(std::ffi::OsString::from_vec(bytes.to_vec()))
}

fn facts(path: &Path) -> io::Result<FileFacts> {
    let facts = fs::symlink_metadata(path)?;
    let link_target =
        if facts.is_symlink() { Some(fs::read_link(path)?.into_os_string().into_vec()) } else { None };
    Ok(FileFacts {
        name: path.file_name().unwrap_or(path.as_os_str()).as_bytes().to_vec(),
        mode: facts.mode(),
        bytes: facts.size(),
        modified: facts.mtime(),
        link_target,
    })
}

fn list(path: &Path, max_entries: u64) -> io::Result<FileOutcome> {
    let mut entries = Vec::new();
    let mut bytes = 0;
    for entry in fs::read_dir(path)? {
        if entries.len() as u64 == max_entries {
            return Err(io::Error::from_raw_os_error(libc::E2BIG));
        }
        match facts(&entry?.path()) {
            // Gone between the two looks.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            facts => {
                let facts = facts?;
                bytes += facts.name.len() + facts.link_target.as_ref().map_or(0, Vec::len);
                if bytes > MAX_LISTING {
                    return Err(io::Error::from_raw_os_error(libc::E2BIG));
                }
                entries.push(facts);
            }
        }
    }
    Ok(FileOutcome::Entries(entries))
}

fn read(path: &Path, offset: u64, limit: u64, mut pipe: File) -> io::Result<FileOutcome> {
    let mut file = open_regular(File::options().read(true), path)?;
    let file_bytes = file.metadata()?.len();
    if file_bytes == 0 {
        // The kernel's own files say that they are empty, and are not; not all of them can be sought in.
        io::copy(&mut (&file).take(offset), &mut io::sink())?;
    } else {
        // Beyond the end there is nothing, however far.
        file.seek(SeekFrom::Start(offset.min(file_bytes)))?;
    }
    let bytes = match io::copy(&mut file.take(limit), &mut pipe) {
        // The reader has had enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => 0,
        other => other?,
    };
    Ok(FileOutcome::Moved { bytes, file_bytes })
}

fn write(path: &[u8], placement: Placement, mut pipe: File) -> io::Result<FileOutcome> {
    if let Some(end) = path.iter().rposition(|byte| *byte == b'/').filter(|end| *end > 0) {
        make_directories(&path[..end])?;
    }
    // Not truncated at once: it may be something that has no end, or is not ours to empty.
    let mut file = open_regular(File::options().write(true).create(true).mode(0o666), &to_path(path))?;
    let mut bytes = match placement {
        Placement::Replace => file.set_len(0).map(|()| 0)?,
        Placement::End => file.seek(SeekFrom::End(0))?,
    };
    let mut buffer = vec![0; 64 << 10];
    loop {
        match pipe.read(&mut buffer)? {
            0 => break,
            count => file.write_all(&buffer[..count])?,
        }
        bytes = file.stream_position()?;
    }
    Ok(FileOutcome::Moved { bytes, file_bytes: bytes })
}

/// Opens without waiting (a FIFO has no writer) and insists on a regular file.
fn open_regular(options: &mut fs::OpenOptions, path: &Path) -> io::Result<File> {
    let file = options.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    let facts = file.metadata()?;
    if facts.is_dir() {
        return Err(io::Error::from_raw_os_error(libc::EISDIR));
    }
    if !facts.is_file() {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    rustix::fs::fcntl_setfl(
        file.as_fd(),
        rustix::fs::fcntl_getfl(file.as_fd())? - rustix::fs::OFlags::NONBLOCK,
    )?;
    Ok(file)
}

/// All or nothing: who is refused finds everything as it was.
fn remove(path: &Path) -> io::Result<()> {
    // A link with a slash behind it would be followed.
    let path: &Path = &path.components().collect::<PathBuf>();
    if path.file_name().is_none() {
        // The root, or the parent of something: neither can be removed by that name.
        return Err(io::Error::from_raw_os_error(libc::EBUSY));
    }
    if fs::symlink_metadata(path)?.is_dir() {
        crate::remove_tree::check_removable(path)?;
        crate::remove_tree::remove(path)
    } else {
        fs::remove_file(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removal_takes_a_link_for_itself_and_no_parent() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::create_dir_all(at("kept/inner")).unwrap();
        std::os::unix::fs::symlink("kept", at("link")).unwrap();
        for refused in ["kept/inner/..", "link/.."] {
            assert_eq!(remove(&at(refused)).unwrap_err().raw_os_error(), Some(libc::EBUSY), "{refused}");
        }
        remove(&at("link/")).unwrap();
        assert!(at("kept/inner").exists() && !at("link").exists());
        remove(&at("kept/.")).unwrap();
        assert!(!at("kept").exists());
    }

    #[test]
    fn a_listing_that_no_message_could_carry_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let target = "t".repeat(4000);
        // One link under many names: quicker to make.
        let first = directory.path().join("first");
        std::os::unix::fs::symlink(&target, &first).unwrap();
        let link = |number| fs::hard_link(&first, directory.path().join(format!("{number}")));
        for number in 0..10 {
            link(number).unwrap();
        }
        let listed = list(directory.path(), 100_000).unwrap();
        assert!(matches!(listed, FileOutcome::Entries(entries) if entries.len() == 11));
        for number in 10..9000 {
            link(number).unwrap();
        }
        assert_eq!(list(directory.path(), 100_000).unwrap_err().raw_os_error(), Some(libc::E2BIG));
    }
}
