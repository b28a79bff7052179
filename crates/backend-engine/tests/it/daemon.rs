//! Engines of the tests' own: on private sockets, with private data, gone afterwards.
//!
//! Podman keeps its containers when its service ends, so the guard removes them first; its default network is never
//! used, since it would make a bridge on the host.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bollard::query_parameters::CreateImageOptions;
use bollard::{API_DEFAULT_VERSION, Docker, body_full};
use futures_util::StreamExt;
use sandcrate_backend_engine::EngineKind;

/// For a daemon to come up, or to go.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Daemon {
    pub(crate) kind: EngineKind,
    directory: PathBuf,
    child: Option<Child>,
    /// Beside what every daemon of ours is told.
    options: Vec<String>,
}

/// Whether the packages are here at all.
pub(crate) fn installed(kind: EngineKind) -> bool {
    let program = match kind {
        EngineKind::Docker => "/usr/sbin/dockerd",
        EngineKind::Podman => "/usr/bin/podman",
    };
    Path::new(program).exists()
}

impl Daemon {
    pub(crate) async fn start(kind: EngineKind, scratch: &Path) -> io::Result<Self> {
        Self::start_with(kind, scratch, &[]).await
    }

    pub(crate) async fn start_with(kind: EngineKind, scratch: &Path, options: &[&str]) -> io::Result<Self> {
        let directory = scratch.join(kind.name());
        fs::create_dir_all(directory.join("tmp"))?;
        let mut daemon = Self {
            kind,
            directory,
            child: None,
            options: options.iter().map(|option| (*option).to_owned()).collect(),
        };
        daemon.up().await?;
        Ok(daemon)
    }

    /// One that runs already, and that somebody else ends.
    pub(crate) fn at(kind: EngineKind, socket: &Path) -> Borrowed {
        let directory = socket.parent().unwrap_or(Path::new("/")).to_owned();
        Borrowed(std::mem::ManuallyDrop::new(Self { kind, directory, child: None, options: Vec::new() }))
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.join("engine.sock")
    }

    pub(crate) fn address(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    /// Starts the daemon, on what an earlier one left.
    pub(crate) async fn up(&mut self) -> io::Result<()> {
        let at = |name: &str| self.directory.join(name);
        let log = File::options().create(true).append(true).open(at("log"))?;
        let mut command = match self.kind {
            EngineKind::Docker => {
                let mut command = Command::new("dockerd");
                command
                    .args(["--bridge=none", "--iptables=false", "--host", &self.address()])
                    .arg("--data-root")
                    .arg(at("data"))
                    .arg("--exec-root")
                    .arg(at("exec"))
                    .arg("--pidfile")
                    .arg(at("pid"))
                    .args(&self.options);
                command
            }
            EngineKind::Podman => {
                let settings =
                    "[engine]\nruntime = \"runc\"\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\n";
                fs::write(at("containers.conf"), settings)?;
                let mut command = self.podman();
                command.args(["system", "service", "--time=0", &self.address()]);
                command
            }
        };
        // In its own directory: Podman's monitor leaves a note where it is when a box was out of memory.
        let child = command
            .current_dir(&self.directory)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .spawn()?;
        self.child = Some(child);
        let deadline = Instant::now() + PATIENCE;
        while self.client().await.is_err() {
            if Instant::now() > deadline {
                return Err(io::Error::other(format!("{} does not come up: {}", self.kind, self.log())));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    fn podman(&self) -> Command {
        let at = |name: &str| self.directory.join(name);
        let mut command = Command::new("podman");
        command
            .env("CONTAINERS_CONF", at("containers.conf"))
            // It leaves what it imports there.
            .env("TMPDIR", at("tmp"))
            .arg("--root")
            .arg(at("root"))
            .arg("--runroot")
            .arg(at("run"));
        command
    }

    pub(crate) async fn client(&self) -> Result<Docker, bollard::errors::Error> {
        let docker =
            Docker::connect_with_unix(&self.socket().display().to_string(), 120, API_DEFAULT_VERSION)?;
        docker.negotiate_version().await
    }

    /// Makes an image of a tar. Podman takes no other tag than `latest`.
    pub(crate) async fn import(&self, name: &str, tar: Vec<u8>) -> io::Result<()> {
        let docker = self.client().await.map_err(io::Error::other)?;
        let (repo, tag) = name.rsplit_once(':').ok_or_else(|| io::Error::other("a name without a tag"))?;
        let options = CreateImageOptions {
            from_src: Some("-".to_owned()),
            repo: Some(repo.to_owned()),
            tag: Some(tag.to_owned()),
            ..Default::default()
        };
        let mut steps = std::pin::pin!(docker.create_image(Some(options), Some(body_full(tar.into())), None));
        while let Some(step) = steps.next().await {
            step.map_err(|error| io::Error::other(format!("{error}: {}", self.log())))?;
        }
        Ok(())
    }

    /// Ends the daemon as an operator would; Docker's containers end with it.
    pub(crate) fn down(&mut self) -> io::Result<()> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        let deadline = Instant::now() + PATIENCE;
        while child.try_wait()?.is_none() {
            if Instant::now() > deadline {
                child.kill()?;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        // Or it would look like one that does not answer.
        let _ = fs::remove_file(self.socket());
        Ok(())
    }

    fn log(&self) -> String {
        let log = fs::read_to_string(self.directory.join("log")).unwrap_or_default();
        log.lines().rev().take(8).collect::<Vec<_>>().join(" | ")
    }
}

/// A daemon that is not ended here.
pub(crate) struct Borrowed(std::mem::ManuallyDrop<Daemon>);

impl std::ops::Deref for Borrowed {
    type Target = Daemon;

    fn deref(&self) -> &Daemon {
        &self.0
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if self.kind == EngineKind::Podman {
            let _ = self.podman().args(["rm", "-a", "-f", "-t", "0"]).output();
        }
        let _ = self.down();
        if self.kind == EngineKind::Podman {
            let _ = self.podman().args(["system", "reset", "--force"]).output();
        }
        if self.kind == EngineKind::Docker {
            // Of a network namespace that containers without a network share.
            unmount_below(&self.directory);
        }
    }
}

/// Mounts and processes that name the directory.
pub(crate) fn left_below(directory: &Path) -> Vec<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let name = directory.display().to_string();
    let mounts = mounts.lines().filter(|line| line.contains(&name)).map(str::to_owned);
    let own = std::process::id().to_string();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = entries.filter_map(|entry| {
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        (line.contains(&name) && entry.file_name().to_str() != Some(&own)).then_some(line)
    });
    mounts.chain(processes).collect()
}

/// Cgroups of single containers, in every hierarchy.
pub(crate) fn container_cgroups() -> BTreeSet<PathBuf> {
    let below = |directory: PathBuf| {
        fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path())
    };
    let parents = below("/sys/fs/cgroup".into())
        .flat_map(|root| ["libpod_parent", "docker"].map(|name| root.join(name)));
    parents
        .flat_map(below)
        .filter(|path| path.is_dir() && path.file_name().is_some_and(|name| name != "conmon"))
        .collect()
}

/// Removes the empty cgroups that were not there before: Podman leaves some of containers that ended by themselves.
/// One with processes in it belongs to somebody else's engine.
pub(crate) fn clear_cgroups(before: &BTreeSet<PathBuf>) {
    for new in container_cgroups().difference(before) {
        let _ = fs::remove_dir(new);
    }
}

/// What an engine left mounted, innermost first.
fn unmount_below(directory: &Path) {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
    let mut points: Vec<PathBuf> = points.filter(|point| point.starts_with(directory)).collect();
    points.sort();
    for point in points.iter().rev() {
        let _ = rustix::mount::unmount(point, rustix::mount::UnmountFlags::DETACH);
    }
}
