//! A small MCP server, bare and by `sandcrate mcp run`: a tool call there and back, and a start to the first answer.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use tempfile::TempDir;

/// Imports what servers usually do, and answers every line with a line.
const SERVER: &str = r#"
import sys, json, asyncio, logging, typing, dataclasses, urllib.request
for line in sys.stdin:
    request = json.loads(line)
    answer = {"jsonrpc": "2.0", "id": request["id"], "result": {"content": [{"type": "text", "text": "ok"}]}}
    print(json.dumps(answer), flush=True)
"#;
const CALL: &[u8] =
    b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{\"name\":\"x\",\"arguments\":{}}}\n";

/// Where the server lies, with whatever runs of it need.
#[derive(Debug)]
pub(crate) struct Place {
    directory: TempDir,
    sandcrate: PathBuf,
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
        Ok(Self { directory, sandcrate: sandcrate.to_owned() })
    }

    pub(crate) fn start(&self, starter: Starter) -> anyhow::Result<Talk> {
        let server = self.directory.path().join("project/server.py");
        let mut command = match starter {
            Starter::Nobody => Command::new("/usr/bin/python3"),
            Starter::Sandcrate => {
                let mut command = Command::new(&self.sandcrate);
                command.args(["mcp", "run", "--", "/usr/bin/python3"]);
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
    pub(crate) fn first_answer(&self, starter: Starter) -> anyhow::Result<Duration> {
        let began = Instant::now();
        let mut talk = self.start(starter)?;
        talk.call()?;
        Ok(began.elapsed())
    }
}

impl Talk {
    pub(crate) fn call(&mut self) -> anyhow::Result<Duration> {
        let began = Instant::now();
        self.stdin.as_mut().context("a server has no stdin")?.write_all(CALL)?;
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        ensure!(line.contains("ok"), "a server answered {line:?}");
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
