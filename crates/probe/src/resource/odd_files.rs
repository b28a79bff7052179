//! File trees that trip whoever lists, archives or removes them; left for the host to deal with.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::directory_and_number;
use crate::report::{AttackResult, Usage, Verdict};
use crate::sys::{cstring, syscall};

/// RS-14: a tree deeper than any path can name.
pub(crate) fn deep(arguments: &[String]) -> AttackResult {
    let (directory, depth) = directory_and_number(arguments, Some(3000))?;
    std::env::set_current_dir(&directory).map_err(|error| Usage(format!("{directory}: {error}")))?;
    let mut made = 0;
    for _ in 0..depth {
        if syscall!(libc::SYS_mkdir, c"deep", 0o755).is_err() || syscall!(libc::SYS_chdir, c"deep").is_err() {
            break;
        }
        made += 1;
    }
    let _ = fs::write("bottom", b"x");
    println!("attempt: directories inside each other -> {made} of {depth}");
    Ok(Verdict::Info(format!("{made} directories deep below {directory}")))
}

/// RS-17: names, links and kinds of files that are legal and unusual.
pub(crate) fn names(arguments: &[String]) -> AttackResult {
    let directory = crate::fs::device::writable_directory(arguments)?;
    let root = Path::new(&directory).join("odd");
    fs::create_dir_all(&root).map_err(|error| Usage(format!("{}: {error}", root.display())))?;
    let longest = "n".repeat(255);
    let names: [&[u8]; 22] = [
        b"new\nline",
        b"tab\there",
        b"carriage\rreturn",
        b"-rf",
        b"--help",
        b" lead",
        b"trail ",
        b"quote'\"",
        b"`id`",
        b"$(id)",
        b"back\\slash",
        b"*?[x]",
        b"bell\x07",
        b"\x1b[31mred",
        b"bad\xff\xfeutf8",
        b"\xed\xa0\x80",
        "e\u{301}".as_bytes(),
        "\u{202e}gpj".as_bytes(),
        "\u{1f980}".as_bytes(),
        b"...",
        b"C:\\windows",
        longest.as_bytes(),
    ];
    let mut made =
        names.iter().filter(|name| fs::write(root.join(OsStr::from_bytes(name)), name).is_ok()).count();
    let links = [
        ("to-passwd", "/etc/passwd"),
        ("to-root", "/"),
        ("up", "../../../../../../etc"),
        ("loop", "loop"),
        ("dangling", "no-such-file"),
        ("to-proc", "/proc/self/root"),
        ("to-core-pattern", "/proc/sys/kernel/core_pattern"),
    ];
    made += links.iter().filter(|(name, target)| symlink(target, root.join(name)).is_ok()).count();
    let path = |name: &str| cstring(root.join(name).as_os_str().as_bytes());
    made += [
        syscall!(libc::SYS_mknod, &path("fifo"), libc::S_IFIFO | 0o644, 0),
        syscall!(libc::SYS_mknod, &path("socket"), libc::S_IFSOCK | 0o644, 0),
        syscall!(libc::SYS_link, &path("-rf"), &path("hard")),
        syscall!(libc::SYS_mkdir, &path("closed"), 0o000),
        syscall!(libc::SYS_mknod, &path("unreadable"), libc::S_IFREG, 0),
        fs::write(root.join("sparse"), b"")
            .map_or(Ok(-1), |()| syscall!(libc::SYS_truncate, &path("sparse"), 1u64 << 34)),
    ]
    .iter()
    .filter(|result| result.is_ok())
    .count();
    println!("attempt: odd files in {} -> {made}", root.display());
    Ok(Verdict::Info(format!("{made} odd files in {}", root.display())))
}
