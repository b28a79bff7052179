//! A server as a process: started on a port of its own, counted from outside, ended.

use std::ffi::OsString;
use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::client::Client;

/// Longer than any server here takes to start.
const START: Duration = Duration::from_secs(30);
/// Between two attempts to reach one that starts.
const RETRY: Duration = Duration::from_micros(300);
/// How long one may take to end by itself.
const END: Duration = Duration::from_secs(20);

/// How a server is started; `{port}` and `{state}` in arguments are filled in.
#[derive(Debug, Clone)]
pub(crate) struct Recipe {
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<&'static str>,
    pub(crate) environment: Vec<(&'static str, OsString)>,
}

/// A running server with a directory of its own, which is also its working directory.
#[derive(Debug)]
pub(crate) struct Daemon {
    child: Child,
    pub(crate) port: u16,
    pub(crate) state: TempDir,
}

impl Daemon {
    /// Starts a server; the time is that from its start to the answer to a first ping.
    pub(crate) fn start(recipe: &Recipe, runtime: &Runtime) -> anyhow::Result<(Self, Duration)> {
        let state = tempfile::Builder::new().prefix("sandcrate-bench-").tempdir_in("/var/tmp")?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let fill = |argument: &&str| {
            argument.replace("{port}", &port.to_string()).replace("{state}", &state.path().to_string_lossy())
        };
        let mut command = Command::new(&recipe.program);
        command
            .args(recipe.arguments.iter().map(fill))
            .current_dir(state.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(state.path().join("bench.log"))?);
        for (name, _) in std::env::vars_os() {
            // What configures the servers of the one who measures is not to configure ours.
            if ["SANDCRATE_", "LANGBOT_"].iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
                command.env_remove(name);
            }
        }
        command.envs(recipe.environment.iter().map(|(name, value)| (name, value)));
        let started = Instant::now();
        let child = command.spawn().with_context(|| format!("starting {}", recipe.program.display()))?;
        let mut daemon = Self { child, port, state };
        runtime.block_on(daemon.first_ping(started))?;
        Ok((daemon, started.elapsed()))
    }

    async fn first_ping(&mut self, started: Instant) -> anyhow::Result<()> {
        loop {
            match Client::connect(self.port).await {
                Ok(mut client) => return client.call("__ping", json!({})).await.map(drop),
                Err(error) if started.elapsed() > START => {
                    bail!("the server does not answer: {error:#}; it said: {}", self.log())
                }
                Err(_) => {}
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("the server ended with {status}; it said: {}", self.log());
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.state.path().join("bench.log")).unwrap_or_default()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The cgroups of our own servers are named after an instance that has a directory in the state.
    pub(crate) fn cgroups(&self) -> usize {
        let instances = fs::read_dir(self.state.path().join("instances")).into_iter().flatten().flatten();
        let names: Vec<String> = instances
            .filter(|entry| entry.path().is_dir())
            .map(|entry| format!("sandcrate-{}", entry.file_name().to_string_lossy()))
            .collect();
        let ours =
            |path: &Path| names.iter().any(|name| path.components().any(|part| part.as_os_str() == &**name));
        directories(Path::new("/sys/fs/cgroup")).iter().filter(|path| ours(path)).count()
    }

    pub(crate) fn directories(&self) -> usize {
        directories(self.state.path()).len()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let deadline = Instant::now() + END;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Those below one, at any depth. What disappears meanwhile is not there.
fn directories(top: &Path) -> Vec<PathBuf> {
    let mut found = vec![top.to_owned()];
    let mut next = 0;
    while next < found.len() {
        let entries = fs::read_dir(&found[next]).into_iter().flatten().flatten();
        found.extend(
            entries
                .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
                .map(|entry| entry.path()),
        );
        next += 1;
    }
    found.split_off(1)
}
