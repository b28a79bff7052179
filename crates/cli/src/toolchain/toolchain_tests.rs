//! On real trees of links and scripts below a temporary directory, which plays the caller's home's parent.

use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;

struct Tree {
    dir: tempfile::TempDir,
    around: Surroundings,
}

impl Tree {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().canonicalize().unwrap().join("alice");
        std::fs::create_dir(&home).unwrap();
        let around = Surroundings { cwd: home.clone(), home: Some(home), ..Surroundings::default() };
        Self { dir, around }
    }

    /// A path of the caller's home.
    fn at(&self, path: &str) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join("alice").join(path)
    }

    fn dir(&self, path: &str) -> PathBuf {
        std::fs::create_dir_all(self.at(path)).unwrap();
        self.at(path)
    }

    fn file(&self, path: &str, text: &str) -> PathBuf {
        let path = self.at(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn link(&self, path: &str, target: impl AsRef<Path>) {
        std::fs::create_dir_all(self.at(path).parent().unwrap()).unwrap();
        symlink(target, self.at(path)).unwrap();
    }

    fn path(mut self, dirs: &[&str]) -> Self {
        self.around.path = dirs.iter().map(|dir| self.at(dir)).collect();
        self
    }

    fn var(mut self, name: &str, value: &str) -> Self {
        self.around.vars.insert(name.into(), value.into());
        self
    }

    fn resolve(&self, program: impl AsRef<OsStr>) -> Toolchain {
        resolve(program.as_ref(), &self.around)
    }

    fn roots(&self, program: impl AsRef<OsStr>) -> Vec<PathBuf> {
        let mut roots: Vec<_> = self.resolve(program).roots.into_iter().map(|root| root.path).collect();
        roots.sort();
        roots
    }
}

#[test]
fn a_program_of_the_system_needs_nothing() {
    let around = Surroundings { path: vec!["/usr/bin".into()], cwd: "/".into(), ..Surroundings::default() };
    assert_eq!(resolve(OsStr::new("env"), &around), Toolchain::default());
    assert_eq!(resolve(OsStr::new("/usr/bin/env"), &around), Toolchain::default());
}

#[test]
fn what_exists_nowhere_is_left_to_the_box() {
    let tree = Tree::new().path(&["bin"]);
    assert_eq!(tree.resolve("no-such-program"), Toolchain::default());
    assert_eq!(tree.resolve("/no/such/program"), Toolchain::default());
}

#[test]
fn a_relative_path_is_one_in_the_box() {
    let tree = Tree::new();
    tree.file("script.sh", "#!/bin/sh\n");
    assert_eq!(tree.resolve("./script.sh"), Toolchain::default());
}

#[test]
fn a_prefix_of_its_own_is_the_root_and_its_bin_leads_path() {
    let tree = Tree::new().path(&[".nvm/node/v20/bin"]);
    tree.file(".nvm/node/v20/bin/node", "\x7fELF");
    tree.dir(".nvm/node/v20/lib");
    let found = tree.resolve("node");
    assert_eq!(tree.roots("node"), [tree.at(".nvm/node/v20")]);
    assert_eq!(found.path, [tree.at(".nvm/node/v20/bin")]);
    assert_eq!(found.program, None);
}

#[test]
fn a_script_brings_its_interpreter_found_by_env() {
    let tree = Tree::new().path(&[".nvm/node/v20/bin", "tools"]);
    tree.file(".nvm/node/v20/bin/node", "\x7fELF");
    tree.dir(".nvm/node/v20/lib");
    tree.file("tools/lint", "#!/usr/bin/env -S FOO=1 node --strict\n");
    assert_eq!(tree.roots("lint"), [tree.at(".nvm/node/v20"), tree.at("tools")]);
    assert_eq!(tree.resolve("lint").path, [tree.at("tools"), tree.at(".nvm/node/v20/bin")]);
}

#[test]
fn homes_and_shared_places_are_never_shown_whole() {
    let tree = Tree::new().path(&["bin", ".local/bin", ""]);
    tree.file("bin/mine", "#!/bin/sh\n");
    tree.dir("lib");
    tree.file(".local/bin/local", "#!/bin/sh\n");
    tree.dir(".local/share");
    tree.file("loose", "#!/bin/sh\n");
    assert_eq!(tree.roots("mine"), [tree.at("bin")], "~ has a lib, and is a home all the same");
    assert_eq!(tree.roots("local"), [tree.at(".local/bin")]);
    assert_eq!(tree.roots("loose"), [tree.at("loose")], "the single file");
    assert_eq!(root::root_of(Path::new("/opt/bin/x"), None), Some("/opt/bin".into()));
    assert_eq!(root::root_of(Path::new("/tmp/x"), None), Some("/tmp/x".into()));
    assert_eq!(root::root_of(Path::new("/home/bob/x"), None), Some("/home/bob/x".into()));
    assert_eq!(root::root_of(Path::new("/etc/alternatives/cc"), None), None);
}

#[test]
fn links_that_cross_collect_every_root() {
    let tree = Tree::new().path(&[".local/bin"]);
    let python = tree.file(".local/share/uv/python/cpython-3.12.5/bin/python3.12", "\x7fELF");
    tree.dir(".local/share/uv/python/cpython-3.12.5/lib");
    tree.link(".local/share/uv/tools/x/bin/python", &python);
    tree.file(".local/share/uv/tools/x/pyvenv.cfg", "version = 3.12\n");
    let interpreter = tree.at(".local/share/uv/tools/x/bin/python");
    let script = tree.file(".local/share/uv/tools/x/bin/x", &format!("#!{}\n", interpreter.display()));
    tree.link(".local/bin/x", script);
    assert_eq!(
        tree.roots("x"),
        [
            tree.at(".local/bin"),
            tree.at(".local/share/uv/python/cpython-3.12.5"),
            tree.at(".local/share/uv/tools/x"),
        ]
    );
}

#[test]
fn a_linked_directory_appears_under_both_names() {
    let tree = Tree::new().path(&["venv/bin"]);
    tree.file("py/cpython-3.12.5/bin/python3", "\x7fELF");
    tree.dir("py/cpython-3.12.5/lib");
    tree.link("py/cpython-3.12", "cpython-3.12.5");
    tree.link("venv/bin/python3", tree.at("py/cpython-3.12/bin/python3"));
    tree.file("venv/pyvenv.cfg", "");
    let found = tree.resolve("python3");
    let linked = found.roots.iter().find(|root| root.path == tree.at("py/cpython-3.12")).unwrap();
    assert_eq!(linked.source, tree.at("py/cpython-3.12.5"));
    assert!(found.roots.iter().any(|root| root.path == tree.at("py/cpython-3.12.5")));
}

#[test]
fn a_virtual_environment_of_copies_names_its_base() {
    let tree = Tree::new().path(&["venv/bin"]);
    tree.file("base/bin/python3", "\x7fELF");
    tree.dir("base/lib");
    tree.file("venv/bin/python3", "\x7fELF");
    tree.file("venv/pyvenv.cfg", &format!("home = {}\nversion = 3.12\n", tree.at("base/bin").display()));
    assert_eq!(tree.roots("python3"), [tree.at("base"), tree.at("venv")]);
}

fn pyenv() -> Tree {
    let tree = Tree::new().path(&[".pyenv/shims", "fallback"]);
    for version in ["3.9.18", "3.11.2", "3.11.10"] {
        tree.file(&format!(".pyenv/versions/{version}/bin/python3"), "\x7fELF");
        tree.dir(&format!(".pyenv/versions/{version}/lib"));
    }
    tree.file(".pyenv/shims/python3", "#!/usr/bin/env bash\n");
    tree.file(".pyenv/version", "3.9.18\n");
    tree
}

#[test]
fn a_shim_is_replaced_by_the_version_it_would_start() {
    let tree = pyenv();
    assert_eq!(tree.roots("python3"), [tree.at(".pyenv/versions/3.9.18")], "the global version");
    assert_eq!(tree.resolve("python3").path, [tree.at(".pyenv/versions/3.9.18/bin")]);
    let shim = tree.at(".pyenv/shims/python3");
    assert_eq!(tree.resolve(&shim).program, Some(tree.at(".pyenv/versions/3.9.18/bin/python3")));

    tree.file(".python-version", "3.11 # by its beginning\n");
    assert_eq!(
        tree.roots("python3"),
        [tree.at(".pyenv/versions/3.11.10")],
        "the project's, newest that fits"
    );
    let tree = tree.var("PYENV_VERSION", "3.12.0:3.11.2");
    assert_eq!(
        tree.roots("python3"),
        [tree.at(".pyenv/versions/3.11.2")],
        "the variable's, first that is there"
    );
}

#[test]
fn a_shim_that_leads_nowhere_gives_way_to_the_next_directory() {
    let tree = pyenv().var("PYENV_VERSION", "system");
    tree.file("fallback/python3", "\x7fELF");
    assert_eq!(tree.roots("python3"), [tree.at("fallback")]);
    let tree = tree.var("PYENV_VERSION", "../../../etc");
    assert_eq!(tree.roots("python3"), [tree.at("fallback")], "a version is no path");
}

#[test]
fn asdf_and_rustup_are_understood() {
    let tree = Tree::new().path(&[".asdf/shims", ".cargo/bin"]);
    for version in ["20.1.0", "22.0.0"] {
        tree.file(&format!(".asdf/installs/nodejs/{version}/bin/node"), "\x7fELF");
        tree.dir(&format!(".asdf/installs/nodejs/{version}/lib"));
    }
    tree.file(".asdf/shims/node", "#!/usr/bin/env bash\n");
    assert_eq!(tree.roots("node"), [tree.at(".asdf/installs/nodejs/22.0.0")]);
    tree.file(".tool-versions", "nodejs 20.1.0\n");
    assert_eq!(tree.roots("node"), [tree.at(".asdf/installs/nodejs/20.1.0")]);

    let proxy = tree.file(".cargo/bin/rustup", "\x7fELF");
    tree.link(".cargo/bin/cargo", proxy);
    tree.file(".rustup/settings.toml", "default_toolchain = \"stable-x86_64-unknown-linux-gnu\"\n");
    tree.file(".rustup/toolchains/stable-x86_64-unknown-linux-gnu/bin/cargo", "\x7fELF");
    tree.dir(".rustup/toolchains/stable-x86_64-unknown-linux-gnu/lib");
    assert_eq!(tree.roots("cargo"), [tree.at(".rustup/toolchains/stable-x86_64-unknown-linux-gnu")]);
}

#[test]
fn a_circle_of_links_or_scripts_ends() {
    let tree = Tree::new().path(&["a"]);
    tree.file("a/x", &format!("#!{}\n", tree.at("a/y").display()));
    tree.file("a/y", &format!("#!{}\n", tree.at("a/x").display()));
    assert_eq!(tree.roots("x"), [tree.at("a")]);
    tree.link("a/loop", "loop");
    assert_eq!(tree.resolve("loop"), Toolchain::default());
}
