//! File handles: opening by inode number past every path check ("shocker").

use crate::report::{AttackResult, Report};
use crate::sys::{close, open, syscall};

/// `struct file_handle` with room for the longest handle.
#[repr(C)]
#[derive(Clone, Copy)]
struct FileHandle {
    bytes: u32,
    kind: i32,
    body: [u32; 32],
}

impl FileHandle {
    fn of(kind: i32, words: &[u32]) -> Self {
        let mut body = [0; 32];
        body[..words.len()].copy_from_slice(words);
        Self { bytes: words.len() as u32 * 4, kind, body }
    }
}

/// Descriptors that stand for a kernel file system without any path (6.18).
const PIDFS_ROOT: i64 = -10002;
const NSFS_ROOT: i64 = -10003;
/// Number, kind and inode of the initial namespaces, which are the same on every machine.
const INITIAL_NAMESPACES: [(&str, u32, i32, u32); 8] = [
    ("ipc", 1, libc::CLONE_NEWIPC, 0xEFFF_FFFF),
    ("uts", 2, libc::CLONE_NEWUTS, 0xEFFF_FFFE),
    ("user", 3, libc::CLONE_NEWUSER, 0xEFFF_FFFD),
    ("pid", 4, libc::CLONE_NEWPID, 0xEFFF_FFFC),
    ("cgroup", 5, libc::CLONE_NEWCGROUP, 0xEFFF_FFFB),
    ("time", 6, 0x80, 0xEFFF_FFFA),
    ("net", 7, libc::CLONE_NEWNET, 0xEFFF_FFF9),
    ("mnt", 8, libc::CLONE_NEWNS, 0xEFFF_FFF8),
];

/// FS-12: open_by_handle_at for root inodes of common file systems and for real handles.
pub(crate) fn handle(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    let guesses = [
        ("ext4 root", FileHandle::of(1, &[2, 0])),
        ("xfs root", FileHandle::of(1, &[128, 0])),
        ("xfs root, 64 bit", FileHandle::of(0x81, &[128, 0, 0])),
        ("btrfs root", FileHandle::of(0x4d, &[256, 0, 5, 0, 0])),
        ("first inode", FileHandle::of(1, &[1, 0])),
    ];
    for mount in ["/", "/usr", "/etc", "/etc/hosts", "/workspace", "/tmp", "/proc", "/dev/null", "."] {
        let Ok(fd) = open(mount, libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK) else { continue };
        for (name, guess) in guesses {
            try_open(&mut report, &format!("{name} through {mount}"), fd, guess);
        }
        if let Some(real) = real_handle(fd) {
            try_open(&mut report, &format!("its own handle through {mount}"), fd, real);
        }
        close(fd);
    }
    for (name, guess) in guesses {
        try_open(&mut report, &format!("{name} through the working directory"), libc::AT_FDCWD.into(), guess);
    }
    for (name, number, kind, inode) in INITIAL_NAMESPACES {
        let guess = FileHandle::of(0xf1, &[number, 0, kind as u32, inode]);
        try_open(&mut report, &format!("initial {name} namespace"), NSFS_ROOT, guess);
    }
    try_open(&mut report, "pid 1 by pidfs", PIDFS_ROOT, FileHandle::of(0xfe, &[1, 0]));
    report.verdict("open_by_handle_at is refused")
}

fn real_handle(fd: i64) -> Option<FileHandle> {
    let mut handle = FileHandle { bytes: 128, kind: 0, body: [0; 32] };
    let mut mount_id = 0i32;
    syscall!(libc::SYS_name_to_handle_at, fd, c"", &raw mut handle, &raw mut mount_id, libc::AT_EMPTY_PATH)
        .ok()?;
    Some(handle)
}

/// The kernel checks the mount descriptor first; one that takes no handles says so.
fn try_open(report: &mut Report, what: &str, mount: i64, handle: FileHandle) {
    let also = if mount < 0 { &[libc::EBADF, libc::EOPNOTSUPP, libc::ESTALE, libc::EINVAL][..] } else { &[] };
    report.must_refuse_or(&format!("open_by_handle_at({what})"), also, || {
        syscall!(libc::SYS_open_by_handle_at, mount, &raw const handle, libc::O_RDONLY)
    });
}
