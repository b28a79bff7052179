//! Raw system calls: the one place that issues them, and readable error names.
//!
//! Attacks call by number because wrappers refuse or rewrite the very arguments
//! that an attack is about (high bits, odd flags, numbers libc does not know).

use std::ffi::{CStr, CString};
use std::fmt;

/// An error number as the kernel returned it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) i32);

pub(crate) type SysResult = Result<i64, Errno>;

/// What may stand in a system call register; signed values are sign-extended as C does.
pub(crate) trait Register {
    fn register(self) -> u64;
}

macro_rules! integer_registers {
    ($($kind:ty),*) => { $(impl Register for $kind {
        fn register(self) -> u64 { self as i64 as u64 }
    })* };
}
integer_registers!(i32, i64, u64, usize, u32, u16);

impl Register for &CStr {
    fn register(self) -> u64 {
        self.as_ptr() as u64
    }
}
impl Register for &CString {
    fn register(self) -> u64 {
        self.as_ptr() as u64
    }
}
impl<T> Register for *const T {
    fn register(self) -> u64 {
        self as u64
    }
}
impl<T> Register for *mut T {
    fn register(self) -> u64 {
        self as u64
    }
}

/// Issues system call `number`; missing arguments are zero.
///
/// Callers keep every pointed-to buffer alive and large enough for the call; the
/// `syscall!` macro expands to one expression so that temporaries live that long.
pub(crate) fn sys(number: i64, arguments: &[u64]) -> SysResult {
    let at = |index: usize| arguments.get(index).copied().unwrap_or(0);
    // SAFETY: the kernel checks every register; buffers it may write are owned by
    // the caller and outlive this call, as the contract above demands.
    let result = unsafe { libc::syscall(number, at(0), at(1), at(2), at(3), at(4), at(5)) };
    if result == -1 { Err(last_errno()) } else { Ok(result) }
}

/// `syscall!(number, argument...)`: [`sys`] with each argument turned into a register.
macro_rules! syscall {
    ($number:expr $(, $argument:expr)* $(,)?) => {
        $crate::sys::sys($number, &[$($crate::sys::Register::register($argument)),*])
    };
}
pub(crate) use syscall;

/// The error number of the last failed libc call.
pub(crate) fn last_errno() -> Errno {
    Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
}

/// A C string; text after an embedded NUL is dropped.
pub(crate) fn cstring(text: impl AsRef<[u8]>) -> CString {
    let bytes: Vec<u8> = text.as_ref().iter().copied().take_while(|byte| *byte != 0).collect();
    CString::new(bytes).unwrap_or_default()
}

/// Opens by path relative to the working directory, without any wrapper's flags.
pub(crate) fn open(path: impl AsRef<[u8]>, flags: i32) -> SysResult {
    syscall!(libc::SYS_openat, libc::AT_FDCWD, &cstring(path), flags, 0)
}

pub(crate) fn close(fd: i64) {
    let _ = syscall!(libc::SYS_close, fd);
}

/// `stat` without following a final link.
pub(crate) fn lstat(path: impl AsRef<[u8]>) -> Result<libc::stat, Errno> {
    stat_with(path, libc::AT_SYMLINK_NOFOLLOW)
}

pub(crate) fn stat(path: impl AsRef<[u8]>) -> Result<libc::stat, Errno> {
    stat_with(path, 0)
}

fn stat_with(path: impl AsRef<[u8]>, flags: i32) -> Result<libc::stat, Errno> {
    let mut found = zeroed::<libc::stat>();
    syscall!(libc::SYS_newfstatat, libc::AT_FDCWD, &cstring(path), &raw mut found, flags)?;
    Ok(found)
}

/// Marks the plain C structures that the kernel fills and for which all-zero bytes are a value.
pub(crate) trait KernelStruct: Copy {}
macro_rules! kernel_structs {
    ($($kind:ty),* $(,)?) => { $(impl KernelStruct for $kind {})* };
}
kernel_structs!(
    libc::stat,
    libc::statfs,
    libc::statvfs,
    libc::timex,
    libc::rusage,
    libc::sockaddr_un,
    libc::sigaction,
    libc::sockaddr_storage,
    [u8; 128],
    [u8; 256],
);

/// A structure of zero bytes.
pub(crate) fn zeroed<T: KernelStruct>() -> T {
    // SAFETY: `KernelStruct` is only implemented for C structures of integers, arrays
    // and optional function pointers, for which zero bytes are a valid value.
    unsafe { std::mem::zeroed() }
}

macro_rules! errno_names {
    ($($name:ident),* $(,)?) => {
        fn errno_name(number: i32) -> Option<&'static str> {
            match number {
                $(libc::$name => Some(stringify!($name)),)*
                _ => None,
            }
        }
    };
}
errno_names!(
    EPERM,
    ENOENT,
    ESRCH,
    EINTR,
    EIO,
    ENXIO,
    E2BIG,
    ENOEXEC,
    EBADF,
    ECHILD,
    EAGAIN,
    ENOMEM,
    EACCES,
    EFAULT,
    ENOTBLK,
    EBUSY,
    EEXIST,
    EXDEV,
    ENODEV,
    ENOTDIR,
    EISDIR,
    EINVAL,
    ENFILE,
    EMFILE,
    ENOTTY,
    ETXTBSY,
    EFBIG,
    ENOSPC,
    ESPIPE,
    EROFS,
    EMLINK,
    EPIPE,
    EDOM,
    ERANGE,
    EDEADLK,
    ENAMETOOLONG,
    ENOLCK,
    ENOSYS,
    ENOTEMPTY,
    ELOOP,
    ENODATA,
    EOVERFLOW,
    EUSERS,
    ENOTSOCK,
    EMSGSIZE,
    EPROTOTYPE,
    ENOPROTOOPT,
    EPROTONOSUPPORT,
    ESOCKTNOSUPPORT,
    EOPNOTSUPP,
    EPFNOSUPPORT,
    EAFNOSUPPORT,
    EADDRINUSE,
    EADDRNOTAVAIL,
    ENETDOWN,
    ENETUNREACH,
    ECONNABORTED,
    ECONNRESET,
    ENOBUFS,
    EISCONN,
    ENOTCONN,
    ETOOMANYREFS,
    ETIMEDOUT,
    ECONNREFUSED,
    EHOSTUNREACH,
    EALREADY,
    EINPROGRESS,
    ESTALE,
    EDQUOT,
    ENOKEY,
    ENOMEDIUM,
    ECANCELED,
    EKEYREJECTED,
);

impl fmt::Display for Errno {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match errno_name(self.0) {
            Some(name) => formatter.write_str(name),
            None => write!(formatter, "errno {}", self.0),
        }
    }
}
