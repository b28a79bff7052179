//! Project quotas: a directory tree with its own bound of bytes and inodes.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::check;

const FS_IOC_FSGETXATTR: libc::c_ulong = 0x801c_581f;
const FS_IOC_FSSETXATTR: libc::c_ulong = 0x401c_5820;
const FS_XFLAG_PROJINHERIT: u32 = 0x200;
const Q_GETQUOTA: u32 = 0x80_0007;
const Q_SETQUOTA: u32 = 0x80_0008;
const PRJQUOTA: u32 = 2;
/// Bytes in the blocks that quotactl(2) counts in.
const QUOTA_BLOCK: u64 = 1024;

/// `struct fsxattr` of linux/fs.h.
#[repr(C)]
#[derive(Default)]
struct FsxAttr {
    flags: u32,
    extsize: u32,
    nextents: u32,
    project: u32,
    cowextsize: u32,
    pad: [u8; 8],
}

/// Puts `directory`, and all that will be made below it, into project `project`.
pub fn set_project(directory: BorrowedFd<'_>, project: u32) -> io::Result<()> {
    change(directory, project, FS_XFLAG_PROJINHERIT)
}

/// Puts one file that is there into project `project`.
pub fn set_file_project(file: BorrowedFd<'_>, project: u32) -> io::Result<()> {
    change(file, project, 0)
}

/// One that has all of it already is not written to.
fn change(node: BorrowedFd<'_>, project: u32, flags: u32) -> io::Result<()> {
    let mut attributes = FsxAttr::default();
    // SAFETY: FS_IOC_FSGETXATTR writes an fsxattr, whose layout `FsxAttr` has.
    check(unsafe { libc::ioctl(node.as_raw_fd(), FS_IOC_FSGETXATTR, &raw mut attributes) }.into())?;
    if attributes.project == project && attributes.flags & flags == flags {
        return Ok(());
    }
    attributes.project = project;
    attributes.flags |= flags;
    // SAFETY: FS_IOC_FSSETXATTR reads an fsxattr.
    check(unsafe { libc::ioctl(node.as_raw_fd(), FS_IOC_FSSETXATTR, &raw const attributes) }.into()).map(drop)
}

/// Bounds project `project` on the file system of `directory`; zero lifts a bound.
pub fn set_limit(directory: BorrowedFd<'_>, project: u32, bytes: u64, inodes: u64) -> io::Result<()> {
    // SAFETY: dqblk is plain data, for which all zeroes is a valid value.
    let mut block: libc::dqblk = unsafe { std::mem::zeroed() };
    block.dqb_bhardlimit = bytes.div_ceil(QUOTA_BLOCK);
    block.dqb_bsoftlimit = block.dqb_bhardlimit;
    block.dqb_ihardlimit = inodes;
    block.dqb_isoftlimit = inodes;
    block.dqb_valid = libc::QIF_LIMITS;
    quotactl(directory, Q_SETQUOTA, project, &mut block)
}

/// Bytes and inodes that `project` uses. Also the probe: an error means that the file system has no project
/// quota.
pub fn usage(directory: BorrowedFd<'_>, project: u32) -> io::Result<(u64, u64)> {
    // SAFETY: dqblk is plain data, for which all zeroes is a valid value.
    let mut block: libc::dqblk = unsafe { std::mem::zeroed() };
    quotactl(directory, Q_GETQUOTA, project, &mut block)?;
    Ok((block.dqb_curspace, block.dqb_curinodes))
}

fn quotactl(
    directory: BorrowedFd<'_>,
    command: u32,
    project: u32,
    block: &mut libc::dqblk,
) -> io::Result<()> {
    let block: *mut libc::dqblk = block;
    // SAFETY: Q_GETQUOTA writes and Q_SETQUOTA reads one dqblk, which the exclusive reference provides.
    let result = unsafe {
        libc::syscall(libc::SYS_quotactl_fd, directory.as_raw_fd(), (command << 8) | PRJQUOTA, project, block)
    };
    check(result).map(drop)
}
