//! A small MCP server, bare and by `sandcrate mcp run`: a tool call there and back, and a start to the first answer.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use tempfile::TempDir;

use crate::server::reference;

/// Imports what servers usually do, and answers every line with a line.
const SERVER: &str = r#"
import sys, json, asyncio, logging, typing, dataclasses, urllib.request
for line in sys.stdin:
    request = json.loads(line)
    answer = {"jsonrpc": "2.0", "id": request["id"], "result": {"content": [{"type": "text", "text": "ok"}]}}
    print(json.dumps(answer), flush=True)
"#;
/// The same with the SDK that nearly all have, and that takes most of their start.
const SDK_SERVER: &str = r#"
from mcp.server.fastmcp import FastMCP
server = FastMCP("bench")
@server.tool()
def x() -> str:
    return "ok"
server.run()
"#;
const SDK: &str = "mcp==1.30.0";
const HELLO: &[u8] =
    b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"initialize\",\"params\":{\"protocolVersion\":\
    \"2025-06-18\",\"capabilities\":{},\"clientInfo\":{\"name\":\"bench\",\"version\":\"1\"}}}\n";
const CALL: &[u8] =
    b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{\"name\":\"x\",\"arguments\":{}}}\n";

/// Where the server lies, with whatever runs of it need.
#[derive(Debug)]
pub(crate) struct Place {
    directory: TempDir,
    sandcrate: PathBuf,
    /// With the SDK, where it can be had; the server lies beside it.
    sdk: Option<PathBuf>,
}

/// Which server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Plain,
    Sdk,
}

/// Who starts the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Starter {
    Nobody,
    Sandcrate,
}

#[derive(Debug)]
pub(crate) struct Talk {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Place {
    pub(crate) fn new(sandcrate: &Path) -> anyhow::Result<Self> {
        let directory = tempfile::tempdir()?;
        let project = directory.path().join("project");
        std::fs::create_dir(&project)?;
        std::fs::write(project.join("server.py"), SERVER)?;
        Ok(Self { directory, sandcrate: sandcrate.to_owned(), sdk: None })
    }

    /// Installs the SDK; in its own directory, as in a project with its environment, lies the server.
    pub(crate) fn with_sdk(&mut self) -> anyhow::Result<()> {
        let python = reference::environment(SDK)?;
        std::fs::write(beside(&python)?, SDK_SERVER)?;
        self.sdk = Some(python);
        Ok(())
    }

    pub(crate) fn has_sdk(&self) -> bool {
        self.sdk.is_some()
    }

    pub(crate) fn start(&self, kind: Kind, starter: Starter) -> anyhow::Result<Talk> {
        let (python, server) = match kind {
            Kind::Plain => ("/usr/bin/python3".into(), self.directory.path().join("project/server.py")),
            Kind::Sdk => {
                let python = self.sdk.clone().context("there is no SDK")?;
                let server = beside(&python)?;
                (python, server)
            }
        };
        let mut command = match starter {
            Starter::Nobody => Command::new(python),
            Starter::Sandcrate => {
                let mut command = Command::new(&self.sandcrate);
                command.args(["mcp", "run", "--"]).arg(python);
                command
            }
        };
        command
            .arg(server)
            .env("SANDCRATE_STATE_DIR", self.directory.path().join("state"))
            .env("XDG_CACHE_HOME", self.directory.path().join("cache"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command.spawn().context("starting an MCP server")?;
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().context("a server has no stdout")?);
        Ok(Talk { child, stdin, stdout })
    }

    /// From the start to the first answer.
    pub(crate) fn first_answer(&self, kind: Kind, starter: Starter) -> anyhow::Result<Duration> {
        let began = Instant::now();
        let mut talk = self.start(kind, starter)?;
        match kind {
            Kind::Plain => talk.call()?,
            Kind::Sdk => talk.ask(HELLO, "serverInfo")?,
        };
        Ok(began.elapsed())
    }
}

/// `server.py` in the environment of an interpreter.
fn beside(python: &Path) -> anyhow::Result<PathBuf> {
    Ok(python.ancestors().nth(2).context("an interpreter outside an environment")?.join("server.py"))
}

impl Talk {
    pub(crate) fn call(&mut self) -> anyhow::Result<Duration> {
        self.ask(CALL, "ok")
    }

    fn ask(&mut self, request: &[u8], answer: &str) -> anyhow::Result<Duration> {
        let began = Instant::now();
        self.stdin.as_mut().context("a server has no stdin")?.write_all(request)?;
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        ensure!(line.contains(answer), "a server answered {line:?}");
        Ok(began.elapsed())
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        // End of file is the word to end.
        self.stdin.take();
        let _ = self.child.wait();
    }
}
