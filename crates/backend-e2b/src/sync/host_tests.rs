use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;

fn root(directory: &Path) -> Root {
    let place = open(directory, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
    let owner = fstat(&place).unwrap();
    Root::open(&place, (owner.st_uid, owner.st_gid), false).unwrap()
}

#[test]
fn what_comes_from_a_sandbox_lands_below_the_share_and_follows_no_link() {
    let (shared, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(outside.path().join("secret"), "kept").unwrap();
    symlink(outside.path(), shared.path().join("out")).unwrap();
    symlink(outside.path().join("secret"), shared.path().join("link")).unwrap();
    let root = root(shared.path());
    assert!(root.write("out/new", b"x", false).is_err(), "a write went through a link");
    assert!(root.make_directory("out/new").is_err());
    assert!(root.make_link("out/new", "x").is_err());
    for bad in ["../escape", "a/../../escape"] {
        assert!(!is_plain(bad) && root.write(bad, b"x", false).is_err(), "{bad}");
    }
    // A link is replaced, not followed; and removed, not what it leads to.
    root.write("link", b"new", false).unwrap();
    assert_eq!(fs::read_to_string(outside.path().join("secret")).unwrap(), "kept");
    assert_eq!(fs::read_to_string(shared.path().join("link")).unwrap(), "new");
    root.remove("out", &Node::Link { target: String::new() }).unwrap();
    assert!(outside.path().join("secret").exists());
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
}

#[test]
fn links_are_carried_only_where_they_cannot_lead_out() {
    for (path, target, inside) in [
        ("a", "b", true),
        ("d/a", "../b", true),
        ("d/a", "./c/e", true),
        ("a", "..", false),
        ("d/a", "../../b", false),
        ("a", "/etc/passwd", false),
        // Where x is a link, this climbs from wherever it leads.
        ("a", "x/../../..", false),
        ("a", "x/..", false),
        ("a", "", false),
    ] {
        assert_eq!(stays_inside(path, target), inside, "{path} -> {target}");
    }
}

#[test]
fn a_scan_tells_everything_or_says_what_it_left_out() {
    let shared = tempfile::tempdir().unwrap();
    let at = shared.path();
    fs::create_dir_all(at.join("d/hidden/x")).unwrap();
    fs::write(at.join("d/file"), "12345").unwrap();
    fs::write(at.join("tool"), "#!").unwrap();
    fs::set_permissions(at.join("tool"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::File::create(at.join("large")).unwrap().set_len(FILE_BYTES + 1).unwrap();
    symlink("d/file", at.join("inside")).unwrap();
    symlink("/etc/passwd", at.join("outside")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, at.join("fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    let mut report = Report::default();
    let tree = root(at).scan(&["d/hidden".to_owned()], &mut report).unwrap();
    assert_eq!(tree.keys().map(String::as_str).collect::<Vec<_>>(), ["d", "d/file", "inside", "tool"]);
    assert!(matches!(tree["d/file"], Node::File { bytes: 5, executable: false, .. }));
    assert!(matches!(tree["tool"], Node::File { executable: true, .. }));
    let text = report.text().unwrap();
    for name in ["large", "outside", "fifo"] {
        assert!(text.contains(name), "{name} was left out without a word: {text}");
    }
}

#[test]
fn a_file_that_is_replaced_is_another_to_the_next_scan_and_keeps_its_mode() {
    let shared = tempfile::tempdir().unwrap();
    let path = shared.path().join("file");
    fs::write(&path, "old").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    let root = root(shared.path());
    let before = root.node("file").unwrap();
    root.write("file", b"new", true).unwrap();
    assert_ne!(root.node("file").unwrap(), before, "a file of the same size looks the same");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o750);
    assert_eq!(fs::read_dir(shared.path()).unwrap().count(), 1, "something unfinished is left");
}
