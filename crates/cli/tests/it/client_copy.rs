//! `sandcrate cp` against a server.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use crate::client::Server;
use crate::skip::{Feature, skip_without};

fn server() -> Server {
    let server = Server::start();
    server.run(&["session", "create", "s", "--quota", "512M"]).ok();
    server
}

/// Bytes that repeat nowhere near a piece's length.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..length).map(|_| next()).collect()
}

#[test]
fn a_large_file_goes_in_and_comes_out_unchanged() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let server = server();
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("in.bin"), dir.path().join("out.bin"));
    let data = noise(50 << 20);
    std::fs::write(&from, &data).unwrap();
    std::fs::set_permissions(&from, PermissionsExt::from_mode(0o750)).unwrap();
    let output = server.run(&["cp", "-o", "json", from.to_str().unwrap(), "s:/workspace/"]);
    let document = output.json();
    assert_eq!((output.code, &document["bytes"], &document["files"]), (0, &(50 << 20).into(), &1.into()));
    assert_eq!(server.shell("stat -c '%s %a' in.bin").ok(), "52428800 750\n");
    assert_eq!(server.run(&["cp", "s:in.bin", to.to_str().unwrap()]).ok(), "");
    assert!(std::fs::read(&to).unwrap() == data, "50 MiB came back changed");
    assert_eq!(to.metadata().unwrap().permissions().mode() & 0o7777, 0o750);
}

fn tree(root: &Path) {
    std::fs::create_dir_all(root.join("sub/empty")).unwrap();
    std::fs::write(root.join("a b.txt"), "a\n").unwrap();
    std::fs::write(root.join("sub/run.sh"), "#!/bin/sh\necho ran\n").unwrap();
    std::fs::set_permissions(root.join("sub/run.sh"), PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::write(root.join("sub/ä"), "").unwrap();
    symlink("sub/run.sh", root.join("link")).unwrap();
    symlink("../a b.txt", root.join("sub/up")).unwrap();
}

#[test]
fn a_directory_goes_in_and_comes_out_whole() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let server = server();
    let dir = tempfile::tempdir().unwrap();
    let site = dir.path().join("site");
    tree(&site);
    let from = site.to_str().unwrap();
    server.run(&["cp", from, "s:/workspace/new"]).ok();
    assert_eq!(
        server.shell("cd new; ./link; cat sub/up; ls -A . sub").ok(),
        "ran\na\n.:\na b.txt\nlink\nsub\n\nsub:\nempty\nrun.sh\nup\nä\n"
    );
    server.run(&["cp", from, "s:/workspace/new"]).ok();
    assert_eq!(server.shell("test -x new/site/sub/run.sh && echo beside").ok(), "beside\n");
    server.run(&["cp", &format!("{from}/."), "s:/workspace"]).ok();
    assert_eq!(server.shell("test -x sub/run.sh && echo content").ok(), "content\n");

    let back = dir.path().join("back");
    server.run(&["cp", "s:/workspace/new/.", back.to_str().unwrap()]).ok();
    assert_eq!(std::fs::read(back.join("site/sub/up")).unwrap(), b"a\n");
    assert_eq!(std::fs::read_link(back.join("link")).unwrap(), Path::new("sub/run.sh"));
    assert_eq!(back.join("sub/run.sh").metadata().unwrap().permissions().mode() & 0o777, 0o755);
    assert!(back.join("sub/empty").is_dir() && back.join("sub/ä").is_file());
    let into = dir.path().join("into");
    std::fs::create_dir(&into).unwrap();
    server.run(&["cp", "s:new", into.to_str().unwrap()]).ok();
    assert!(into.join("new/sub/run.sh").is_file());
}

#[test]
fn nothing_in_a_box_makes_us_write_elsewhere() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let server = server();
    let dir = tempfile::tempdir().unwrap();
    let outside = dir.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    let script = format!(
        "mkdir -p d/x; ln -s {} d/abs; ln -s ../../etc d/up; ln -s x d/in; mkfifo d/pipe",
        outside.display()
    );
    server.shell(&script).ok();
    let target = dir.path().join("t");
    let output = server.run(&["cp", "s:d/.", target.to_str().unwrap()]);
    assert_eq!(output.code, 0, "{output:?}");
    for name in ["abs", "up", "pipe"] {
        assert!(
            output.stderr.contains(name) && target.join(name).symlink_metadata().is_err(),
            "{name}: {output:?}"
        );
    }
    assert_eq!(std::fs::read_link(target.join("in")).unwrap(), Path::new("x"));
    // The second half of the trick: what was a link is a directory in the next copy.
    server.shell("rm d/in; mkdir d/in; echo evil > d/in/f").ok();
    let output = server.run(&["cp", "s:d/.", target.to_str().unwrap()]);
    assert_eq!(output.code, 125, "{output:?}");
    assert!(!target.join("x/f").exists() && output.stderr.contains("not a directory"), "{output:?}");
}

#[test]
fn standard_input_and_output_are_files_too() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let server = server();
    assert_eq!(server.call(&["cp", "-", "s:/workspace/in"]).input("from a pipe\n").run().ok(), "");
    assert_eq!(server.run(&["cp", "s:/workspace/in", "-"]).ok(), "from a pipe\n");
}

#[test]
fn what_cannot_be_copied_is_said() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let server = server();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("f");
    std::fs::write(&file, "x").unwrap();
    let (file, dir) = (file.to_str().unwrap(), dir.path().to_str().unwrap());
    for (from, to, words) in [
        (file, "s:/workspace/none/", "does not exist"),
        ("s:/workspace/none", dir, "/workspace/none"),
        (file, "none:/workspace/x", "session_not_found"),
        (file, dir, "exactly one"),
        ("s:/a", "s:/b", "exactly one"),
        ("/no/such/file", "s:/workspace", "/no/such/file"),
        (dir, "s:/etc/passwd", "not a directory"),
        ("s:/workspace", "-", "is a directory"),
        ("-", "s:/workspace", "is a directory"),
        ("s:/workspace", file, "not a directory"),
    ] {
        let output = server.run(&["cp", from, to]);
        assert_eq!((output.code, output.stdout.as_str()), (125, ""), "{from} {to}: {output:?}");
        assert!(output.stderr.contains(words), "{from} {to}: `{words}` is not in {output:?}");
    }
    assert_eq!(std::fs::read(file).unwrap(), b"x", "untouched");
}
