//! A sandbox from nothing to its first result and its end: by our REST, by the calls that E2B's SDKs make, and by E2B's
//! own Python SDK. The first two are spoken by one client on one connection, so their difference is our own time for E2B's
//! protocol and not a client's.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use crate::server::reference;

const PACKAGE: &str = "e2b==2.63.0";
/// Sandboxes wanted at the same moment.
pub(crate) const CROWD: usize = 20;
/// What the SDKs run a command by.
const ARGV: [&str; 4] = ["/bin/bash", "-l", "-c", "true"];

/// Prints the milliseconds of each flow: one after the other, then many at once.
const SCRIPT: &str = r#"
import json, sys, time
from concurrent.futures import ThreadPoolExecutor
from e2b import Sandbox

def flow(_):
    began = time.perf_counter()
    sandbox = Sandbox.create(allow_internet_access=False)
    sandbox.commands.run("true")
    sandbox.kill()
    return (time.perf_counter() - began) * 1000

alone, crowd = int(sys.argv[1]), int(sys.argv[2])
flow(0)
with ThreadPoolExecutor(crowd) as pool:
    list(pool.map(flow, range(crowd)))
    print(json.dumps({"alone": [flow(n) for n in range(alone)], "crowd": list(pool.map(flow, range(crowd)))}))
"#;

/// One connection, used for one flow: the server closes those that are idle between two.
#[derive(Debug)]
pub(crate) struct Talk(BufReader<TcpStream>);

/// What a run of the SDK told, in milliseconds.
#[derive(Debug, serde::Deserialize)]
pub(crate) struct Told {
    pub(crate) alone: Vec<f64>,
    pub(crate) crowd: Vec<f64>,
}

/// E2B's SDK in an environment of its own.
#[derive(Debug)]
pub(crate) struct Sdk {
    python: PathBuf,
    port: u16,
}

impl Sdk {
    pub(crate) fn find(port: u16) -> anyhow::Result<Self> {
        Ok(Self { python: reference::environment(PACKAGE)?, port })
    }

    pub(crate) fn run(&self, alone: u32) -> anyhow::Result<Told> {
        let url = format!("http://127.0.0.1:{}", self.port);
        let output = Command::new(&self.python)
            .args(["-c", SCRIPT, &alone.to_string(), &CROWD.to_string()])
            .envs([("E2B_API_URL", &url), ("E2B_SANDBOX_URL", &url)])
            .env("E2B_API_KEY", "e2b_of_this_machine")
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .context("running E2B's SDK")?;
        ensure!(output.status.success(), "E2B's SDK ended with {}", output.status);
        serde_json::from_slice(&output.stdout).context("reading what E2B's SDK measured")
    }
}

impl Talk {
    pub(crate) fn connect(port: u16) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        Ok(Self(BufReader::new(stream)))
    }

    pub(crate) fn rest_flow(&mut self) -> anyhow::Result<Duration> {
        let path = "/v1/sessions/bench-rest";
        let began = Instant::now();
        self.call("POST", path, &[], b"{}")?;
        let body = json!({"argv": ARGV}).to_string();
        let ran: Value =
            serde_json::from_slice(&self.call("POST", &format!("{path}/exec"), &[], body.as_bytes())?)?;
        self.call("DELETE", path, &[], b"")?;
        let time = began.elapsed();
        ensure!(ran["exit_code"] == 0, "a measured command ended with {ran}");
        Ok(time)
    }

    pub(crate) fn e2b_flow(&mut self) -> anyhow::Result<Duration> {
        let began = Instant::now();
        let wanted =
            json!({"templateID": "base", "timeout": 300, "allow_internet_access": false}).to_string();
        let made: Value =
            serde_json::from_slice(&self.call("POST", "/v2/sandboxes", &[], wanted.as_bytes())?)?;
        let id = made["sandboxID"].as_str().context("a sandbox has no id")?;
        let token = made["envdAccessToken"].as_str().unwrap_or_default();
        let process = json!({"process": {"cmd": ARGV[0], "args": &ARGV[1..]}, "stdin": false}).to_string();
        let mut message = vec![0];
        message.extend(u32::try_from(process.len())?.to_be_bytes());
        message.extend(process.as_bytes());
        let headers = [
            ("E2b-Sandbox-Id", id),
            ("E2b-Sandbox-Port", "49983"),
            ("X-Access-Token", token),
            ("Content-Type", "application/connect+json"),
            ("Connect-Protocol-Version", "1"),
        ];
        let told = self.call("POST", "/process.Process/Start", &headers, &message)?;
        self.call("DELETE", &format!("/sandboxes/{id}"), &[], b"")?;
        let time = began.elapsed();
        let told = String::from_utf8_lossy(&told);
        ensure!(
            told.contains("\"exited\":true") && !told.contains("error"),
            "a measured command told {told}"
        );
        Ok(time)
    }

    /// One request on the connection that is kept; the body of a success.
    fn call(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> anyhow::Result<Vec<u8>> {
        let mut request =
            format!("{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {}\r\n", body.len());
        for (name, value) in headers {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        if !headers.iter().any(|(name, _)| *name == "Content-Type") {
            request.push_str("Content-Type: application/json\r\n");
        }
        request.push_str("\r\n");
        let mut request = request.into_bytes();
        request.extend_from_slice(body);
        self.0.get_mut().write_all(&request)?;
        let status = self.line()?;
        let (mut length, mut chunked) = (0, false);
        loop {
            let line = self.line()?.to_ascii_lowercase();
            match line.split_once(": ") {
                Some(("content-length", text)) => length = text.parse()?,
                Some(("transfer-encoding", _)) => chunked = true,
                Some(_) => {}
                None => break,
            }
        }
        let mut answer = Vec::new();
        if chunked {
            loop {
                let size = usize::from_str_radix(&self.line()?, 16)?;
                self.take(size, &mut answer)?;
                self.line()?;
                if size == 0 {
                    break;
                }
            }
        } else {
            self.take(length, &mut answer)?;
        }
        let success = status.split(' ').nth(1).is_some_and(|code| code.starts_with('2'));
        ensure!(success, "{method} {path}: {status}: {}", String::from_utf8_lossy(&answer));
        Ok(answer)
    }

    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        ensure!(self.0.read_line(&mut line)? > 0, "the server closed the connection");
        Ok(line.trim_end().to_owned())
    }

    fn take(&mut self, size: usize, into: &mut Vec<u8>) -> anyhow::Result<()> {
        let start = into.len();
        into.resize(start + size, 0);
        Ok(self.0.read_exact(&mut into[start..])?)
    }
}
