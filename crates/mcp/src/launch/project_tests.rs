//! Projects as they lie on a disk.

use super::super::command::understand;
use super::*;

fn place(files: &[(&str, &str)]) -> (tempfile::TempDir, PathBuf) {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().canonicalize().unwrap();
    for (name, content) in files {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    (place, root)
}

fn located(root: &Path, command: &str, args: &[&str], cwd: &Path) -> Option<PathBuf> {
    let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
    let understood = understand(command, &args).unwrap();
    locate(&understood, command, &args, cwd, Some(&root.join("home")), &[])
}

#[test]
fn a_project_is_where_the_script_is_or_where_its_manifest_is() {
    let (_place, root) = place(&[
        ("home/p/pyproject.toml", "[project]\n"),
        ("home/p/src/app/server.py", ""),
        ("home/plain/server.py", ""),
        ("home/docs/a.txt", ""),
        ("elsewhere/x", ""),
        ("home/venvs/a/bin/python", ""),
        ("home/venvs/a/pyvenv.cfg", ""),
    ]);
    let home = root.join("home");
    let (script, plain) = (home.join("p/src/app/server.py"), home.join("plain/server.py"));
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    assert_eq!(located(&root, "python", &[&text(&script)], &root), Some(home.join("p")));
    assert_eq!(located(&root, "python", &["server.py"], &home.join("plain")), Some(home.join("plain")));
    assert_eq!(located(&root, "python", &["plain/server.py"], &home), Some(home.join("plain")));
    // With another path the common directory is the whole home: the script's own is taken.
    let args = [text(&plain), text(&home.join("docs"))];
    assert_eq!(located(&root, "python", &[&args[0], &args[1]], &root), Some(home.join("plain")));
    // So it is with an environment that lies elsewhere.
    let python = text(&home.join("venvs/a/bin/python"));
    assert_eq!(located(&root, &python, &[&args[0]], &root), Some(home.join("plain")));
    assert_eq!(located(&root, &python, &[&text(&script)], &root), Some(home.join("p")));
    assert_eq!(located(&root, "python", &["-m", "app"], &home.join("p")), Some(home.join("p")));
    assert_eq!(located(&root, "python", &["-m", "app"], &root.join("elsewhere")), None);
    assert_eq!(located(&root, "npx", &["-y", "pkg", &text(&home.join("docs"))], &root), None);
    let directory = text(&home.join("p"));
    assert_eq!(
        located(&root, "uv", &["--directory", &directory, "run", "x.py"], &root),
        Some(home.join("p"))
    );
}

#[test]
fn manifests_say_what_is_installed() {
    let kind = |files: &[(&str, &str)]| {
        let (_place, root) = place(files);
        python_manifest(&root).unwrap().map(|manifest| manifest.kind)
    };
    assert_eq!(kind(&[("x.py", "")]), None);
    assert_eq!(kind(&[("requirements.txt", "a")]), Some(PythonKind::Requirements));
    assert_eq!(kind(&[("pyproject.toml", "[tool.ruff]\n")]), None);
    let tools_only = [("pyproject.toml", "[tool.ruff]\n"), ("requirements.txt", "a")];
    assert_eq!(kind(&tools_only), Some(PythonKind::Requirements));
    assert_eq!(kind(&[("pyproject.toml", "[project]\nname='x'\n")]), Some(PythonKind::Dependencies));
    assert_eq!(kind(&[("pyproject.toml", "[build-system]\n[project]\n")]), Some(PythonKind::Package));
    assert_eq!(kind(&[("setup.py", "")]), Some(PythonKind::Package));
}

#[test]
fn sources_count_for_a_package_and_not_for_a_list_of_dependencies() {
    let (_place, root) = place(&[("requirements.txt", "a"), ("x.py", "1")]);
    let before = python_manifest(&root).unwrap();
    fs::write(root.join("x.py"), "22").unwrap();
    assert_eq!(python_manifest(&root).unwrap(), before);
    fs::write(root.join("setup.py"), "").unwrap();
    let before = python_manifest(&root).unwrap();
    fs::create_dir(root.join("__pycache__")).unwrap();
    fs::write(root.join("__pycache__/x.pyc"), "").unwrap();
    assert_eq!(python_manifest(&root).unwrap(), before);
    fs::write(root.join("x.py"), "333").unwrap();
    assert_ne!(python_manifest(&root).unwrap(), before);
}

#[test]
fn a_node_project_is_installed_without_its_scripts_unless_it_has_its_modules() {
    let package = r#"{"dependencies": {"a": "1"}, "scripts": {"prepare": "boom"}}"#;
    let (_place, root) = place(&[("package.json", package), ("package-lock.json", "{}")]);
    let manifest = node_manifest(&root).unwrap().unwrap();
    assert!(!manifest.package.contains("boom") && manifest.package.contains("\"a\""));
    assert_eq!(manifest.lock, Some(("package-lock.json", "{}".to_owned())));
    fs::create_dir(root.join("node_modules")).unwrap();
    assert_eq!(node_manifest(&root).unwrap(), None);
    let (_place, root) = place(&[("package.json", "{}")]);
    assert_eq!(node_manifest(&root).unwrap(), None);
    let (_place, root) = place(&[("package.json", "{")]);
    assert!(node_manifest(&root).unwrap_err().to_string().contains("package.json"));
}

#[test]
fn a_copy_keeps_links_leaves_caches_and_goes_with_its_owner() {
    let (_place, root) =
        place(&[("p/a.py", "1"), ("p/.git/x", ""), ("p/sub/__pycache__/y", ""), ("p/.venv/z", "")]);
    std::os::unix::fs::symlink("/etc/hostname", root.join("p/link")).unwrap();
    let cache = root.join("cache");
    let copy = StagedCopy::make(&cache, &root.join("p")).unwrap();
    assert_eq!(fs::read_to_string(copy.path.join("a.py")).unwrap(), "1");
    assert!(copy.path.join("link").is_symlink() && copy.path.join(".venv/z").exists());
    assert!(!copy.path.join(".git").exists() && !copy.path.join("sub/__pycache__").exists());
    // One whose owner was killed is swept by the next; one in use is not.
    let left = cache.join("staging/dead");
    fs::create_dir(&left).unwrap();
    fs::write(left.with_extension("lock"), "").unwrap();
    let second = StagedCopy::make(&cache, &root.join("p")).unwrap();
    assert!(!left.exists() && copy.path.exists());
    drop((copy, second));
    assert_eq!(fs::read_dir(cache.join("staging")).unwrap().count(), 0);
}

#[test]
fn a_configured_directory_must_be_one() {
    let (_place, root) = place(&[("p/x", "")]);
    assert_eq!(configured("p", &root).unwrap(), root.join("p"));
    let error = configured("p/x", &root).unwrap_err();
    assert!(error.starts_with("MCP host_path does not exist or is not a directory: /"), "{error}");
}
