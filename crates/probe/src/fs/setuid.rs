//! FS-23: leaving a file with setuid, setgid or capabilities where the host can run it.
//!
//! Every form leaves its file, so that the host side of the test can look at the result.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::device::writable_directory;
use super::setuid_ring::open_by_ring;
use crate::abi::{int80, low_memory};
use crate::canary::OpenHow;
use crate::child::attempt_in_child;
use crate::report::{AttackResult, Report};
use crate::sys::{Errno, SysResult, close, cstring, lstat, syscall};

const SYS_FCHMODAT2: i64 = 452;
const SYS_SETXATTRAT: i64 = 463;
const SYS_FILE_SETATTR: i64 = 469;
const X32: i64 = 0x4000_0000;
const MODES: [u32; 3] = [0o4755, 0o2755, 0o6777];
const CREATE: i32 = libc::O_CREAT | libc::O_RDWR | libc::O_CLOEXEC;

type Form = (&'static str, fn(&str, u32) -> SysResult);

const FORMS: [Form; 31] = [
    ("chmod", |path, mode| existing(path, |name, _| syscall!(libc::SYS_chmod, name, mode))),
    ("chmod-high", |path, mode| existing(path, |name, _| syscall!(libc::SYS_chmod, name, high(mode)))),
    ("chmod-x32", |path, mode| existing(path, |name, _| syscall!(libc::SYS_chmod | X32, name, mode))),
    ("fchmod", |path, mode| existing(path, |_, fd| syscall!(libc::SYS_fchmod, fd, mode))),
    ("fchmod-high", |path, mode| existing(path, |_, fd| syscall!(libc::SYS_fchmod, fd, high(mode)))),
    ("fchmodat", |path, mode| {
        existing(path, |name, _| syscall!(libc::SYS_fchmodat, libc::AT_FDCWD, name, mode))
    }),
    ("fchmodat-link", |path, mode| {
        existing(path, |_, fd| {
            syscall!(libc::SYS_fchmodat, libc::AT_FDCWD, &cstring(format!("/proc/self/fd/{fd}")), mode)
        })
    }),
    ("fchmodat2", |path, mode| {
        existing(path, |name, _| syscall!(SYS_FCHMODAT2, libc::AT_FDCWD, name, mode, 0))
    }),
    ("fchmodat2-fd", |path, mode| {
        existing(path, |_, fd| syscall!(SYS_FCHMODAT2, fd, c"", mode, libc::AT_EMPTY_PATH))
    }),
    ("open", |path, mode| syscall!(libc::SYS_open, &cstring(path), CREATE, mode)),
    ("open-high", |path, mode| syscall!(libc::SYS_open, &cstring(path), high(CREATE as u32), high(mode))),
    ("openat", |path, mode| syscall!(libc::SYS_openat, libc::AT_FDCWD, &cstring(path), CREATE, mode)),
    ("openat-excl", |path, mode| {
        syscall!(libc::SYS_openat, libc::AT_FDCWD, &cstring(path), CREATE | libc::O_EXCL, mode)
    }),
    ("openat-high", |path, mode| {
        syscall!(
            libc::SYS_openat,
            0xffff_ffff_u64 & libc::AT_FDCWD as u64,
            &cstring(path),
            CREATE,
            high(mode)
        )
    }),
    ("creat", |path, mode| syscall!(libc::SYS_creat, &cstring(path), mode)),
    ("openat2", |path, mode| {
        let how = OpenHow { flags: CREATE as u64, mode: mode.into(), resolve: 0 };
        syscall!(libc::SYS_openat2, libc::AT_FDCWD, &cstring(path), &raw const how, size_of::<OpenHow>())
    }),
    ("tmpfile", |path, mode| unnamed(path, mode, libc::SYS_openat)),
    ("tmpfile-openat2", |path, mode| unnamed(path, mode, libc::SYS_openat2)),
    ("ring", open_by_ring),
    ("mkdir", |path, mode| syscall!(libc::SYS_mkdir, &cstring(path), mode)),
    ("mkdir-chmod", |path, mode| {
        syscall!(libc::SYS_mkdir, &cstring(path), 0o755)?;
        syscall!(libc::SYS_chmod, &cstring(path), mode)
    }),
    ("mkdirat", |path, mode| syscall!(libc::SYS_mkdirat, libc::AT_FDCWD, &cstring(path), mode)),
    ("mknod", |path, mode| syscall!(libc::SYS_mknod, &cstring(path), libc::S_IFREG | mode, 0)),
    ("mknod-untyped", |path, mode| syscall!(libc::SYS_mknod, &cstring(path), mode, 0)),
    ("mknod-fifo", |path, mode| syscall!(libc::SYS_mknod, &cstring(path), libc::S_IFIFO | mode, 0)),
    ("mknodat", |path, mode| {
        syscall!(libc::SYS_mknodat, libc::AT_FDCWD, &cstring(path), libc::S_IFREG | mode, 0)
    }),
    ("bind", bind_socket),
    ("chmod-int80", |path, mode| existing(path, |_, _| by_int80(15, path, mode))),
    ("creat-int80", |path, mode| by_int80(8, path, mode)),
    ("mkdir-int80", |path, mode| by_int80(39, path, mode)),
    ("capability", |path, _| existing(path, |name, _| set_capability(name))),
];

/// FS-23: tries every form in a directory and looks at what each left behind.
pub(crate) fn suidfile(arguments: &[String]) -> AttackResult {
    let directory = writable_directory(arguments)?;
    let mut report = Report::default();
    // SAFETY: `umask` has no preconditions.
    unsafe { libc::umask(0) };
    judge_existing(&mut report, &directory);
    for (name, form) in FORMS {
        for mode in MODES {
            let path = format!("{directory}/suid-{name}-{mode:o}");
            let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir(&path));
            let what = format!("{name} {mode:o}");
            let outcome = report.attempt(&what, attempt_in_child(|| form(&path, mode)));
            if name == "capability" && outcome.succeeded() {
                report.breach(format!("{what} gave {path} file capabilities"));
            }
            judge(&mut report, &path, &what);
        }
    }
    immutable(&mut report, &directory);
    report.verdict("no file is left with setuid, setgid or capabilities")
}

/// Whatever the call returned, the file on disk decides.
fn judge(report: &mut Report, path: &str, what: &str) {
    if let Ok(found) = lstat(path)
        && found.st_mode & 0o6000 != 0
    {
        report.breach(format!("{what} left {path} with mode {:o} owned by {}", found.st_mode, found.st_uid));
    }
}

/// A setuid file that lies there already keeps its bits under a shared mapping.
fn judge_existing(report: &mut Report, directory: &str) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let Ok(metadata) = entry.metadata() else { continue };
        let own = entry.file_name().to_string_lossy().starts_with("suid-");
        if !own && metadata.is_file() && metadata.permissions().mode() & 0o6000 != 0 {
            report.breach(format!("{} was setuid or setgid before", entry.path().display()));
        }
    }
}

/// Bits above the kernel's 16-bit mode, which a careless comparison would trip over.
fn high(mode: u32) -> u64 {
    u64::from(mode) | 0xffff_ffff_0000_0000
}

fn existing(path: &str, change: impl FnOnce(&std::ffi::CStr, i64) -> SysResult) -> SysResult {
    let name = cstring(path);
    let fd = syscall!(libc::SYS_openat, libc::AT_FDCWD, &name, CREATE, 0o755)?;
    let result = change(&name, fd);
    close(fd);
    result
}

fn unnamed(path: &str, mode: u32, call: i64) -> SysResult {
    let directory = cstring(path.rsplit_once('/').map_or(".", |(directory, _)| directory));
    let flags = libc::O_TMPFILE | libc::O_RDWR;
    let fd = if call == libc::SYS_openat2 {
        let how = OpenHow { flags: flags as u64, mode: mode.into(), resolve: 0 };
        syscall!(call, libc::AT_FDCWD, &directory, &raw const how, size_of::<OpenHow>())?
    } else {
        syscall!(call, libc::AT_FDCWD, &directory, flags, mode)?
    };
    let link = cstring(format!("/proc/self/fd/{fd}"));
    syscall!(libc::SYS_linkat, libc::AT_FDCWD, &link, libc::AT_FDCWD, &cstring(path), libc::AT_SYMLINK_FOLLOW)
}

/// A socket's file takes the mode that its descriptor was given.
fn bind_socket(path: &str, mode: u32) -> SysResult {
    let fd = syscall!(libc::SYS_socket, libc::AF_UNIX, libc::SOCK_STREAM, 0)?;
    let changed = syscall!(libc::SYS_fchmod, fd, mode);
    let (address, size) = crate::net::unix::pathname(path);
    syscall!(libc::SYS_bind, fd, &raw const address, size)?;
    changed
}

fn by_int80(number: u32, path: &str, mode: u32) -> SysResult {
    let path = low_memory(cstring(path).as_bytes_with_nul())?;
    int80(number, [path, mode, 0])
}

/// `struct vfs_cap_data`, revisions 2 and 3: CAP_SYS_ADMIN permitted and effective.
fn set_capability(name: &std::ffi::CStr) -> SysResult {
    const ATTRIBUTE: &std::ffi::CStr = c"security.capability";
    let second = [0x0200_0001u32, 1 << 21, 0, 0, 0];
    let third = [0x0300_0001u32, 1 << 21, 0, 0, 0, 0];
    let arguments = [third.as_ptr() as u64, (size_of_val(&third) as u64)];
    [
        syscall!(libc::SYS_setxattr, name, ATTRIBUTE, second.as_ptr(), size_of_val(&second), 0),
        syscall!(libc::SYS_setxattr, name, ATTRIBUTE, third.as_ptr(), size_of_val(&third), 0),
        syscall!(libc::SYS_lsetxattr, name, ATTRIBUTE, second.as_ptr(), size_of_val(&second), 0),
        syscall!(SYS_SETXATTRAT, libc::AT_FDCWD, name, 0, ATTRIBUTE, arguments.as_ptr(), 16),
    ]
    .into_iter()
    .reduce(Result::or)
    .unwrap_or(Err(Errno(libc::ENOSYS)))
}

const FS_IOC_SETFLAGS: u64 = 0x4008_6602;
const FS_IOC_FSSETXATTR: u64 = 0x401c_5820;
static IMMUTABLE: u32 = 0x10;
const XFLAG_IMMUTABLE: u32 = 0x8;

/// A file the host cannot delete, and a foreign project id that escapes the quota.
fn immutable(report: &mut Report, directory: &str) {
    let path = format!("{directory}/suid-attributes");
    let on_file = |change: &dyn Fn(&std::ffi::CStr, i64) -> SysResult| existing(&path, change);
    report.must_fail("immutable flag by ioctl", || {
        on_file(&|_, fd| {
            let done = syscall!(libc::SYS_ioctl, fd, FS_IOC_SETFLAGS, &raw const IMMUTABLE)?;
            let _ = syscall!(libc::SYS_ioctl, fd, FS_IOC_SETFLAGS, &raw const CLEAR);
            Ok(done)
        })
    });
    for (name, words) in
        [("immutable", [XFLAG_IMMUTABLE, 0, 0, 0, 0, 0, 0]), ("project id 7", [0, 0, 0, 7, 0, 0, 0])]
    {
        report.must_fail(&format!("{name} by extended attributes"), || {
            on_file(&|_, fd| {
                let done = syscall!(libc::SYS_ioctl, fd, FS_IOC_FSSETXATTR, words.as_ptr())?;
                let _ = syscall!(libc::SYS_ioctl, fd, FS_IOC_FSSETXATTR, [0u32; 7].as_ptr());
                Ok(done)
            })
        });
    }
    report.must_fail("immutable flag by file_setattr", || {
        on_file(&|name, _| {
            let set = |flags: u32| {
                let attributes = [u64::from(flags), 0, 0];
                syscall!(SYS_FILE_SETATTR, libc::AT_FDCWD, name, attributes.as_ptr(), 24, 0)
            };
            let done = set(XFLAG_IMMUTABLE)?;
            let _ = set(0);
            Ok(done)
        })
    });
}

static CLEAR: u32 = 0;
