//! Keys, scripts and programs of environments.

use std::path::PathBuf;

use super::*;
use crate::launch::project::PythonKind;

#[derive(Debug)]
struct Fake(&'static [&'static str]);

impl Toolbox for Fake {
    fn find(&self, program: &str) -> Option<Tool> {
        let known = self.0.contains(&program);
        known.then(|| Tool { program: PathBuf::from(format!("/no/such/{program}")), ..Tool::default() })
    }
}

const ALL: Fake = Fake(&["npm", "node", "uv", "python3"]);
const PIP: Fake = Fake(&["python3"]);

#[test]
fn packages_and_tools_decide_the_key() {
    let one = |packages: &[&str]| {
        let packages: Vec<String> = packages.iter().map(|name| (*name).to_owned()).collect();
        npm(&packages, &ALL).unwrap().key
    };
    assert_eq!(one(&["a@1"]), one(&["a@1"]));
    assert_ne!(one(&["a@1"]), one(&["a@2"]));
    assert_ne!(one(&["a", "b"]), one(&["b", "a"]));
    let with_uv = tool("a", &[], None, &ALL).unwrap();
    let with_pip = tool("a", &[], None, &PIP).unwrap();
    assert_ne!(with_uv.key, with_pip.key);
    assert_ne!(with_uv.key, tool("a", &["b".to_owned()], None, &ALL).unwrap().key);
    assert!(with_uv.script.contains("uv tool install") && with_pip.script.contains("-m pip install"));
}

#[test]
fn a_missing_tool_is_named() {
    assert!(npm(&["a".to_owned()], &PIP).unwrap_err().contains("`npm`"));
    assert!(tool("a", &[], Some("3.12"), &PIP).unwrap_err().contains("`--python`"));
    assert!(tool("a", &[], None, &Fake(&[])).unwrap_err().contains("neither `uv` nor `python3`"));
}

#[test]
fn a_project_is_installed_by_what_it_has() {
    let recipe = |kind, files: &[(&'static str, &str)], toolbox: &Fake| {
        let files = files.iter().map(|(name, content)| (*name, (*content).to_owned())).collect();
        python_project(&PythonManifest { kind, files }, "python3", toolbox).unwrap()
    };
    let locked = recipe(PythonKind::Dependencies, &[("pyproject.toml", "x"), ("uv.lock", "1")], &ALL);
    assert!(locked.script.contains("uv sync") && locked.script.contains("--frozen"));
    let changed = recipe(PythonKind::Dependencies, &[("pyproject.toml", "x"), ("uv.lock", "2")], &ALL);
    assert_ne!(locked.key, changed.key);
    let list = recipe(PythonKind::Requirements, &[("requirements.txt", "a")], &PIP);
    assert!(list.script.contains("pip install --no-cache-dir -r requirements.txt"), "{}", list.script);
    assert!(list.script.contains("--exclude=.venv") && list.needs_project);
}

#[test]
fn the_program_is_the_one_that_npx_takes() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path();
    let write = |path: &str, text: &str| {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("package.json", r#"{"dependencies": {"@s/pkg": "1"}}"#);
    for (bin, expected) in [
        (r#""cli.js""#, Ok("pkg")),
        (r#"{"other": "x"}"#, Ok("other")),
        (r#"{"a": "x", "pkg": "y"}"#, Ok("pkg")),
        (r#"{"a": "x", "b": "y"}"#, Err("several programs (a, b)")),
        ("null", Err("no program")),
    ] {
        write("node_modules/@s/pkg/package.json", &format!("{{\"bin\": {bin}}}"));
        match (npm_program(root), expected) {
            (Ok(found), Ok(wanted)) => assert_eq!(found, wanted),
            (Err(error), Err(word)) => assert!(error.contains(word), "{error}"),
            (found, _) => panic!("{bin}: {found:?}"),
        }
    }
    write("package.json", r#"{"dependencies": {"../../etc": "1"}}"#);
    assert!(npm_program(root).unwrap_err().contains("no name of a package"));
}

#[test]
fn a_program_is_found_by_its_name_alone_and_what_there_is_is_told() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path();
    std::fs::create_dir_all(root.join("bin")).unwrap();
    std::fs::create_dir_all(root.join("tools/x/bin")).unwrap();
    std::os::unix::fs::symlink("/opt/sandcrate/env/k/tools/x/bin/srv", root.join("bin/srv")).unwrap();
    std::fs::write(root.join("tools/x/bin/more"), "").unwrap();
    assert_eq!(program_in(root, "k", "srv").unwrap(), "/opt/sandcrate/env/k/bin/srv");
    assert_eq!(program_in(root, "k", "more").unwrap(), "/opt/sandcrate/env/k/tools/x/bin/more");
    assert!(program_in(root, "k", "nope").unwrap_err().contains("it has: srv"));
    assert!(program_in(root, "k", "../../../etc/passwd").is_err());
}
