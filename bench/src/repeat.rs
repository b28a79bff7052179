//! One thing over and over, for a profiler to look at: `perf record -a -g -- sandcrate-bench --repeat warm`.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use sandcrate_backend::ExecRequest;
use tokio::runtime::Runtime;

use crate::floor::{Floor, Payload};
use crate::native::Native;

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
}

pub(crate) fn run(what: What, runtime: &Runtime, floor: &Floor) -> anyhow::Result<()> {
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
    };
    let started = Instant::now();
    let mut times = Vec::new();
    while started.elapsed() < WINDOW {
        times.push(one()?);
    }
    times.sort();
    let micros = |part: usize| times[(times.len() - 1) * part / 100].as_micros();
    writeln!(
        io::stdout(),
        "{} times; p50 {} us, p10 {} us, p95 {} us",
        times.len(),
        micros(50),
        micros(10),
        micros(95)
    )?;
    native.close();
    Ok(())
}
