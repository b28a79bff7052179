//! The host's side of the attempts: lays the bait, starts a box, runs them one by one, and judges those that
//! cannot speak for themselves.

use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use sandcrate_backend::{
    Backend, Collected, DiskLimit, ExecRequest, ExitStatus, LimitHit, Limits, Mount, MountAccess, SessionId,
    SessionInfo, SessionSpec,
};
use sandcrate_protocol::Enforcement;

use super::catalogue::{self, Attack, Judge};
use super::outcome::Outcome;
use super::{Bait, ROLE, Tried, Verdict};
use crate::native::{NativeBackend, NativeConfig};

/// Where the box finds this program, unless it lies in /usr, which every box has.
const PROGRAM: &str = "/opt/sandcrate-attack";

/// Small, so that filling them is quick.
const LIMITS: Limits = Limits {
    memory_bytes: 128 << 20,
    cpu_millis: 1000,
    pids: 64,
    tmp_bytes: 16 << 20,
    open_files: 1024,
    disk: DiskLimit::Hard(DISK_BYTES),
};
const DISK_BYTES: u64 = 32 << 20;

/// For one attempt; filling a quota is the slowest.
const ATTEMPT_TIME: Duration = Duration::from_secs(30);
/// For the attempt that is to be ended by its time limit.
const SHORT_TIME: Duration = Duration::from_millis(700);

/// Listeners and a file that no box may reach. They live until all attempts are made.
struct Trap {
    bait: Bait,
    _canary: tempfile::TempDir,
    _listeners: Vec<TcpListener>,
    _socket: Option<UnixListener>,
}

impl Trap {
    fn set() -> anyhow::Result<Self> {
        let token = format!("canary-{}-{:?}", std::process::id(), std::time::SystemTime::now());
        let dir =
            tempfile::Builder::new().prefix("sandcrate-canary-").tempdir().context("making a canary")?;
        let canary = dir.path().join("canary");
        std::fs::write(&canary, &token).context("writing the canary")?;
        let listen = |address: &str| TcpListener::bind(address).ok();
        let (v4, v6) = (listen("127.0.0.1:0"), listen("[::1]:0"));
        let port = |listener: &Option<TcpListener>| Some(listener.as_ref()?.local_addr().ok()?.port());
        let abstract_socket = format!("sandcrate-doctor-{}", std::process::id());
        let socket = SocketAddr::from_abstract_name(abstract_socket.as_bytes())
            .and_then(|name| UnixListener::bind_addr(&name))
            .ok();
        let bait = Bait {
            canary: canary.display().to_string(),
            token,
            port4: port(&v4),
            port6: port(&v6),
            abstract_socket,
            uid: rustix::process::geteuid().as_raw(),
            memory_bytes: LIMITS.memory_bytes,
            pids: LIMITS.pids,
            cpu_millis: LIMITS.cpu_millis,
            tmp_bytes: LIMITS.tmp_bytes,
            disk_bytes: DISK_BYTES,
            open_files: LIMITS.open_files,
        };
        Ok(Self { bait, _canary: dir, _listeners: v4.into_iter().chain(v6).collect(), _socket: socket })
    }
}

/// Makes all attempts. A failure of the preparations is an attempt that could not be made, not a held one.
pub(in super::super) async fn run(config: NativeConfig) -> Vec<Tried> {
    match attempt_all(config).await {
        Ok(tried) => tried,
        Err(error) => vec![Tried {
            id: "—".to_owned(),
            name: "preparation".to_owned(),
            what: "start a box with this program in it".to_owned(),
            verdict: Verdict::Broken,
            detail: format!("no attempt could be made: {error:#}"),
        }],
    }
}

async fn attempt_all(config: NativeConfig) -> anyhow::Result<Vec<Tried>> {
    let trap = Trap::set()?;
    let backend = NativeBackend::open(config).await.context("opening the native backend")?;
    let result = in_backend(&backend, &trap.bait).await;
    backend.shutdown().await;
    result
}

async fn in_backend(backend: &NativeBackend, bait: &Bait) -> anyhow::Result<Vec<Tried>> {
    let bait_text = serde_json::to_string(bait)?;
    let program = Program::of_this_process()?;
    let mut boxes = 0;
    let mut session = start(backend, &program, &mut boxes).await?;
    let mut all = Vec::new();
    for attack in catalogue::ALL {
        // Limits that end a box by design, and attempts that succeed in it, leave none for the next.
        if !backend.is_alive(&session.id).await {
            session = start(backend, &program, &mut boxes).await?;
        }
        let limit = if attack.judge == Judge::TimeLimit { SHORT_TIME } else { ATTEMPT_TIME };
        let request = ExecRequest::argv([
            program.in_box.as_os_str(),
            ROLE.as_ref(),
            attack.name.as_ref(),
            bait_text.as_ref(),
        ]);
        let result = match backend.exec(&session.id, request.timeout(limit)).await {
            Ok(execution) => execution.collect(64 << 10).await,
            Err(error) => Err(error),
        };
        let alive = backend.is_alive(&session.id).await;
        let outcome = match result {
            Ok(collected) => judge(attack, &collected, alive),
            Err(error) if attack.judge == Judge::DiskLimit => {
                Outcome::held(format!("the box was ended: {error}"))
            }
            Err(error) => Outcome::broken(format!("the box did not survive it: {error}")),
        };
        let outcome = excuse(attack, outcome, &session.enforcement);
        all.push(Tried {
            id: attack.id.to_owned(),
            name: attack.name.to_owned(),
            what: attack.what.to_owned(),
            verdict: outcome.verdict,
            detail: outcome.detail,
        });
    }
    Ok(all)
}

/// What the box itself says it does not enforce is no promise broken; the report has it among the gaps.
fn excuse(attack: &Attack, outcome: Outcome, enforcement: &Enforcement) -> Outcome {
    match attack.control {
        Some(control) if outcome.verdict == Verdict::Broken && !enforcement.holds(control) => {
            Outcome::not_applicable(format!("{control} is not enforced in full here: {}", outcome.detail))
        }
        _ => outcome,
    }
}

/// This program, on the host and in the box.
struct Program {
    in_box: PathBuf,
    mount: Option<Mount>,
}

impl Program {
    fn of_this_process() -> anyhow::Result<Self> {
        let exe = std::env::current_exe().context("finding this program")?;
        let exe = exe.canonicalize().with_context(|| format!("finding {}", exe.display()))?;
        if exe.starts_with("/usr") {
            return Ok(Self { in_box: exe, mount: None });
        }
        let mount = Mount::new(exe, PROGRAM, MountAccess::ReadOnly);
        Ok(Self { in_box: Path::new(PROGRAM).to_owned(), mount: Some(mount) })
    }
}

async fn start(backend: &NativeBackend, program: &Program, boxes: &mut u32) -> anyhow::Result<SessionInfo> {
    *boxes += 1;
    let mut spec = SessionSpec::new(SessionId::new(format!("attack-{}-{boxes}", std::process::id()))?);
    spec.limits = LIMITS;
    spec.mounts.extend(program.mount.clone());
    backend.start(spec).await.context("starting a box")
}

fn judge(attack: &Attack, result: &Collected, alive: bool) -> Outcome {
    let exit = &result.exit;
    let word = serde_json::from_slice::<Outcome>(&result.stdout).ok();
    let killed = matches!(exit.status, ExitStatus::Signal(_));
    let hit = |wanted: fn(&LimitHit) -> bool| exit.limits_hit.iter().any(wanted);
    match (attack.judge, word) {
        (Judge::TimeLimit, _) if exit.timed_out && exit.usage.wall < SHORT_TIME * 4 => {
            Outcome::held(format!("ended after {} ms", exit.usage.wall.as_millis()))
        }
        (Judge::TimeLimit, _) => Outcome::broken(format!("not ended in time: {:?}", exit.status)),
        (Judge::MemoryLimit, None) if hit(|hit| matches!(hit, LimitHit::Memory { .. })) => {
            Outcome::held("killed by the limit, and reported as such")
        }
        // Without a cgroup the allocation fails and the program aborts.
        (Judge::MemoryLimit, None) if killed => Outcome::held(format!("stopped: {:?}", exit.status)),
        (Judge::DiskLimit, None) if hit(|hit| matches!(hit, LimitHit::Disk { .. })) => {
            Outcome::held("ended by the accountant, and reported as such")
        }
        (_, Some(_)) if !alive => Outcome::broken("the box did not survive it"),
        (_, Some(outcome)) => outcome,
        (_, None) if exit.timed_out => Outcome::not_applicable("the attempt hung and was ended"),
        // SIGSYS: the filter kills instead of answering.
        (_, None) if exit.status == ExitStatus::Signal(31) => {
            Outcome::held("killed by the system call filter")
        }
        (_, None) => {
            let words = String::from_utf8_lossy(&result.stderr);
            Outcome::not_applicable(format!("the attempt ended with {:?} {}", exit.status, words.trim()))
        }
    }
}
