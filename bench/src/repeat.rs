//! One thing over and over, for a profiler to look at: `perf record -a -g -- sandcrate-bench --repeat warm`.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::ValueEnum;
use sandcrate_backend::ExecRequest;
use tokio::runtime::Runtime;

use crate::args::Options;
use crate::catalog::Server;
use crate::floor::{Floor, Payload};
use crate::latency;
use crate::measurements::Measurements;
use crate::native::Native;
use crate::server::{Servers, Subject};

/// How long it is repeated.
const WINDOW: Duration = Duration::from_secs(5);

/// What can be repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum What {
    /// Our warm exec of `true`
    Warm,
    /// Our warm exec of `sh -c true`
    WarmShell,
    /// A session made, used once and stopped, without a pool
    Cold,
    /// The same, from a pool that has time to fill
    Pool,
    /// The floor's warm `true`
    FloorWarm,
    /// The floor's warm `true`, static
    FloorWarmStatic,
    /// The floor's cold box
    FloorCold,
    /// Over the RPC: a warm exec of `true`
    ServerWarm,
    /// Over the RPC: warm execs of `true` by 32 clients
    ServerRate,
    /// Through the relay: a line to a process and back
    ServerRelay,
    /// Over the RPC: a session made and used once, without a pool
    ServerCold,
    /// Over the RPC: 50 sessions wanted at the same moment
    ServerBurst,
    /// The same from a pool of 64 that has time to fill
    ServerBurstPool,
}

impl What {
    fn is_of_server(self) -> bool {
        matches!(
            self,
            Self::ServerWarm
                | Self::ServerRate
                | Self::ServerRelay
                | Self::ServerCold
                | Self::ServerBurst
                | Self::ServerBurstPool
        )
    }

    fn server(self) -> Server {
        match self {
            Self::ServerCold => Server::SandcrateNoPool,
            Self::ServerBurstPool => Server::SandcratePool64,
            _ => Server::Sandcrate,
        }
    }
}

pub(crate) fn run(options: &Options, what: What, runtime: &Runtime, floor: &Floor) -> anyhow::Result<()> {
    if what.is_of_server() {
        return run_server(options, what);
    }
    let init = floor.warm_init()?;
    let native = Native::open(runtime, if what == What::Pool { 4 } else { 0 })?;
    let session = native.session()?;
    let (program, shell) = (ExecRequest::argv(["true"]), ExecRequest::shell("true"));
    let one = || match what {
        What::Warm => native.exec(&session, &program),
        What::WarmShell => native.exec(&session, &shell),
        What::Cold => Ok(native.life()?.first_exec),
        What::Pool => {
            std::thread::sleep(Duration::from_millis(20));
            Ok(native.life()?.first_exec)
        }
        What::FloorWarm => Ok(init.run(Payload::True)?),
        What::FloorWarmStatic => Ok(init.run(Payload::StaticTrue)?),
        What::FloorCold => Ok(floor.cold(Payload::True)?),
        // Not of the backend: see `run_server`.
        What::ServerWarm
        | What::ServerRate
        | What::ServerRelay
        | What::ServerCold
        | What::ServerBurst
        | What::ServerBurstPool => Ok(Duration::ZERO),
    };
    repeat(|| Ok(vec![one()?]))?;
    native.close();
    Ok(())
}

fn run_server(options: &Options, what: What) -> anyhow::Result<()> {
    let subjects = Servers::find_ours(options, &mut Measurements::default())?.start_all()?;
    let wanted = |subject: &&Subject| subject.server == what.server();
    let subject = subjects.iter().find(wanted).context("sandcrate is not built")?;
    writeln!(io::stdout(), "the server has the pid {}", subject.pid())?;
    let mut callers = subject.callers(match what {
        What::ServerBurst | What::ServerBurstPool => 50,
        What::ServerRate => 32,
        _ => 1,
    })?;
    if what == What::ServerRate {
        let sessions = subject.sessions(&mut callers)?;
        let rate = subject.rate(&mut callers, &sessions, WINDOW)?;
        return Ok(writeln!(io::stdout(), "{rate:.0} a second")?);
    }
    if what == What::ServerRelay {
        let (_, mut relay) = subject.echo(&mut callers[0])?;
        return repeat(|| Ok(vec![subject.run(relay.round_trip("line"))?]));
    }
    let session = subject.session(&mut callers[0])?;
    repeat(|| match what {
        What::ServerBurst => subject.burst(&mut callers),
        What::ServerBurstPool => {
            std::thread::sleep(latency::LONG_PAUSE);
            subject.burst(&mut callers)
        }
        What::ServerCold => Ok(vec![subject.run(callers[0].life(&subject.next_id()))?.first_exec]),
        _ => Ok(vec![subject.run(callers[0].exec(&session, "true"))?]),
    })
}

/// Takes samples for the window, then sums them up.
fn repeat(mut samples: impl FnMut() -> anyhow::Result<Vec<Duration>>) -> anyhow::Result<()> {
    let started = Instant::now();
    let mut times = Vec::new();
    while started.elapsed() < WINDOW {
        times.extend(samples()?);
    }
    times.sort();
    let micros = |part: usize| times[(times.len() - 1) * part / 100].as_micros();
    writeln!(
        io::stdout(),
        "{} times; p50 {} us, p10 {} us, p95 {} us, p99 {} us",
        times.len(),
        micros(50),
        micros(10),
        micros(95),
        micros(99)
    )?;
    Ok(())
}
