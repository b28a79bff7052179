//! What a root must have to be a box's, whatever the image has there: real directories to mount on, accounts of the
//! box, and the files in /etc that say where the box is.
//!
//! Done once, at the import, so that nothing in a box is ever mounted or written through a link of the image's.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, openat, statat};
use sandcrate_jail::identity::BOX_USER;

use crate::error::{ImageError, Step};
use crate::root::{Facts, Root};

/// Places of mounts, parents first. What is there and is no directory gives way.
const PLACES: [(&str, u32); 14] = [
    ("dev", 0o755),
    ("etc", 0o755),
    ("home", 0o755),
    ("home/box", 0o755),
    ("mnt", 0o755),
    ("opt", 0o755),
    ("proc", 0o555),
    ("root", 0o700),
    ("run", 0o755),
    ("srv", 0o755),
    ("tmp", 0o1777),
    ("usr", 0o755),
    ("var", 0o755),
    ("workspace", 0o755),
];
/// A box has one directory for passing files, which it can write to.
const LINKS: [(&str, &str); 1] = [("var/tmp", "../tmp")];
/// Those that a box mounts on or leaves to the image when it is one.
const KEPT_MODES: [&str; 5] = ["etc", "opt", "srv", "usr", "var"];

const HOSTS: &str = "127.0.0.1 localhost sandbox\n::1 localhost sandbox\n";
/// The resolver of isolated networks; a box on the host's network has the host's mounted over it.
const RESOLVER: &str = "nameserver 192.0.0.1\n";
const MAX_ACCOUNTS: u64 = 1 << 20;

/// Makes a root that holds an image ready for boxes.
pub(crate) fn furnish(root: &mut Root<'_>) -> Result<(), ImageError> {
    root.dress_root()?;
    for (place, mode) in PLACES {
        let (above, name) = place.rsplit_once('/').unwrap_or(("", place));
        let above = root.open_directory(above.as_bytes()).step(|| format!("making /{place}"))?;
        if is(&above, name, FileType::Directory) && KEPT_MODES.contains(&place) {
            continue;
        }
        // One that is a directory already gets the mode and the owner that a box relies on.
        root.directory(place.as_bytes(), Facts { mode, ..Facts::IMPLIED })?;
    }
    for (link, target) in LINKS {
        root.symlink(link.as_bytes(), target.as_bytes(), Facts::IMPLIED)?;
    }
    for (name, text) in [("hostname", "sandbox\n"), ("hosts", HOSTS), ("resolv.conf", RESOLVER)] {
        write(root, &format!("etc/{name}"), text.as_bytes())?;
    }
    let accounts = [
        ("root", 0, "/root", "/bin/sh"),
        ("box", BOX_USER, "/home/box", "/bin/sh"),
        ("nobody", 65534, "/", "/bin/false"),
    ];
    let etc = root.open_directory(b"etc").step(|| "opening /etc")?;
    let passwd = with_accounts(
        read(&etc, "passwd")?,
        accounts
            .map(|(name, id, home, shell)| (name, id, format!("{name}:x:{id}:{id}:{name}:{home}:{shell}"))),
    );
    write(root, "etc/passwd", &passwd)?;
    let group = with_accounts(
        read(&etc, "group")?,
        accounts.map(|(name, id, ..)| (name, id, format!("{name}:x:{id}:"))),
    );
    write(root, "etc/group", &group)
}

fn is(directory: &OwnedFd, name: &str, kind: FileType) -> bool {
    statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == kind)
}

/// A new file in the place of whatever is there; other names of that keep what they have.
fn write(root: &mut Root<'_>, path: &str, mut content: &[u8]) -> Result<(), ImageError> {
    let facts = Facts { mode: 0o644, ..Facts::IMPLIED };
    let size = content.len() as u64;
    root.file(path.as_bytes(), facts, size, &mut content)
}

/// The image's own file; one that is not a plain file of sensible size counts as none.
fn read(etc: &OwnedFd, name: &str) -> Result<Vec<u8>, ImageError> {
    if !is(etc, name, FileType::RegularFile) {
        return Ok(Vec::new());
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(etc, name, flags, Mode::empty()).step(|| format!("reading /etc/{name}"))?;
    let mut content = Vec::new();
    File::from(file)
        .take(MAX_ACCOUNTS + 1)
        .read_to_end(&mut content)
        .step(|| format!("reading /etc/{name}"))?;
    Ok(if content.len() as u64 > MAX_ACCOUNTS { Vec::new() } else { content })
}

/// Adds those whose id nobody has; under a name that somebody has, programs would find the wrong one.
fn with_accounts(mut content: Vec<u8>, wanted: [(&str, u32, String); 3]) -> Vec<u8> {
    if content.last().is_some_and(|last| *last != b'\n') {
        content.push(b'\n');
    }
    for (name, id, line) in wanted {
        let taken = content.split(|byte| *byte == b'\n').any(|known| {
            let mut fields = known.split(|byte| *byte == b':');
            let known_name = fields.next().unwrap_or_default();
            known_name == name.as_bytes() || fields.nth(1) == Some(id.to_string().as_bytes())
        });
        if !taken {
            // Writing to memory does not fail.
            let _ = writeln!(content, "{line}");
        }
    }
    content
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_are_added_where_neither_id_nor_name_is_taken() {
        let wanted = || {
            [
                ("root", 0, "root:x:0:".to_owned()),
                ("box", 1000, "box:x:1000:".to_owned()),
                ("nobody", 65534, "nobody:x:65534:".to_owned()),
            ]
        };
        let text = |content: Vec<u8>| String::from_utf8(content).unwrap();
        assert_eq!(text(with_accounts(Vec::new(), wanted())), "root:x:0:\nbox:x:1000:\nnobody:x:65534:\n");
        let had = b"root:x:0:\nnode:x:1000:\nnobody:x:99:".to_vec();
        assert_eq!(text(with_accounts(had.clone(), wanted())), format!("{}\n", text(had)));
    }
}
