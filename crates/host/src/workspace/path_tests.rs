//! The vectors of path rewriting, on real directories: links are what it is about.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::*;

/// A project with a virtual environment whose interpreter is a link to a program of the system, as real ones are.
struct Project {
    place: TempDir,
    root: String,
}

impl Project {
    fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().canonicalize().unwrap().join("mcp");
        for directory in [".venv/bin", "sub/.venv/bin", "src", "../mcp-other"] {
            std::fs::create_dir_all(root.join(directory)).unwrap();
        }
        for file in ["main.py", "src/server.py", ".venv/bin/uvicorn", "../mcp-other/x.py"] {
            std::fs::write(root.join(file), "").unwrap();
        }
        symlink("/bin/sh", root.join(".venv/bin/python")).unwrap();
        symlink("/bin/sh", root.join("sub/.venv/bin/python3")).unwrap();
        Self { place, root: root.to_str().unwrap().to_owned() }
    }

    fn at(&self, below: &str) -> String {
        format!("{}/{below}", self.root)
    }

    fn rewrite(&self, path: &str) -> String {
        rewrite_mounted_path(path, &self.root, "/workspace")
    }
}

#[test]
fn paths_at_and_below_the_directory_are_rewritten_and_no_others() {
    let project = Project::new();
    assert_eq!(project.rewrite(&project.root), "/workspace");
    assert_eq!(project.rewrite(&format!("{}/", project.root)), "/workspace");
    assert_eq!(project.rewrite(&project.at("main.py")), "/workspace/main.py");
    assert_eq!(project.rewrite(&project.at("src/../src/server.py")), "/workspace/src/server.py");
    assert_eq!(project.rewrite(&project.at("not/there yet")), "/workspace/not/there yet");
    assert_eq!(rewrite_mounted_path(&project.at("a"), &project.root, "/m/"), "/m/a");
    let sibling = format!("{}-other/x.py", project.root);
    for unchanged in [sibling.as_str(), "/etc/hosts", "", "/"] {
        assert_eq!(project.rewrite(unchanged), unchanged);
    }
    assert_eq!(rewrite_mounted_path("/a/b", "", "/workspace"), "/a/b");
    assert_eq!(rewrite_mounted_path("/a/b", "  ", "/workspace"), "/a/b");
}

#[test]
fn a_directory_that_is_reached_by_a_link_is_the_same_directory() {
    let project = Project::new();
    let alias = project.place.path().join("alias");
    symlink(&project.root, &alias).unwrap();
    let alias = alias.to_str().unwrap();
    assert_eq!(project.rewrite(&format!("{alias}/main.py")), "/workspace/main.py");
    assert_eq!(project.rewrite(alias), "/workspace");
    assert_eq!(rewrite_mounted_path(&project.at("main.py"), alias, "/workspace"), "/workspace/main.py");
}

// A link in the project that leads out of it names nothing of the project.
#[test]
fn a_path_through_a_link_that_leads_out_is_unchanged() {
    let project = Project::new();
    symlink(format!("{}-other", project.root), project.at("out")).unwrap();
    let path = project.at("out/x.py");
    assert_eq!(project.rewrite(&path), path);
}

// M1: the interpreter of an environment is a link to one of the system, and still the project's.
#[test]
fn the_interpreter_of_a_real_environment_becomes_python() {
    let project = Project::new();
    let command = |path: &str| rewrite_venv_command(&project.at(path), &project.root, "/workspace");
    assert_eq!(command(".venv/bin/python"), "python");
    assert_eq!(command("venv/bin/python3.12"), "python");
    assert_eq!(command("env/Scripts/python.exe"), "python");
    assert_eq!(command(".venv/bin/uvicorn"), "/workspace/.venv/bin/uvicorn");
    assert_eq!(command("sub/.venv/bin/python3"), "/workspace/sub/.venv/bin/python3");
    assert_eq!(command("main.py"), "/workspace/main.py");
    for unchanged in ["/usr/bin/python3", "python", "npx", ""] {
        assert_eq!(rewrite_venv_command(unchanged, &project.root, "/workspace"), unchanged);
    }
}

// M2: only what is an absolute path is one; names, options, addresses and assignments are not.
#[test]
fn only_absolute_arguments_are_rewritten() {
    let project = Project::new();
    let rewrite = |argument: &str| rewrite_argument(argument, &project.root, "/workspace");
    assert_eq!(rewrite(&project.at("main.py")), "/workspace/main.py");
    assert_eq!(rewrite(&format!("--config={}", project.at("c=1.toml"))), "--config=/workspace/c=1.toml");
    for unchanged in [
        "--config",
        "-m",
        "server",
        "https://example.org/a",
        "a=b",
        "./main.py",
        "main.py",
        "--x=y",
        "--x=",
        "--",
    ] {
        assert_eq!(rewrite(unchanged), unchanged);
    }
    let assignment = format!("HOME={}", project.root);
    assert_eq!(rewrite(&assignment), assignment);
    // Whatever directory the application itself is in.
    let here = std::env::current_dir().unwrap();
    let here = here.to_str().unwrap();
    for unchanged in ["--config", "Cargo.toml", "a=b"] {
        assert_eq!(rewrite_argument(unchanged, here, "/workspace"), unchanged);
    }
}

#[test]
fn the_directory_around_an_environment_is_found() {
    for (directory, unwrapped) in [
        ("/a/.venv/bin", "/a"),
        ("/a/.venv/bin/x", "/a"),
        ("/a/.venv/lib", "/a/.venv/lib"),
        ("/a/venv/Scripts", "/a"),
        ("C:\\p\\env\\Scripts", "C:/p"),
        ("/.venv/bin", "/"),
        ("/a/.venv/bin/.env/bin", "/a/.venv/bin"),
        ("/a/bin", "/a/bin"),
        ("/a\\b", "/a\\b"),
        ("", ""),
    ] {
        assert_eq!(unwrap_venv_path(directory), unwrapped, "{directory}");
    }
}

#[test]
fn the_directory_of_a_command_is_inferred_from_what_exists() {
    let project = Project::new();
    let infer = |command: &str, args: &[String]| infer_host_path(command, args, &[]);
    let root = Some(project.root.clone());
    assert_eq!(infer("python", &[project.at("main.py")]), root);
    assert_eq!(infer("python", &[project.at("main.py"), project.at("src/server.py")]), root);
    assert_eq!(infer("python", &[project.at("src/server.py")]), Some(project.at("src")));
    // A directory is taken for what is in it.
    assert_eq!(infer("ls", &[project.at("src")]), root);
    assert_eq!(infer(&project.at(".venv/bin/python"), &[]), root);
    assert_eq!(infer(&project.at(".venv/bin/python"), &[project.at("src/server.py")]), root);
    assert_eq!(infer("python", &["main.py".to_owned(), "-v".to_owned()]), None);
    assert_eq!(infer(&project.at("missing"), &[]), None);
    assert_eq!(infer("", &[]), None);
    // Nothing but the root of all in common.
    assert_eq!(infer(&project.at("main.py"), &["/etc/hosts".to_owned()]), None);
}

// M3: an interpreter of the system neither is a project nor hides one.
#[test]
fn programs_of_the_system_and_paths_outside_the_roots_do_not_count() {
    let project = Project::new();
    for program in ["/bin/sh", "/usr/bin/env"] {
        assert!(Path::new(program).exists(), "{program}");
        assert_eq!(infer_host_path(program, &[], &[]), None, "{program}");
        let inferred = infer_host_path(program, &[project.at("main.py")], &[]);
        assert_eq!(inferred, Some(project.root.clone()), "{program}");
    }
    let args = [project.at("main.py"), "/etc/hosts".to_owned()];
    let roots = [PathBuf::from(project.place.path())];
    assert_eq!(infer_host_path("python", &args, &roots), Some(project.root.clone()));
    assert_eq!(infer_host_path("python", &args[..1], &[PathBuf::from("/srv")]), None);
}

#[test]
fn a_normal_path_is_absolute_and_without_links() {
    let project = Project::new();
    symlink(&project.root, project.place.path().join("alias")).unwrap();
    let alias = project.place.path().join("alias/src/../new/file");
    assert_eq!(normalize(alias.to_str().unwrap()), project.at("new/file"));
    assert_eq!(normalize(&format!(" {}/src/ ", project.root)), project.at("src"));
    assert_eq!(normalize("  "), "");
    let here = std::env::current_dir().unwrap().canonicalize().unwrap();
    assert_eq!(Path::new(&normalize("not-there")), here.join("not-there"));
}
