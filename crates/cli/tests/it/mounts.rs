//! `-v`: what is shown, to whom it belongs, and what is left on the host.

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use crate::driver::run_shell;
use crate::skip::{Feature, skip_without};

#[test]
fn a_directory_can_be_worked_in_and_files_keep_the_owner() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("in"), "from host\n").unwrap();
    let output = run_shell(&["-v", ".:/workspace"], "cat in; echo from box > out; stat -c %U in out")
        .dir(dir.path())
        .run();
    assert_eq!(output.ok(), "from host\nbox\nbox\n");
    assert_eq!(std::fs::read_to_string(dir.path().join("out")).unwrap(), "from box\n");
    let owner = |name: &str| std::fs::metadata(dir.path().join(name)).unwrap().uid();
    assert_eq!(owner("out"), owner("in"), "a new file belongs to the directory's owner");
}

#[test]
fn a_read_only_mount_stays_as_it_is() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file"), "old").unwrap();
    let script = "cat /data/file; echo new > /data/file; touch /data/more; rm /data/file";
    let output = run_shell(&["-v", ".:/data:ro"], script).dir(dir.path()).run();
    assert!(output.code != 0 && output.stdout == "old", "{output:?}");
    assert_eq!(std::fs::read_to_string(dir.path().join("file")).unwrap(), "old");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn several_mounts_nest_and_a_single_file_is_one_too() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for sub in ["a", "b", "b/inner"] {
        std::fs::create_dir(dir.path().join(sub)).unwrap();
    }
    std::fs::write(dir.path().join("a/one"), "1").unwrap();
    std::fs::write(dir.path().join("single"), "s").unwrap();
    let flags = ["-v", "b:/data", "-v", "a:/data/inner:ro", "-v", "single:/etc-file"];
    let output = run_shell(&flags, "cat /data/inner/one /etc-file; touch /data/two").dir(dir.path()).run();
    assert_eq!(output.ok(), "1s");
    assert!(dir.path().join("b/two").exists());
}

#[test]
fn no_setuid_file_can_be_left_on_the_host() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let script = "cp /bin/sh s; chmod 4755 s; chmod 2755 s; chmod u+s s; install -m 4755 /bin/sh t; mkdir -m 2755 d; true";
    run_shell(&["-v", ".:/workspace"], script).dir(dir.path()).run();
    for entry in std::fs::read_dir(dir.path()).unwrap() {
        let entry = entry.unwrap();
        let mode = entry.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o6000, 0, "{}: {mode:o}", entry.path().display());
    }
}
