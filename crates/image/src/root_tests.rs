use std::os::unix::fs::{MetadataExt, symlink};

use super::*;
use crate::testing::root_at;

const FACTS: Facts = Facts { mode: 0o6755, uid: 7, gid: 70_000, mtime: 1_000_000_000 };

fn with_root<T>(limits: ImportLimits, work: impl FnOnce(&mut Root<'_>, &Path) -> T) -> T {
    let directory = tempfile::tempdir().unwrap();
    let mut report = |_: Progress| {};
    let at = directory.path().join("root");
    std::fs::create_dir(&at).unwrap();
    std::fs::write(directory.path().join("secret"), "host").unwrap();
    let mut root = root_at(&at, limits, &mut report);
    let out = work(&mut root, &at);
    assert_eq!(std::fs::read_to_string(directory.path().join("secret")).unwrap(), "host");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 2, "something was made outside");
    out
}

#[test]
fn paths_that_lead_up_or_cannot_be_are_refused() {
    for bad in ["../x", "a/../../x", "a/..", "..", "a\0b", &"x/".repeat(2100), &"y".repeat(256)] {
        assert!(matches!(split(bad.as_bytes()), Err(ImageError::Refused { .. })), "{bad:?}");
    }
    assert_eq!(split(b"/a//b/./c/").unwrap(), Some((b"a/b".to_vec(), b"c".to_vec())));
    assert_eq!(split(b"./").unwrap(), None);
}

#[test]
fn links_lead_to_the_root_itself_and_never_out() {
    with_root(ImportLimits::default(), |root, at| {
        symlink("/", at.join("top")).unwrap();
        symlink("../../..", at.join("up")).unwrap();
        symlink(at.parent().unwrap().join("secret"), at.join("file-link")).unwrap();
        root.file(b"top/a", FACTS, 2, &mut &b"in"[..]).unwrap();
        root.file(b"up/b", FACTS, 2, &mut &b"in"[..]).unwrap();
        // A file takes the place of a link, and is not written through it.
        root.file(b"file-link", FACTS, 2, &mut &b"in"[..]).unwrap();
        for name in ["a", "b", "file-link"] {
            assert_eq!(std::fs::read_to_string(at.join(name)).unwrap(), "in", "{name}");
        }
        // The same for a directory over a link to one.
        root.symlink(b"etc", b"/usr", FACTS).unwrap();
        root.directory(b"etc", FACTS).unwrap();
        assert!(at.join("etc").symlink_metadata().unwrap().is_dir());
        root.symlink(b"loop", b"loop", FACTS).unwrap();
        root.symlink(b"nowhere", b"/not/there", FACTS).unwrap();
        for bad in ["loop/x", "nowhere/x", "a/x"] {
            let error = root.file(bad.as_bytes(), FACTS, 0, &mut io::empty()).unwrap_err();
            assert!(matches!(error, ImageError::Refused { .. }), "{bad}: {error}");
        }
        for bad in ["", &"x".repeat(5000)] {
            assert!(root.symlink(b"l", bad.as_bytes(), FACTS).is_err());
        }
    });
}

#[test]
fn hard_links_are_to_files_of_the_same_root() {
    with_root(ImportLimits::default(), |root, at| {
        root.file(b"a/file", FACTS, 2, &mut &b"in"[..]).unwrap();
        root.hardlink(b"second", b"/a/file").unwrap();
        assert_eq!(at.join("second").metadata().unwrap().ino(), at.join("a/file").metadata().unwrap().ino());
        symlink(at.parent().unwrap(), at.join("out")).unwrap();
        for bad in ["../secret", "out/secret", "a", "missing", ""] {
            let error = root.hardlink(b"third", bad.as_bytes()).unwrap_err();
            assert!(matches!(error, ImageError::Refused { .. }), "{bad}: {error}");
        }
        assert!(root.hardlink(b"a/file", b"a/file").is_err(), "or it would be lost");
        assert!(at.join("a/file").exists());
    });
}

#[test]
fn owners_are_shifted_and_setuid_bits_are_gone() {
    with_root(ImportLimits::default(), |root, at| {
        root.directory(b"d", Facts { mode: 0o3000, ..FACTS }).unwrap();
        root.file(b"d/f", FACTS, 2, &mut &b"in"[..]).unwrap();
        root.symlink(b"d/l", b"f", FACTS).unwrap();
        let (directory, file, link) = (
            at.join("d").metadata().unwrap(),
            at.join("d/f").metadata().unwrap(),
            at.join("d/l").symlink_metadata().unwrap(),
        );
        assert_eq!((file.mode() & 0o7777, file.mtime()), (0o755, 1_000_000_000));
        if rustix::process::geteuid().is_root() {
            assert_eq!(directory.mode() & 0o7777, 0o1000);
            for facts in [directory, file, link] {
                assert_eq!((facts.uid(), facts.gid()), (HOST_BASE + 7, HOST_BASE + NOBODY));
            }
        } else {
            assert_eq!(directory.mode() & 0o7777, 0o1700, "its owner can go in");
            assert_eq!(file.uid(), rustix::process::geteuid().as_raw());
        }
    });
}

#[test]
fn bounds_hold_at_the_last_byte_and_the_last_entry() {
    with_root(ImportLimits { entries: 2, bytes: 10 }, |root, _| {
        root.file(b"a", FACTS, 10, &mut &b"0123456789"[..]).unwrap();
        let error = root.file(b"b", FACTS, 1, &mut &b"x"[..]).unwrap_err();
        assert!(matches!(error, ImageError::TooLarge { what: "bytes", limit: 10, .. }), "{error}");
        root.count().unwrap();
        root.count().unwrap();
        assert!(matches!(root.count(), Err(ImageError::TooLarge { what: "entries", .. })));
        // Directories that no entry names count as well.
        assert!(matches!(root.directory(b"x/y", FACTS), Err(ImageError::TooLarge { .. })));
    });
}
