//! Programs outside /usr work, and the document says what was added for them.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::driver::sandcrate;
use crate::skip::{Feature, find, say, skip_without};

fn script(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// PATH with a directory in front.
fn path_with(dir: &Path) -> String {
    format!("{}:{}", dir.display(), std::env::var("PATH").unwrap_or_default())
}

#[test]
fn a_program_of_a_prefix_of_its_own_finds_its_library() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let prefix = dir.path().canonicalize().unwrap().join("tool-1.0");
    script(
        &prefix.join("bin/mytool"),
        "#!/bin/sh\n. \"$(dirname \"$0\")/../lib/words\"; echo $WORD $1; ls \"$(dirname \"$0\")/../..\"\n",
    );
    script(&prefix.join("lib/words"), "WORD=hello\n");
    std::fs::write(dir.path().join("beside"), "not for the box").unwrap();
    let args = ["run", "-o", "json", "--", "mytool", "you"];
    let json = sandcrate(&args).env("PATH", path_with(&prefix.join("bin"))).run().json();
    assert_eq!(json["stdout"], "hello you\ntool-1.0\n", "the tool and nothing beside it: {json}");
    assert_eq!(json["session"]["toolchains"][0]["path"], prefix.to_str().unwrap());
    assert_eq!(json["session"]["mounts"][0]["access"], "read_only");
    let absolute = sandcrate(&["run", "--", prefix.join("bin/mytool").to_str().unwrap(), "you"]).run();
    assert!(absolute.stdout.starts_with("hello you"), "{absolute:?}");
}

#[test]
fn links_and_interpreters_are_followed() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().canonicalize().unwrap();
    script(&base.join("interpreter/bin/speak"), "#!/bin/sh\nshift 0; echo speaking \"$1\"\n");
    std::fs::create_dir(base.join("interpreter/lib")).unwrap();
    script(
        &base.join("app/libexec/app.real"),
        &format!("#!{}\n", base.join("interpreter/bin/speak").display()),
    );
    std::fs::create_dir(base.join("app/share")).unwrap();
    std::fs::create_dir(base.join("links")).unwrap();
    std::os::unix::fs::symlink("../app/libexec/app.real", base.join("links/app")).unwrap();
    let json = sandcrate(&["run", "-o", "json", "--", "app"])
        .env("PATH", path_with(&base.join("links")))
        .run()
        .json();
    assert!(json["stdout"].as_str().unwrap().starts_with("speaking "), "{json}");
    assert_eq!(json["session"]["toolchains"].as_array().unwrap().len(), 3, "{json}");
}

/// On a machine with pyenv, `python3` is a shim, which cannot work in a box.
#[test]
fn the_callers_python_is_the_boxs() {
    if skip_without(&[Feature::Box, Feature::Program("python3")]) {
        return;
    }
    let host = std::process::Command::new("python3")
        .args(["-c", "import sys; print(sys.version)"])
        .output()
        .unwrap();
    let boxed = sandcrate(&["run", "--", "python3", "-c", "import sys; print(sys.version)"]).run().ok();
    assert_eq!(boxed, String::from_utf8_lossy(&host.stdout));
}

#[test]
fn a_virtual_environment_works_with_its_packages() {
    if skip_without(&[Feature::Box, Feature::Program("python3")]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let venv = dir.path().canonicalize().unwrap().join("venv");
    let made = std::process::Command::new("python3")
        .args(["-m", "venv", "--without-pip"])
        .arg(&venv)
        .output()
        .unwrap();
    if !made.status.success() {
        say(&format!("needs venv: {}", String::from_utf8_lossy(&made.stderr)));
        return;
    }
    let site =
        std::fs::read_dir(venv.join("lib")).unwrap().next().unwrap().unwrap().path().join("site-packages");
    std::fs::write(site.join("only_here.py"), "WORD = 'from the venv'\n").unwrap();
    let program = venv.join("bin/python");
    let output =
        sandcrate(&["run", "--", program.to_str().unwrap(), "-c", "import only_here; print(only_here.WORD)"])
            .run();
    assert_eq!(output.ok(), "from the venv\n");
    let by_path = ["run", "--", "python", "-c", "import only_here, sys; print(sys.prefix)"];
    let output = sandcrate(&by_path).env("PATH", path_with(&venv.join("bin"))).run();
    assert_eq!(output.ok().trim(), venv.to_str().unwrap());
}

#[test]
fn the_callers_cargo_is_found_behind_rustup() {
    if skip_without(&[Feature::Box, Feature::Program("cargo")]) {
        return;
    }
    let cargo = find("cargo").unwrap();
    let output = sandcrate(&["run", "--", "cargo", "--version"]).run();
    assert!(output.stdout.starts_with("cargo "), "{}: {output:?}", cargo.display());
}

#[test]
fn a_relative_program_is_one_of_the_box() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    script(&dir.path().join("hello.sh"), "#!/bin/sh\necho hello from $PWD\n");
    let mounted = sandcrate(&["run", "-v", ".:/workspace", "--", "./hello.sh"]).dir(dir.path()).run();
    assert_eq!(mounted.ok(), "hello from /workspace\n");
    let not_mounted = sandcrate(&["run", "--", "./hello.sh"]).dir(dir.path()).run();
    assert_eq!(not_mounted.code, 127, "{not_mounted:?}");
}

/// The PATH of a box with a toolchain is that of one without, and something in front.
#[test]
fn a_toolchain_only_adds_to_path() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let bin = dir.path().canonicalize().unwrap().join("tool/bin");
    script(&bin.join("show-path"), "#!/bin/sh\necho $PATH\n");
    let plain = sandcrate(&["run", "--", "sh", "-c", "echo $PATH"]).run().ok();
    let with_tool = sandcrate(&["run", "--", "show-path"]).env("PATH", path_with(&bin)).run().ok();
    assert_eq!(with_tool, format!("{}:{plain}", bin.display()));
}
