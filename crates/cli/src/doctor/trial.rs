//! The truth: a real box on this machine, its enforcement record, and how long things take.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use sandcrate_backend::{Backend, DiskLimit, ExecRequest, ExitStatus, Network, SessionId, SessionSpec};
use sandcrate_protocol::{Control, Enforcement};
use serde::Serialize;

use crate::failure::Shown;
use crate::native::{NativeBackend, NativeConfig};

/// Commands that the median of a warm start is taken from.
const WARM_ROUNDS: usize = 11;

/// Of the box that shows what a disk quota is here.
const QUOTA: u64 = 16 << 20;

/// More than any healthy machine needs; a hang of the kernel must not be one of ours.
const TRIAL_TIME: Duration = Duration::from_secs(30);

#[derive(Debug, Serialize)]
pub(super) struct Trial {
    /// From nothing to a box that takes commands: launcher, template, box.
    pub(super) first_start_ms: f64,
    /// A further box with its first command, the launcher being there.
    pub(super) cold_ms: f64,
    /// One command in a box that is there.
    pub(super) warm_ms: f64,
    pub(super) enforcement: Enforcement,
    /// A box with an isolated network that lets nothing through: what holds it, or why there is none.
    #[serde(skip)]
    pub(super) isolated_network: Result<String, String>,
}

pub(super) async fn run(config: NativeConfig) -> Result<Trial, Shown> {
    let result = match tokio::time::timeout(TRIAL_TIME, attempt(config)).await {
        Ok(result) => result,
        Err(_) => {
            Err(anyhow::anyhow!("a box did not start and run `true` within {} s", TRIAL_TIME.as_secs()))
        }
    };
    result.map_err(|error| Shown::of(&error))
}

async fn attempt(config: NativeConfig) -> anyhow::Result<Trial> {
    let began = Instant::now();
    let backend = NativeBackend::open(config).await.context("opening the native backend")?;
    let result = in_backend(&backend, began).await;
    backend.shutdown().await;
    result
}

async fn in_backend(backend: &NativeBackend, began: Instant) -> anyhow::Result<Trial> {
    let first = spec("doctor-first")?;
    let info = backend.start(first.clone()).await.context("starting a box")?;
    let first_start_ms = millis(began);
    run_true(backend, &first.id).await?;

    let began = Instant::now();
    let second = spec("doctor-second")?;
    backend.start(second.clone()).await.context("starting a second box")?;
    run_true(backend, &second.id).await?;
    let cold_ms = millis(began);

    let mut warm = Vec::new();
    for _ in 0..WARM_ROUNDS {
        let began = Instant::now();
        run_true(backend, &second.id).await?;
        warm.push(millis(began));
    }
    warm.sort_by(f64::total_cmp);
    // The default bound on disk is an accounted one by choice; what the machine can do shows when a hard one
    // is asked for.
    let mut third = spec("doctor-third")?;
    third.limits.disk = DiskLimit::Hard(QUOTA);
    let mut enforcement = info.enforcement;
    let with_quota = backend.start(third.clone()).await.context("starting a box with a disk quota")?;
    if let Some(disk) = with_quota.enforcement.get(Control::Disk) {
        enforcement.record(Control::Disk, disk.state, disk.by.clone());
    }
    let mut fourth = spec("doctor-fourth")?;
    fourth.network = Network::Isolated(Box::default());
    let isolated_network = match backend.start(fourth.clone()).await {
        Ok(info) => {
            Ok(info.enforcement.get(Control::Network).map_or(String::new(), |found| found.by.clone()))
        }
        Err(error) => Err(format!("{:#}", anyhow::Error::new(error))),
    };
    for id in [&first.id, &second.id, &third.id, &fourth.id] {
        backend.stop(id).await.context("ending a box")?;
    }
    Ok(Trial { isolated_network, first_start_ms, cold_ms, warm_ms: warm[WARM_ROUNDS / 2], enforcement })
}

fn spec(name: &str) -> anyhow::Result<SessionSpec> {
    Ok(SessionSpec::new(SessionId::new(format!("{name}-{}", std::process::id()))?))
}

async fn run_true(backend: &NativeBackend, id: &SessionId) -> anyhow::Result<()> {
    let request = ExecRequest::argv(["true"]).timeout(Duration::from_secs(10));
    let result = backend.exec(id, request).await.context("running `true` in a box")?.collect(1024).await?;
    let (status, stderr) = (result.exit.status, String::from_utf8_lossy(&result.stderr).into_owned());
    ensure!(status == ExitStatus::Code(0), "`true` in a box ended with {status:?}: {stderr}");
    Ok(())
}

fn millis(began: Instant) -> f64 {
    (began.elapsed().as_secs_f64() * 1e5).round() / 1e2
}
