//! The host's canary: a file that no path, descriptor or call inside a sandbox may reach.

use crate::report::{Report, Usage};
use crate::sys::{SysResult, close, cstring, syscall};

/// The absolute host path of a file that exists outside the sandbox only.
pub(crate) struct Canary {
    path: String,
}

impl Canary {
    pub(crate) fn from_arguments(arguments: &[String]) -> Result<Self, Usage> {
        match arguments {
            [path] if path.starts_with('/') && path.len() > 1 => Ok(Self { path: path.clone() }),
            _ => Err(Usage("needs one argument: the absolute host path of the canary".into())),
        }
    }

    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Looks for the canary below `prefix`, directly and above it.
    pub(crate) fn look_below(&self, report: &mut Report, prefix: &str) {
        let climb = "/..".repeat(40);
        self.look_at(report, &format!("{prefix}{}", self.path));
        self.look_at(report, &format!("{prefix}{climb}{}", self.path));
    }

    /// Tries every call that needs no permission on the file itself.
    pub(crate) fn look_at(&self, report: &mut Report, path: &str) {
        let mut found = Vec::new();
        for (call, result) in reach(libc::AT_FDCWD.into(), path) {
            report.held();
            if result.is_ok() {
                found.push(call);
            }
        }
        if !found.is_empty() {
            report.breach(format!("the canary answers at {path}: {}", found.join(", ")));
        }
    }

    /// Like [`Self::look_at`], relative to a directory descriptor.
    pub(crate) fn look_from(&self, report: &mut Report, directory: i64) {
        let climb = "../".repeat(40);
        let relative = self.path.trim_start_matches('/');
        for path in [relative.to_owned(), format!("{climb}{relative}")] {
            for (call, result) in reach(directory, &path) {
                report.held();
                if result.is_ok() {
                    report
                        .breach(format!("the canary answers to {call} from descriptor {directory}: {path}"));
                }
            }
        }
    }
}

/// `struct open_how` of openat2(2).
#[repr(C)]
pub(crate) struct OpenHow {
    pub(crate) flags: u64,
    pub(crate) mode: u64,
    pub(crate) resolve: u64,
}

fn reach(directory: i64, path: &str) -> [(&'static str, SysResult); 6] {
    let path = cstring(path);
    let how = OpenHow { flags: libc::O_PATH as u64, mode: 0, resolve: 0 };
    let mut status = [0u8; 256];
    let mut handle = [0u32; 40];
    handle[0] = 128;
    let mut mount_id = 0i32;
    let opened = syscall!(libc::SYS_openat, directory, &path, libc::O_PATH, 0);
    let opened2 = syscall!(libc::SYS_openat2, directory, &path, &raw const how, size_of::<OpenHow>());
    let tree = syscall!(libc::SYS_open_tree, directory, &path, 0);
    for fd in [opened, opened2, tree].into_iter().flatten() {
        close(fd);
    }
    [
        ("openat", opened),
        ("openat2", opened2),
        ("open_tree", tree),
        ("statx", syscall!(libc::SYS_statx, directory, &path, 0, 0x7ff, status.as_mut_ptr())),
        ("faccessat", syscall!(libc::SYS_faccessat, directory, &path, libc::F_OK)),
        (
            "name_to_handle_at",
            syscall!(
                libc::SYS_name_to_handle_at,
                directory,
                &path,
                handle.as_mut_ptr(),
                &raw mut mount_id,
                libc::AT_SYMLINK_FOLLOW
            ),
        ),
    ]
}
