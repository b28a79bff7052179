//! The isolated network of a box beside others: bulk data, connections, latency, and what an idle box costs.
//!
//! All of it happens in a network namespace of the bench's own, whose only neighbour is a namespace with the server:
//! no packet leaves the machine. The plain veth between the two is the floor; pasta, slirp4netns and our helper each
//! stand between a namespace and that veth. The daemon that is measured is therefore another process of this program,
//! which tells its samples line by line.

mod traffic;
mod world;

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use sandcrate_backend::{
    Backend, ExecRequest, ExitStatus, Isolation, Mount, MountAccess, Network, SessionId, SessionSpec,
};
use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;

use crate::args::Options;
use crate::catalog::{NetworkFigure as Figure, Row, Way};
use crate::idle::start_many;
use crate::measurements::Measurements;
use crate::memory::Memory;
use crate::native::Native;
pub(crate) use traffic::dispatch_role;
use traffic::{CLIENT, Outcome, SERVER, Work};
use world::{Between, World, argument};

/// Set in the process that measures.
const INSIDE: &str = "SANDCRATE_BENCH_NETWORK";
/// Until boxes have gone to rest.
const SETTLE: Duration = Duration::from_millis(500);
const REPETITIONS: u32 = 3;
/// The program's directory in the box.
const PLACE: &str = "/bench";

/// From the process in the namespaces.
#[derive(Debug, Serialize, Deserialize)]
enum Told {
    Sample(Row, f64),
    EndRound,
    Note(String),
}

pub(crate) fn is_inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

/// Measures in another process, in namespaces of its own.
pub(crate) fn measure(measured: &mut Measurements) -> anyhow::Result<()> {
    if !rustix::process::geteuid().is_root() {
        measured.note("not measured: the network; its namespaces need root".to_owned());
        return Ok(());
    }
    let mut child = Command::new("unshare")
        .args(["--net", "--mount", "--kill-child", "--fork"])
        .arg(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .env(INSIDE, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting unshare")?;
    let lines = BufReader::new(child.stdout.take().context("a child without its output")?);
    for line in lines.lines() {
        match serde_json::from_str(&line?).context("a sample of the network")? {
            Told::Sample(row, value) => measured.value(row, value),
            Told::EndRound => measured.end_round(),
            Told::Note(note) => measured.note(note),
        }
    }
    let status = child.wait()?;
    ensure!(status.success(), "measuring the network ended with {status}");
    Ok(())
}

fn tell(told: &Told) -> anyhow::Result<()> {
    writeln!(io::stdout(), "{}", serde_json::to_string(told)?)?;
    Ok(())
}

/// Measures, in the namespaces.
pub(crate) fn run_inside(options: &Options, runtime: &Runtime) -> anyhow::Result<()> {
    let world = World::start().context("making the namespaces")?;
    let mut peers = Vec::new();
    for (way, package, peer) in
        [(Way::Pasta, "passt", world.pasta()), (Way::Slirp, "slirp4netns", world.slirp())]
    {
        match peer {
            Ok(peer) => peers.push((way, peer)),
            Err(error) => {
                tell(&Told::Note(format!("not measured: {way} (package {package}): {error:#}")))?;
            }
        }
    }
    let native = Native::open(runtime, 0)?;
    let ours = OurBox::open(&native, &world)?;
    for _ in 0..options.rounds() {
        one_round(options, &world, &peers, &ours)?;
    }
    native.close();
    idle(options, runtime)
}

fn one_round(
    options: &Options,
    world: &World,
    peers: &[(Way, Between)],
    ours: &OurBox<'_>,
) -> anyhow::Result<()> {
    let millis = u64::try_from(options.window().as_millis())?;
    let requests = if options.quick { 100 } else { 400 };
    let works = [
        (Figure::Out, Work::Out(millis)),
        (Figure::In, Work::In(millis)),
        (Figure::Request, Work::Requests(requests)),
        (Figure::Rate1, Work::Rate { callers: 1, millis }),
        (Figure::Rate8, Work::Rate { callers: 8, millis }),
    ];
    for (figure, work) in works {
        report(figure, Way::Veth, &world.work(work)?)?;
        report(figure, Way::Sandcrate, &ours.work(work)?)?;
        for (way, peer) in peers {
            match peer.work(work) {
                Ok(outcome) => report(figure, *way, &outcome)?,
                // One that stalls is nobody's reason to measure nothing else.
                Err(error) => tell(&Told::Note(format!("{way} did not finish: {error:#}")))?,
            }
        }
    }
    tell(&Told::EndRound)
}

fn report(figure: Figure, way: Way, outcome: &Outcome) -> anyhow::Result<()> {
    if outcome.lost > 0 {
        ensure!(matches!(way, Way::Pasta | Way::Slirp), "{way} lost {} bytes", outcome.lost);
        tell(&Told::Note(format!("{way} lost {} bytes at the end of a connection", outcome.lost)))?;
    }
    for value in &outcome.values {
        tell(&Told::Sample(Row::Network(figure, way), *value))?;
    }
    for value in &outcome.connects {
        tell(&Told::Sample(Row::Network(Figure::Connect, way), *value))?;
    }
    Ok(())
}

/// A box that may reach the server and nothing else.
struct OurBox<'a> {
    native: &'a Native,
    session: SessionId,
}

fn isolated() -> anyhow::Result<Network> {
    let mut isolation = Isolation { policy: format!("allow {SERVER}").parse()?, ..Isolation::default() };
    isolation.grants.allow.push(SERVER.to_string().parse()?);
    // The bound per second is for programs that run wild; here it would be what is measured.
    isolation.limits.opened_per_second = 1_000_000;
    Ok(Network::Isolated(Box::new(isolation)))
}

impl<'a> OurBox<'a> {
    fn open(native: &'a Native, world: &World) -> anyhow::Result<Self> {
        let session = native.next_id()?;
        let mut spec = SessionSpec::new(session.clone());
        spec.network = isolated()?;
        let directory = world.program().parent().context("a program without a directory")?;
        spec.mounts.push(Mount::new(directory, PLACE, MountAccess::ReadOnly));
        let backend = Arc::clone(&native.backend);
        native.run(async move { Ok(backend.start(spec).await?) })?;
        Ok(Self { native, session })
    }

    fn work(&self, work: Work) -> anyhow::Result<Outcome> {
        let name = std::env::current_exe()?;
        let name = name.file_name().context("a program without a name")?.to_string_lossy();
        let request = ExecRequest::argv([format!("{PLACE}/{name}"), CLIENT.to_owned(), argument(work)?]);
        let (backend, session) = (Arc::clone(&self.native.backend), self.session.clone());
        let done = self
            .native
            .run(async move { Ok(backend.exec(&session, request).await?.collect(1 << 20).await?) })?;
        ensure!(
            done.exit.status == ExitStatus::Code(0),
            "the client in the box ended with {:?}: {}",
            done.exit.status,
            String::from_utf8_lossy(&done.stderr)
        );
        Ok(serde_json::from_slice(&done.stdout)?)
    }
}

/// What an idle box costs with a network and without, the helper's growth included.
fn idle(options: &Options, runtime: &Runtime) -> anyhow::Result<()> {
    let count = options.sessions();
    for _ in 0..if options.quick { 1 } else { REPETITIONS } {
        for (figure, network) in [(Figure::IdleOff, Network::Off), (Figure::IdleOn, isolated()?)] {
            let native = Native::open(runtime, 0)?;
            // The helper itself is there once, whatever the number of boxes.
            start_many(&native, 1, &network)?;
            std::thread::sleep(SETTLE);
            let before = Memory::of(std::process::id())?;
            start_many(&native, count, &network)?;
            std::thread::sleep(SETTLE);
            let after = Memory::of(std::process::id())?;
            let each = (after.counted() - before.counted()) / f64::from(count);
            tell(&Told::Sample(Row::Network(figure, Way::Sandcrate), each))?;
            native.close();
        }
        tell(&Told::EndRound)?;
    }
    Ok(())
}
