//! How an environment is made: its key, the tools, and the script for the install box.
//!
//! In the script `$ENV` is the environment's directory and `$PROJECT` the host's project, read-only. What is not to
//! be kept goes below /workspace, which is private to the install box.

use std::path::Path;

use super::environments::mount_path;
use super::key::KeyMaker;
use super::project::{NodeManifest, PythonManifest};
use super::tools::{Tool, Toolbox};

/// Everything that an install needs to know.
#[derive(Debug)]
pub(super) struct Recipe {
    pub(super) key: String,
    /// For people.
    pub(super) what: String,
    pub(super) script: String,
    pub(super) args: Vec<String>,
    pub(super) tools: Vec<Tool>,
    /// The project is mounted for the install.
    pub(super) needs_project: bool,
    /// Files that lie in the environment when the script begins.
    pub(super) files: Vec<(&'static str, String)>,
}

/// Where the install box has the project.
pub(super) const INSTALL_PROJECT: &str = "/workspace/project";

const COPY_PROJECT: &str = r#"mkdir -p /workspace/src
cd "$PROJECT"
tar -cf - --exclude=.venv --exclude=venv --exclude=.git --exclude=__pycache__ --exclude=node_modules \
    --exclude=.tox --exclude=.nox --exclude='*.egg-info' --exclude=.uv-cache . | tar -C /workspace/src -xf -
cd /workspace/src
"#;

fn found(toolbox: &dyn Toolbox, name: &str, why: &str) -> Result<Tool, String> {
    toolbox.find(name).ok_or_else(|| format!("`{name}` is not on this machine, and {why} needs it"))
}

/// Packages of npm.
pub(super) fn npm(packages: &[String], toolbox: &dyn Toolbox) -> Result<Recipe, String> {
    let tools = vec![found(toolbox, "npm", "npx")?, found(toolbox, "node", "npx")?];
    let mut key = KeyMaker::new("npm");
    key.add("node", tools[1].identity()).add("npm", tools[0].identity());
    for package in packages {
        key.add("package", package);
    }
    Ok(Recipe {
        key: key.key(),
        what: packages.join(", "),
        script: "cd \"$ENV\"\nnpm install --no-audit --no-fund --loglevel=http -- \"$@\"\n".to_owned(),
        args: packages.to_vec(),
        tools,
        needs_project: false,
        files: vec![("package.json", "{\"private\": true}\n".to_owned())],
    })
}

/// The dependencies of a Node project, for `node_modules` beside it.
pub(super) fn npm_project(manifest: &NodeManifest, toolbox: &dyn Toolbox) -> Result<Recipe, String> {
    let tools = vec![found(toolbox, "npm", "a package.json")?, found(toolbox, "node", "a package.json")?];
    let mut key = KeyMaker::new("npm-project");
    key.add("node", tools[1].identity())
        .add("npm", tools[0].identity())
        .add("package.json", &manifest.package);
    let mut files = vec![("package.json", manifest.package.clone())];
    let mut command = "install";
    if let Some((name, lock)) = &manifest.lock {
        key.add(name, lock);
        files.push((name, lock.clone()));
        command = "ci";
    }
    Ok(Recipe {
        key: key.key(),
        what: "the dependencies of package.json".to_owned(),
        script: format!(
            "cd \"$ENV\"\nnpm {command} --omit=dev --no-audit --no-fund --loglevel=http\nmkdir -p node_modules\n"
        ),
        args: Vec::new(),
        tools,
        needs_project: false,
        files,
    })
}

/// A Python package whose program is run.
pub(super) fn tool(
    package: &str,
    with: &[String],
    python: Option<&str>,
    toolbox: &dyn Toolbox,
) -> Result<Recipe, String> {
    let uv = toolbox.find("uv");
    let interpreter = toolbox.find("python3");
    let mut key = KeyMaker::new(if uv.is_some() { "uv-tool" } else { "pip-tool" });
    key.add("package", package).add("python", python.unwrap_or_default());
    key.add("interpreter", interpreter.as_ref().map(Tool::identity).unwrap_or_default());
    for more in with {
        key.add("with", more);
    }
    let mut args = vec![package.to_owned()];
    let script = if uv.is_some() {
        args.extend(with.iter().flat_map(|more| ["--with".to_owned(), more.clone()]));
        args.extend(python.into_iter().flat_map(|version| ["--python".to_owned(), version.to_owned()]));
        "uv tool install \"$@\"\n"
    } else if python.is_some() {
        return Err("`uv` is not on this machine, and `--python` needs it".to_owned());
    } else {
        args.extend(with.iter().cloned());
        "python3 -m venv \"$ENV/venv\"\n\"$ENV/venv/bin/python\" -m pip install --no-cache-dir \"$@\"\n"
    };
    if uv.is_none() && interpreter.is_none() {
        return Err("neither `uv` nor `python3` is on this machine, and uvx needs one".to_owned());
    }
    Ok(Recipe {
        key: key.key(),
        what: package.to_owned(),
        script: script.to_owned(),
        args,
        tools: uv.into_iter().chain(interpreter).collect(),
        needs_project: false,
        files: Vec::new(),
    })
}

/// What a Python project needs, as a virtual environment.
pub(super) fn python_project(
    manifest: &PythonManifest,
    interpreter: &str,
    toolbox: &dyn Toolbox,
) -> Result<Recipe, String> {
    let uv = toolbox.find("uv");
    let python = toolbox.find(interpreter).or_else(|| toolbox.find("python3"));
    let mut key = KeyMaker::new(if uv.is_some() { "uv-project" } else { "pip-project" });
    key.add("interpreter", python.as_ref().map(Tool::identity).unwrap_or_default());
    for (name, content) in &manifest.files {
        key.add(name, content);
    }
    let has = |name: &str| manifest.files.iter().any(|(known, _)| *known == name);
    let program = match &python {
        Some(python) => python.program.display().to_string(),
        None => return Err(format!("`{interpreter}` is not on this machine")),
    };
    // In an image the name is all there is.
    let program = if program.starts_with('/') { program } else { "python3".to_owned() };
    let install = match (uv.is_some(), has("uv.lock"), manifest.kind) {
        (true, true, _) => "uv sync --python \"$1\" --frozen --no-dev --no-editable\n".to_owned(),
        (true, false, kind) => {
            format!(
                "uv venv --python \"$1\" \"$ENV/venv\"\nuv pip install --python \"$ENV/venv/bin/python\" {}\n",
                kind.uv_arguments()
            )
        }
        (false, _, kind) => format!(
            "\"$1\" -m venv \"$ENV/venv\"\n\"$ENV/venv/bin/python\" -m pip install --no-cache-dir {}\n",
            kind.pip_arguments()
        ),
    };
    Ok(Recipe {
        key: key.key(),
        what: format!(
            "what the project needs ({})",
            manifest.files.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
        ),
        script: format!("{COPY_PROJECT}{install}"),
        args: vec![program],
        tools: uv.into_iter().chain(python).collect(),
        needs_project: true,
        files: Vec::new(),
    })
}

/// The path in the box of a program that an environment has.
pub(super) fn program_in(environment: &Path, key: &str, name: &str) -> Result<String, String> {
    let mount = mount_path(key);
    if name.contains('/') {
        return Err(format!("`{name}` is no name of a program"));
    }
    let mut places = vec!["bin".to_owned(), "venv/bin".to_owned(), "node_modules/.bin".to_owned()];
    if let Ok(tools) = std::fs::read_dir(environment.join("tools")) {
        places
            .extend(tools.flatten().map(|tool| format!("tools/{}/bin", tool.file_name().to_string_lossy())));
    }
    let found = places.iter().find(|place| environment.join(place).join(name).symlink_metadata().is_ok());
    if let Some(place) = found {
        return Ok(format!("{mount}/{place}/{name}"));
    }
    let mut known: Vec<String> = places[..1]
        .iter()
        .chain(&places[2..3])
        .filter_map(|place| std::fs::read_dir(environment.join(place)).ok())
        .flat_map(|entries| entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()))
        .take(20)
        .collect();
    known.sort();
    Err(format!("what was installed has no program `{name}`; it has: {}", known.join(", ")))
}

/// A manifest is a small file, whoever wrote it.
const MAX_PACKAGE_JSON: u64 = 4 << 20;

/// The program that npx would take: the only one of the package, or the one of its own name.
pub(super) fn npm_program(environment: &Path) -> Result<String, String> {
    let read = |path: &Path| -> Result<serde_json::Value, String> {
        let unreadable = |error: String| format!("{} cannot be read: {error}", path.display());
        let meta = path.metadata().map_err(|error| unreadable(error.to_string()))?;
        if !meta.is_file() || meta.len() > MAX_PACKAGE_JSON {
            return Err(unreadable("it is no small file".to_owned()));
        }
        let text = std::fs::read_to_string(path).map_err(|error| unreadable(error.to_string()))?;
        serde_json::from_str(&text).map_err(|error| unreadable(error.to_string()))
    };
    let own = read(&environment.join("package.json"))?;
    let name = own["dependencies"].as_object().and_then(|all| all.keys().next().cloned());
    let name = name.ok_or("nothing was installed")?;
    if name.split('/').any(|part| part.is_empty() || part.starts_with('.')) {
        return Err(format!("`{name}` is no name of a package"));
    }
    let package = read(&environment.join("node_modules").join(&name).join("package.json"))?;
    let short = name.rsplit('/').next().unwrap_or(&name).to_owned();
    match &package["bin"] {
        serde_json::Value::String(_) => Ok(short),
        serde_json::Value::Object(programs) if programs.len() == 1 => {
            programs.keys().next().cloned().ok_or(short)
        }
        serde_json::Value::Object(programs) if programs.contains_key(&short) => Ok(short),
        serde_json::Value::Object(programs) => {
            let names: Vec<_> = programs.keys().map(String::as_str).collect();
            Err(format!("{name} has several programs ({}): name one with --package={name}", names.join(", ")))
        }
        _ => Err(format!("{name} has no program to run")),
    }
}

#[cfg(test)]
#[path = "recipe_tests.rs"]
mod tests;
