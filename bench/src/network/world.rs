//! Namespaces: a host whose only neighbour is a server, and networks between the two.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use super::traffic::{CLIENT, CONGESTION, HOLD, Outcome, SERVE, SERVER, Work};

const READY_LIMIT: Duration = Duration::from_secs(10);
/// Which user a network of ordinary users runs as.
const NOBODY: &str = "65534";

/// A process that ends with this.
#[derive(Debug)]
pub(super) struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    fn start(command: &mut Command) -> anyhow::Result<Self> {
        let started = command.stdin(Stdio::piped()).stderr(Stdio::null()).spawn();
        Ok(Self(started.with_context(|| format!("starting {command:?}"))?))
    }

    /// Starts one that says when it is ready.
    fn ready(command: &mut Command) -> anyhow::Result<Self> {
        let mut running = Self::start(command.stdout(Stdio::piped()))?;
        let mut line = String::new();
        if let Some(stdout) = running.0.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        ensure!(line.trim() == "ready", "{command:?} did not get ready");
        Ok(running)
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

/// The server in its namespace, joined to the one that this process is in.
#[derive(Debug)]
pub(super) struct World {
    program: PathBuf,
    _server: Running,
}

impl World {
    /// Call in a network and a mount namespace of this process's own.
    pub(super) fn start() -> anyhow::Result<Self> {
        let program = std::env::current_exe()?;
        // Ordinary users may have the device on most machines; a peer runs as one.
        run("mount -t tmpfs none /dev/net")?;
        run("mknod -m 666 /dev/net/tun c 10 200")?;
        run("chmod 666 /dev/net/tun")?;
        let server = Running::ready(Command::new("unshare").arg("--net").arg(&program).arg(SERVE))?;
        let pid = server.pid();
        std::fs::write("/proc/sys/net/ipv4/tcp_congestion_control", CONGESTION)
            .context("setting the congestion control of the namespace")?;
        run("ip link set lo up")?;
        run(&format!("ip link add up0 type veth peer name down0 netns {pid}"))?;
        for command in ["addr add 198.51.100.2/24 dev down0", "link set lo up", "link set down0 up"] {
            run(&format!("nsenter -t {pid} -n ip {command}"))?;
        }
        run(&format!("nsenter -t {pid} -n ip addr add {SERVER}/32 dev down0"))?;
        run("ip addr add 198.51.100.1/24 dev up0")?;
        run("ip link set up0 up")?;
        run("ip route add default via 198.51.100.2")?;
        Ok(Self { program, _server: server })
    }

    pub(super) fn program(&self) -> &Path {
        &self.program
    }

    /// The client beside us: over the veth alone.
    pub(super) fn work(&self, work: Work) -> anyhow::Result<Outcome> {
        finish(Command::new(&self.program).arg(CLIENT).arg(argument(work)?))
    }

    /// A namespace behind pasta, which makes it as the user it is run by.
    pub(super) fn pasta(&self) -> anyhow::Result<Between> {
        let holder = as_nobody("unshare --user --map-root-user --net");
        self.between(holder, |pid| {
            as_nobody(&format!("pasta --config-net -4 -f -t none -u none -T none -U none -I tap0 {pid}"))
        })
    }

    /// A namespace behind slirp4netns, with the MTU that its manual advises.
    pub(super) fn slirp(&self) -> anyhow::Result<Between> {
        let mut holder = Command::new("unshare");
        holder.arg("--net");
        self.between(holder, |pid| command(&format!("slirp4netns -c -m 65520 {pid} tap0")))
    }

    fn between(&self, mut holder: Command, peer: impl Fn(&str) -> Command) -> anyhow::Result<Between> {
        let holder = Running::ready(holder.arg(&self.program).arg(HOLD))?;
        let peer = Running::start(peer(&holder.pid()).stdout(Stdio::null()))?;
        let between = Between { program: self.program.clone(), _peer: peer, holder };
        let started = Instant::now();
        loop {
            match between.work(Work::Requests(1)) {
                Ok(_) => return Ok(between),
                Err(error) if started.elapsed() > READY_LIMIT => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }
}

/// A namespace with somebody's network in it.
#[derive(Debug)]
pub(super) struct Between {
    program: PathBuf,
    _peer: Running,
    holder: Running,
}

impl Between {
    pub(super) fn work(&self, work: Work) -> anyhow::Result<Outcome> {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.holder.pid(), "-n"]).arg(&self.program).arg(CLIENT);
        finish(command.arg(argument(work)?))
    }
}

pub(super) fn argument(work: Work) -> anyhow::Result<String> {
    Ok(serde_json::to_string(&work)?)
}

fn finish(command: &mut Command) -> anyhow::Result<Outcome> {
    let done = command.stdin(Stdio::null()).output()?;
    if !done.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&done.stderr).trim());
    }
    Ok(serde_json::from_slice(&done.stdout)?)
}

fn command(line: &str) -> Command {
    let mut words = line.split(' ');
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words);
    command
}

fn as_nobody(line: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]).args(line.split(' '));
    command
}

fn run(line: &str) -> anyhow::Result<()> {
    let status = command(line).stdin(Stdio::null()).status().with_context(|| line.to_owned())?;
    ensure!(status.success(), "`{line}` ended with {status}");
    Ok(())
}
