//! `make bench`: one table, measured in one run, of what Sandcrate costs beside the kernel's own floor.
//!
//! Absolute times hold for one machine on one day; what is stated are ratios. So everything that is compared is
//! measured in turns, in several rounds, and a row's figure is the median of its rounds. The targets are those of
//! the project's performance document.

mod args;
mod bulk;
mod catalog;
mod e2b;
mod floor;
mod idle;
mod idle_floor;
mod latency;
mod mcp;
mod measurements;
mod memory;
mod native;
mod network;
mod peers;
mod repeat;
mod report;
mod server;
mod targets;
mod throughput;

use std::io::Write;
use std::process::ExitCode;

use anyhow::Context;
use tokio::runtime::Runtime;

use crate::args::{Group, Options};
use crate::floor::Floor;
use crate::measurements::Measurements;
use crate::server::Servers;
use crate::targets::Verdict;

fn main() -> ExitCode {
    // Before any thread exists: this program is also the launcher, and the floor's own.
    if let Some(code) = sandcrate_backend_native::dispatch_role() {
        return code;
    }
    floor::dispatch_role();
    if let Some(code) = network::dispatch_role() {
        return code;
    }
    match run(&args::parse()) {
        Ok(code) => code,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Runtime::new().context("starting the async runtime")?;
    if network::is_inside() {
        network::run_inside(options, &runtime)?;
        return Ok(ExitCode::SUCCESS);
    }
    let floor = Floor::start().context("starting the floor's own launcher")?;
    if let Some(group) = options.only {
        return run_group(options, group, &runtime, &floor);
    }
    if let Some(what) = options.repeat {
        repeat::run(options, what, &runtime, &floor)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut measured = Measurements::default();
    progress("servers to measure");
    let servers = Servers::find(options, &mut measured)?;
    let subjects = servers.start_all()?;
    progress("latency");
    latency::measure(options, &runtime, &floor, &subjects, &mut measured)?;
    progress("throughput");
    throughput::measure(options, &runtime, &floor, &subjects, &mut measured)?;
    progress("sessions, lines and output through servers");
    server::measure_bulk(options, &subjects, &mut measured)?;
    drop(subjects);
    // Before the server's crowd: its file systems make every later cgroup of this kernel larger.
    progress("idle sessions");
    idle::measure(options, &runtime, &floor, &mut measured)?;
    progress("start, idle memory, many and short sessions of servers");
    servers.measure(options, &floor, &mut measured)?;
    progress("output and files");
    bulk::measure(options, &runtime, &mut measured)?;
    progress("the isolated network");
    let network = network::measure(&mut measured).context("the isolated network was not measured");
    let code = conclude(options, &measured, &targets::judge(&measured))?;
    // A peer that stalls must not cost the figures of all the others; the run is a failure all the same.
    network.map(|()| code)
}

/// That group alone, with its own targets.
fn run_group(options: &Options, group: Group, runtime: &Runtime, floor: &Floor) -> anyhow::Result<ExitCode> {
    let mut measured = Measurements::default();
    let verdicts = match group {
        Group::Network => {
            network::measure(&mut measured)?;
            targets::judge_network(&measured)
        }
        Group::Idle => {
            idle::measure(options, runtime, floor, &mut measured)?;
            targets::judge_idle(&measured)
        }
        Group::Rate => {
            let subjects = Servers::find_ours(options, &mut measured)?.start_all()?;
            throughput::measure(options, runtime, floor, &subjects, &mut measured)?;
            targets::judge_rate(&measured)
        }
        Group::Mcp => {
            latency::measure_mcp(options, &mut measured)?;
            targets::judge_mcp(&measured)
        }
        Group::Reference => {
            let subjects = Servers::find(options, &mut measured)?.shipped().start_all()?;
            latency::measure_servers(options, floor, &subjects, &mut measured)?;
            server::measure_relay(options, &subjects, &mut measured)?;
            targets::judge_against_reference(&measured)
        }
    };
    conclude(options, &measured, &verdicts)
}

fn conclude(options: &Options, measured: &Measurements, verdicts: &[Verdict]) -> anyhow::Result<ExitCode> {
    report::print(options, measured, verdicts)?;
    let missed = verdicts.iter().any(|verdict| !verdict.passed());
    Ok(if options.check && missed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Says on stderr what is being measured; the table is alone on stdout.
fn progress(what: &str) {
    let _ = writeln!(std::io::stderr(), "bench: {what} …");
}
