//! How long single things take: floors, our warm and cold paths, peers, all in turns.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use bytes::Bytes;
use sandcrate_backend::{Backend, ExecRequest, FileReply, FileRequest};
use tokio::runtime::Runtime;

use crate::args::Options;
use crate::catalog::{Figure, Row, Server};
use crate::e2b::{Sdk, Talk};
use crate::floor::{Floor, Payload};
use crate::mcp::{self, Kind, Starter};
use crate::measurements::{Measurements, median, percentile};
use crate::native::Native;
use crate::peers;
use crate::server::Subject;

/// Boxes kept prepared by the backend that has a pool.
const POOL: usize = 4;
/// Long enough for a pool to be full again, and for what a variant left running to end.
const PAUSE: Duration = Duration::from_millis(50);

/// The same for a pool that a burst has emptied.
pub(crate) const LONG_PAUSE: Duration = Duration::from_millis(500);

/// Sessions wanted at the same moment, and how often in a round.
const CROWD: usize = 50;
const BURSTS: u32 = 4;

/// By E2B's SDK, one after the other, in a round.
const SDK_FLOWS: u32 = 20;

/// Takes one sample of everything it measures.
type Sample<'a> = dyn FnMut(&mut Measurements) -> anyhow::Result<()> + 'a;

/// Something measured, in turns with the others.
struct Variant<'a> {
    /// Samples of one turn; the first of each is thrown away, because caches are still another variant's.
    burst: u32,
    sample: Box<Sample<'a>>,
}

impl<'a> Variant<'a> {
    fn new(burst: u32, sample: impl FnMut(&mut Measurements) -> anyhow::Result<()> + 'a) -> Self {
        Self { burst, sample: Box::new(sample) }
    }

    /// A variant of one time.
    fn timed(burst: u32, row: Row, mut time: impl FnMut() -> anyhow::Result<Duration> + 'a) -> Self {
        Self::new(burst, move |measured| {
            measured.time(row, time()?);
            Ok(())
        })
    }

    /// Measures nothing. A pool fills behind the last burst, and what was ended is cleared away: the pause keeps that out
    /// of the next variant's time.
    fn rest() -> Self {
        Self::new(0, |_| {
            std::thread::sleep(PAUSE);
            Ok(())
        })
    }

    fn turn(&mut self, measured: &mut Measurements) -> anyhow::Result<()> {
        (self.sample)(&mut Measurements::default())?;
        for _ in 0..self.burst {
            (self.sample)(measured)?;
        }
        Ok(())
    }
}

pub(crate) fn measure(
    options: &Options,
    runtime: &Runtime,
    floor: &Floor,
    subjects: &[Subject],
    measured: &mut Measurements,
) -> anyhow::Result<()> {
    let (unpooled, pooled) = (Native::open(runtime, 0)?, Native::open(runtime, POOL)?);
    let peers = peers::find(options);
    let place = mcp_place(options, measured)?;
    let mut variants = floors(floor)?;
    variants.extend(ours(&unpooled, &pooled)?);
    variants.extend(peers.iter().map(|peer| {
        Variant::timed(peer.samples, peer.row, move || {
            run(&mut peer.command()).with_context(|| format!("running {peer}"))
        })
    }));
    for subject in subjects.iter().filter(|subject| subject.server != Server::SandcratePool64) {
        variants.extend(servers(subject)?);
    }
    if let Some(place) = &place {
        variants.extend(mcp_servers(place)?);
    }
    let ours = subjects.iter().find(|subject| subject.server == Server::Sandcrate);
    if let Some(subject) = ours {
        variants.extend(e2b_calls(subject.port()));
    }
    let sdk = ours.and_then(|subject| match Sdk::find(subject.port()) {
        Ok(sdk) => Some(sdk),
        Err(error) => {
            measured.note(format!("E2B's SDK: absent, {error:#}"));
            None
        }
    });
    let crowd = (0..CROWD).map(|_| Floor::start()).collect::<Result<Vec<_>, _>>();
    let crowd = crowd.context("starting the floor's launchers")?;
    for round in 0..options.rounds() {
        for _ in 0..options.turns() {
            for variant in &mut variants {
                variant.turn(measured)?;
            }
        }
        floor_burst(&crowd, measured)?;
        for subject in subjects.iter().filter(|subject| subject.server.meets_bursts()) {
            burst(subject, round, measured)?;
        }
        if let Some(sdk) = &sdk {
            e2b_sdk(sdk, measured)?;
        }
        measured.end_round();
    }
    drop(variants);
    unpooled.close();
    pooled.close();
    Ok(())
}

/// MCP servers, without anything else between.
pub(crate) fn measure_mcp(options: &Options, measured: &mut Measurements) -> anyhow::Result<()> {
    let place = mcp_place(options, measured)?.context("no `sandcrate` to measure; name it by --sandcrate")?;
    in_turns(options, &mut mcp_servers(&place)?, measured)
}

/// Servers and the floors, without anything else between.
pub(crate) fn measure_servers(
    options: &Options,
    floor: &Floor,
    subjects: &[Subject],
    measured: &mut Measurements,
) -> anyhow::Result<()> {
    let mut variants = floors(floor)?;
    for subject in subjects {
        variants.extend(servers(subject)?);
    }
    in_turns(options, &mut variants, measured)
}

fn in_turns(
    options: &Options,
    variants: &mut [Variant<'_>],
    measured: &mut Measurements,
) -> anyhow::Result<()> {
    for _ in 0..options.rounds() {
        for _ in 0..options.turns() {
            variants.iter_mut().try_for_each(|variant| variant.turn(measured))?;
        }
        measured.end_round();
    }
    Ok(())
}

fn mcp_place(options: &Options, measured: &mut Measurements) -> anyhow::Result<Option<mcp::Place>> {
    let mut place = options.sandcrate().map(|program| mcp::Place::new(&program)).transpose()?;
    if let Some(Err(error)) = place.as_mut().map(mcp::Place::with_sdk) {
        measured.note(format!("MCP's SDK: absent, {error:#}"));
    }
    Ok(place)
}

/// A sandbox's life by our own calls and by E2B's.
fn e2b_calls(port: u16) -> [Variant<'static>; 2] {
    [
        Variant::timed(4, Row::E2bRest, move || Talk::connect(port)?.rest_flow()),
        Variant::timed(4, Row::E2bCalls, move || Talk::connect(port)?.e2b_flow()),
    ]
}

/// The same by the SDK, a process of its own in each round.
fn e2b_sdk(sdk: &Sdk, measured: &mut Measurements) -> anyhow::Result<()> {
    let told = sdk.run(SDK_FLOWS)?;
    for (row, tail, times) in
        [(Row::E2bSdk, Row::E2bSdkP99, told.alone), (Row::E2bSdkCrowd, Row::E2bSdkCrowdP99, told.crowd)]
    {
        measured.value(tail, percentile(&times, 0.99));
        times.into_iter().for_each(|time| measured.value(row, time));
    }
    Ok(())
}

fn mcp_servers(place: &mcp::Place) -> anyhow::Result<Vec<Variant<'_>>> {
    let call = |row, starter| -> anyhow::Result<_> {
        let mut talk = place.start(Kind::Plain, starter)?;
        Ok(Variant::timed(10, row, move || talk.call()))
    };
    let start = |row, kind, starter| Variant::timed(3, row, move || place.first_answer(kind, starter));
    let mut variants = vec![
        call(Row::McpCallBare, Starter::Nobody)?,
        call(Row::McpCall, Starter::Sandcrate)?,
        start(Row::McpStartBare, Kind::Plain, Starter::Nobody),
        start(Row::McpStart, Kind::Plain, Starter::Sandcrate),
    ];
    if place.has_sdk() {
        variants.push(start(Row::McpSdkStartBare, Kind::Sdk, Starter::Nobody));
        variants.push(start(Row::McpSdkStart, Kind::Sdk, Starter::Sandcrate));
    }
    Ok(variants)
}

fn floors(floor: &Floor) -> anyhow::Result<Vec<Variant<'_>>> {
    let init = Arc::new(floor.warm_init().context("making the floor's warm init")?);
    let warm = |row, payload| {
        let init = Arc::clone(&init);
        Variant::timed(10, row, move || Ok(init.run(payload)?))
    };
    let cold = |row, payload| Variant::timed(6, row, move || Ok(floor.cold(payload)?));
    Ok(vec![
        Variant::timed(10, Row::SpawnTrue, || run(&mut Command::new("/bin/true"))),
        Variant::timed(10, Row::SpawnShell, || run(Command::new("/bin/sh").args(["-c", "true"]))),
        warm(Row::FloorWarm, Payload::True),
        warm(Row::FloorWarmStatic, Payload::StaticTrue),
        warm(Row::FloorWarmShell, Payload::Shell),
        cold(Row::FloorCold, Payload::True),
        cold(Row::FloorColdStatic, Payload::StaticTrue),
    ])
}

fn ours<'a>(unpooled: &'a Native, pooled: &'a Native) -> anyhow::Result<Vec<Variant<'a>>> {
    let session = unpooled.session()?;
    let warm = |row, request: ExecRequest| {
        let session = session.clone();
        Variant::timed(10, row, move || unpooled.exec(&session, &request))
    };
    let (shell, program) =
        (warm(Row::WarmShell, ExecRequest::shell("true")), warm(Row::WarmTrue, ExecRequest::argv(["true"])));
    let without_pool = Variant::new(6, |measured| {
        let life = unpooled.life()?;
        measured.time(Row::ColdCreate, life.create);
        measured.time(Row::ColdNoPool, life.first_exec);
        measured.time(Row::Stop, life.stop);
        Ok(())
    });
    let full_pool = Variant::timed(4, Row::ColdPoolFull, || {
        std::thread::sleep(PAUSE);
        Ok(pooled.life()?.first_exec)
    });
    // Long bursts: the pool is full at the start and what counts is how it keeps up.
    let busy_pool = Variant::timed(5 * POOL as u32, Row::ColdPoolBusy, || Ok(pooled.life()?.first_exec));
    let files = Variant::timed(4, Row::FileRoundTrip, {
        let session = session.clone();
        move || file_round_trip(unpooled, &session)
    });
    Ok(vec![shell, program, without_pool, full_pool, busy_pool, Variant::rest(), files])
}

/// The same over the RPC, each variant on a connection of its own.
fn servers(subject: &Subject) -> anyhow::Result<Vec<Variant<'_>>> {
    let of = |figure| Row::Rpc(figure, subject.server);
    // Where one takes a tenth of a second, few are enough.
    let few = |burst| if subject.server.is_ours() { burst } else { 2 };
    let mut caller = subject.caller()?;
    let ping = Variant::timed(10, of(Figure::Ping), move || subject.run(caller.ping()));
    if !subject.server.has_boxes() {
        return Ok(vec![Variant::rest(), ping]);
    }
    let mut caller = subject.caller()?;
    let cold = Variant::new(few(6), move |measured| {
        let life = subject.run(caller.life(&subject.next_id()))?;
        measured.time(of(Figure::Cold), life.first_exec);
        if subject.server.is_shipped() {
            measured.time(of(Figure::Delete), life.delete);
        }
        Ok(())
    });
    if !subject.server.is_shipped() {
        return Ok(vec![Variant::rest(), cold]);
    }
    let rested = || -> anyhow::Result<_> {
        let mut caller = subject.caller()?;
        Ok(Variant::timed(4, of(Figure::ColdRested), move || {
            std::thread::sleep(PAUSE);
            Ok(subject.run(caller.life(&subject.next_id()))?.first_exec)
        }))
    };
    let mut caller = subject.caller()?;
    let session = subject.session(&mut caller)?;
    let warm = Variant::timed(few(10), of(Figure::Warm), move || subject.run(caller.exec(&session, "true")));
    let (_, mut relay) = subject.echo(&mut subject.caller()?)?;
    let line = "x".repeat(64);
    let relayed =
        Variant::timed(10, of(Figure::RelayRoundTrip), move || subject.run(relay.round_trip(&line)));
    // Behind what was measured before, and behind boxes that were made and ended: for every server alike.
    let mut variants = vec![Variant::rest(), ping, warm, cold];
    if subject.server.is_ours() {
        variants.push(rested()?);
    }
    variants.extend([Variant::rest(), relayed]);
    Ok(variants)
}

/// How long a bare box takes when so many are wanted at the same moment, each from a launcher of its own.
fn floor_burst(crowd: &[Floor], measured: &mut Measurements) -> anyhow::Result<()> {
    let start = std::sync::Barrier::new(crowd.len());
    let mut times = Vec::new();
    for _ in 0..BURSTS {
        std::thread::sleep(PAUSE);
        std::thread::scope(|scope| {
            let one = |floor: &Floor| {
                start.wait();
                floor.cold(Payload::True)
            };
            let threads: Vec<_> = crowd.iter().map(|floor| scope.spawn(move || one(floor))).collect();
            for thread in threads {
                let time = thread.join().map_err(|_| anyhow::anyhow!("a caller of the floor panicked"))??;
                times.push(time.as_secs_f64() * 1000.0);
            }
            anyhow::Ok(())
        })?;
    }
    measured.value(Row::FloorCold50P99, percentile(&times, 0.99));
    Ok(())
}

/// How long a session takes when so many clients want one at the same moment.
fn burst(subject: &Subject, round: u32, measured: &mut Measurements) -> anyhow::Result<()> {
    // The reference makes one after the other; that is slow enough to see once.
    let bursts = match subject.server {
        server if server.is_ours() => BURSTS,
        server if server.has_boxes() && round == 0 => 1,
        _ => return Ok(()),
    };
    let pause = if subject.server == Server::SandcratePool64 { LONG_PAUSE } else { PAUSE };
    let mut callers = subject.callers(CROWD)?;
    let mut times = Vec::new();
    for _ in 0..bursts {
        std::thread::sleep(pause);
        times.extend(subject.burst(&mut callers)?.iter().map(|time| time.as_secs_f64() * 1000.0));
    }
    measured.value(Row::Rpc(Figure::Cold50, subject.server), median(&times));
    measured.value(Row::Rpc(Figure::Cold50P99, subject.server), percentile(&times, 0.99));
    Ok(())
}

fn file_round_trip(native: &Native, session: &sandcrate_backend::SessionId) -> anyhow::Result<Duration> {
    const BYTES: usize = 1 << 20;
    let (backend, session) = (Arc::clone(&native.backend), session.clone());
    native.run(async move {
        let (path, data) = ("file".to_owned(), Bytes::from(vec![b'x'; BYTES]));
        let started = Instant::now();
        backend.files(&session, FileRequest::Write { path: path.clone(), data }).await?;
        let reply =
            backend.files(&session, FileRequest::Read { path, offset: 0, limit: BYTES as u64 }).await?;
        let time = started.elapsed();
        ensure!(
            matches!(reply, FileReply::Data { data, .. } if data.len() == BYTES),
            "a file came back short"
        );
        Ok(time)
    })
}

/// The wall time of a program of the host that must succeed.
fn run(command: &mut Command) -> anyhow::Result<Duration> {
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let started = Instant::now();
    let status = command.status()?;
    let time = started.elapsed();
    ensure!(status.success(), "{} ended with {status}", Path::new(command.get_program()).display());
    Ok(time)
}
