//! LangBot's own runtime, from PyPI, in a virtual environment kept below `target/`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};
use serde_json::json;

use super::daemon::Recipe;
use crate::catalog::Server;
use crate::peers;

const PACKAGE: &str = "langbot-plugin==0.4.2";
/// What its boxes are made of unless a session names another.
pub(crate) const IMAGE: &str = "rockchin/langbot-sandbox:latest";
/// Where it keeps the boxes of nsjail; nothing can change that.
const NSJAIL_BOXES: &str = "/tmp/langbot-box-nsjail";

/// The reference on one of its backends.
#[derive(Debug)]
pub(crate) struct Reference {
    pub(crate) server: Server,
    pub(crate) recipe: Recipe,
    /// What a session must name, where the backend needs an image that is here.
    pub(crate) image: Option<String>,
}

/// The reference on each backend that may be used here, and why others may not.
pub(crate) fn find() -> anyhow::Result<(Vec<Reference>, Vec<String>)> {
    let python = environment(PACKAGE)?;
    let (mut found, mut absent) = (Vec::new(), Vec::new());
    match nsjail() {
        Ok(()) => found.push(reference(&python, Server::ReferenceNsjail, "nsjail", None)),
        Err(why) => absent.push(format!("{}: {why}", Server::ReferenceNsjail)),
    }
    match docker() {
        Ok(image) => found.push(reference(&python, Server::ReferenceDocker, "docker", Some(image))),
        Err(why) => absent.push(format!("{}: {why}", Server::ReferenceDocker)),
    }
    Ok((found, absent))
}

/// The reference without a backend: by a name that none has, because it looks for one itself when told nothing.
pub(crate) fn without_backend() -> anyhow::Result<Reference> {
    Ok(reference(&environment(PACKAGE)?, Server::Reference, "none", None))
}

// When the reference starts, it removes the boxes of every other one that uses the same daemon or directory.

fn nsjail() -> Result<(), String> {
    if !answers("nsjail", "--help") {
        return Err("not on PATH".to_owned());
    }
    let boxes = std::fs::read_dir(NSJAIL_BOXES).map_or(0, Iterator::count);
    if boxes == 0 { Ok(()) } else { Err(others(boxes, NSJAIL_BOXES)) }
}

/// The image that its boxes are made of.
fn docker() -> Result<String, String> {
    let image = peers::image("docker", IMAGE)?;
    let listed = peers::output("docker", &["ps", "-aq", "--filter", "label=langbot.box=true"]);
    let boxes = listed.ok_or("its boxes cannot be listed")?.lines().count();
    if boxes == 0 { Ok(image) } else { Err(others(boxes, "docker by the label langbot.box")) }
}

fn others(boxes: usize, place: &str) -> String {
    format!("its start would remove another LangBot's boxes ({boxes} in {place}); remove what is left over")
}

fn reference(python: &Path, server: Server, backend: &str, image: Option<String>) -> Reference {
    let config = OsString::from(json!({ "backend": backend }).to_string());
    let recipe = Recipe {
        program: python.to_owned(),
        arguments: vec![
            "-m",
            "langbot_plugin.cli.__init__",
            "box",
            "--ws-control-port",
            "{port}",
            "--host",
            "127.0.0.1",
        ],
        environment: vec![("LANGBOT_BOX_CONFIG", config)],
    };
    Reference { server, recipe, image }
}

/// The interpreter of the environment with a package, which is made when it is not there.
pub(crate) fn environment(package: &str) -> anyhow::Result<PathBuf> {
    // target/release/sandcrate-bench
    let program = std::env::current_exe()?;
    let target = program.ancestors().nth(2).context("a program outside a target directory")?;
    let home = target.join("bench-reference").join(package);
    let python = home.join("bin/python");
    let complete = home.join("complete");
    if !complete.exists() {
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&home))?;
        run(Command::new(&python).args(["-m", "pip", "install", "--quiet", package]))?;
        std::fs::write(complete, [])?;
    }
    Ok(python)
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status();
    let status = status.with_context(|| format!("running {}", command.get_program().display()))?;
    ensure!(status.success(), "{} ended with {status}", command.get_program().display());
    Ok(())
}

fn answers(program: &str, argument: &str) -> bool {
    let mut command = Command::new(program);
    command.arg(argument).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
