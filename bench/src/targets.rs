//! The targets of the project's performance document, and how they came out.

use serde::Serialize;

use crate::catalog::{Figure, NetworkFigure, Row, Server, Way};
use crate::measurements::Measurements;

/// Which side of the bound is good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Good {
    Below,
    Above,
}

/// One target, judged.
#[derive(Debug, Serialize)]
pub(crate) struct Verdict {
    pub(crate) what: &'static str,
    good: Good,
    bound: f64,
    unit: &'static str,
    /// Nothing when it could not be measured here.
    measured: Option<f64>,
    /// The same against a floor that runs a static `true`, for who takes the floor at its word.
    against_static: Option<f64>,
    /// What the floor itself, or a daemon by itself, comes to here: beyond that nobody gets.
    floor: Option<f64>,
    /// A stretch target is a wish: missing it fails nothing.
    stretch: bool,
    /// Against another's program, which need not be here: what cannot be compared is not missed.
    comparison: bool,
}

impl Verdict {
    pub(crate) fn passed(&self) -> bool {
        self.stretch || self.is_open() || self.holds() || self.is_out_of_reach()
    }

    /// Even the floor does not get there on this machine.
    fn is_out_of_reach(&self) -> bool {
        self.measured.is_some() && self.floor.is_some_and(|floor| !self.is_good(floor))
    }

    fn is_good(&self, value: f64) -> bool {
        match self.good {
            Good::Below => value <= self.bound,
            Good::Above => value >= self.bound,
        }
    }

    /// Nothing can be said here.
    fn is_open(&self) -> bool {
        self.comparison && self.measured.is_none()
    }

    fn holds(&self) -> bool {
        self.measured.is_some_and(|measured| self.is_good(measured))
    }

    /// The target, what was measured, and the verdict, as cells of a table.
    pub(crate) fn cells(&self) -> [String; 4] {
        let sign = if self.good == Good::Below { "<=" } else { ">=" };
        let figure = |value: f64| format!("{value:.2} {}", self.unit);
        let mut measured = self.measured.map_or_else(|| "not measured".to_owned(), figure);
        if let Some(strict) = self.against_static {
            measured.push_str(&format!(" ({strict:.2} of the static floor)"));
        }
        if let Some(floor) = self.floor {
            measured.push_str(&format!(" (the floor: {floor:.2})"));
        }
        let verdict = match (self.holds(), self.stretch) {
            _ if self.is_open() => "-",
            (true, _) => "PASS",
            (false, false) if self.is_out_of_reach() => "out of the floor's reach",
            (false, false) => "MISS",
            (false, true) => "not yet",
        };
        let what = if self.stretch { format!("  stretch: {}", self.what) } else { self.what.to_owned() };
        [what, format!("{sign} {}", figure(self.bound)), measured, verdict.to_owned()]
    }
}

pub(crate) fn judge(measured: &Measurements) -> Vec<Verdict> {
    let mut verdicts = judge_backend(measured);
    verdicts.extend(judge_rate(measured));
    verdicts.extend(judge_server(measured));
    verdicts.extend(judge_against_reference(measured));
    verdicts.extend(judge_network(measured));
    verdicts.extend(judge_mcp(measured));
    verdicts.push(judge_e2b(measured));
    verdicts
}

fn verdict(what: &'static str, good: Good, bound: f64, unit: &'static str, measured: Option<f64>) -> Verdict {
    let (against_static, floor, stretch, comparison) = (None, None, false, false);
    Verdict { what, good, bound, unit, measured, against_static, floor, stretch, comparison }
}

fn below(what: &'static str, bound: f64, unit: &'static str, measured: Option<f64>) -> Verdict {
    verdict(what, Good::Below, bound, unit, measured)
}

fn above(what: &'static str, bound: f64, unit: &'static str, measured: Option<f64>) -> Verdict {
    verdict(what, Good::Above, bound, unit, measured)
}

/// With what the floor itself comes to.
fn beside(floor: Option<f64>, mut verdict: Verdict) -> Verdict {
    verdict.floor = floor;
    verdict
}

fn stretch(mut verdict: Verdict) -> Verdict {
    verdict.stretch = true;
    verdict
}

/// Through the backend API.
fn judge_backend(measured: &Measurements) -> Vec<Verdict> {
    let ratio = |row, basis| measured.ratio(row, basis);
    let warm = |bound| Verdict {
        against_static: ratio(Row::WarmShell, Row::FloorWarmStatic),
        ..below("warm exec, `sh -c true`", bound, "W", ratio(Row::WarmShell, Row::FloorWarm))
    };
    let cold = Verdict {
        against_static: ratio(Row::ColdNoPool, Row::FloorColdStatic),
        ..below("cold create + first exec, no pool", 2.2, "C", ratio(Row::ColdNoPool, Row::FloorCold))
    };
    let pooled = ratio(Row::ColdPoolFull, Row::FloorCold);
    let growth = measured.summary(Row::OutputGrowth).map(|summary| summary.p50);
    let mut verdicts = vec![
        warm(1.6),
        stretch(warm(1.3)),
        cold,
        stretch(below("cold create + first exec, full pool", 1.2, "C", pooled)),
    ];
    verdicts.extend(judge_idle(measured));
    verdicts.push(below("RSS growth while output passes", 8.0, "MiB", growth));
    verdicts
}

/// Commands a second of 32 callers, by the backend and by the server.
pub(crate) fn judge_rate(measured: &Measurements) -> Vec<Verdict> {
    let of_floor = |row| measured.ratio(row, Row::FloorRate32);
    let served = of_floor(Row::Rpc(Figure::Rate32, Server::Sandcrate));
    let (ours, by_server) =
        ("exec/s, 32 callers, of the floor's rate", "server: exec/s, 32 clients, of the floor's rate");
    [(ours, of_floor(Row::Rate32)), (by_server, served)]
        .into_iter()
        .flat_map(|(what, rate)| {
            [above(what, 0.60, "floor", rate), stretch(above(what, 0.75, "floor", rate))]
        })
        .collect()
}

/// Many idle sessions of the backend.
pub(crate) fn judge_idle(measured: &Measurements) -> Vec<Verdict> {
    let idle = measured.summary(Row::IdleCounted).map(|summary| summary.p50);
    let floor_idle = measured.summary(Row::FloorIdle).map(|summary| summary.p50);
    let slower = measured.ratio(Row::WarmManyIdle, Row::WarmFewIdle);
    vec![
        beside(floor_idle, below("memory of an idle session", 0.45, "MiB", idle)),
        stretch(below("memory of an idle session", 0.30, "MiB", idle)),
        below("warm exec with many idle sessions", 1.2, "of that with 1", slower),
    ]
}

/// Through the RPC of `sandcrate serve`.
fn judge_server(measured: &Measurements) -> Vec<Verdict> {
    let ours = |figure| Row::Rpc(figure, Server::Sandcrate);
    let value = |figure| measured.summary(ours(figure)).map(|summary| summary.p50);
    let warm = measured.ratio(ours(Figure::Warm), Row::FloorWarm);
    // As it comes: with the pool that `serve` has unless told otherwise.
    let cold = measured.ratio(ours(Figure::Cold), Row::FloorCold);
    let pooled = measured.ratio(ours(Figure::ColdRested), Row::FloorCold);
    // More boxes at once than cores can only be there so soon when they were ready.
    let prepared = Row::Rpc(Figure::Cold50P99, Server::SandcratePool64);
    let tail = measured.ratio(prepared, Row::FloorCold);
    let usual_tail = measured.ratio(ours(Figure::Cold50P99), Row::FloorCold);
    let slower = measured.ratio(ours(Figure::WarmCrowded), ours(Figure::WarmAlone));
    let (start, idle) = (value(Figure::Start), value(Figure::IdleTree));
    let session = value(Figure::SessionCounted);
    let floor_session = measured.summary(Row::FloorCrowd).map(|summary| summary.p50);
    let floor_tail = measured.ratio(Row::FloorCold50P99, Row::FloorCold);
    let mut verdicts = vec![
        below("server: warm exec", 2.0, "W", warm),
        stretch(below("server: warm exec", 1.5, "W", warm)),
        below("server: cold create + first exec", 2.5, "C", cold),
        stretch(below("server: cold create + first exec, full pool", 1.4, "C", pooled)),
        beside(floor_tail, below("server: p99 of 50 at once, pool of 64", 20.0, "C", tail)),
        stretch(below("server: p99 of 50 at once, default pool", 20.0, "C", usual_tail)),
        beside(floor_session, below("server: memory of an idle session", 0.45, "MiB", session)),
        stretch(below("server: memory of an idle session", 0.30, "MiB", session)),
        below("server: warm exec with many idle sessions", 1.2, "of that with 1", slower),
        below("server: idle memory, all its processes", 16.0, "MiB", idle),
        stretch(below("server: idle memory, all its processes", 10.0, "MiB", idle)),
        below("server: start to first ping", 40.0, "ms", start),
        stretch(below("server: start to first ping", 15.0, "ms", start)),
        below("server: RSS growth while a flood of output passes", 8.0, "MiB", value(Figure::FloodGrowth)),
        // An allocator keeps a little, and not always the same.
        below("server: growth by short sessions, RSS", 1.0, "MiB", value(Figure::GrownMemory)),
    ];
    let counts = [
        ("server: growth by short sessions, descriptors", Figure::GrownDescriptors),
        ("server: growth by short sessions, mounts", Figure::GrownMounts),
        ("server: growth by short sessions, cgroups", Figure::GrownCgroups),
        ("server: growth by short sessions, directories", Figure::GrownDirectories),
        ("server: growth by short sessions, processes", Figure::GrownProcesses),
    ];
    verdicts.extend(counts.map(|(what, figure)| below(what, 0.0, "", value(figure))));
    verdicts
}

/// A server in a box beside the same one without.
pub(crate) fn judge_mcp(measured: &Measurements) -> Vec<Verdict> {
    let value = |row| measured.summary(row).map(|summary| summary.p50);
    let more = value(Row::McpCall).zip(value(Row::McpCallBare)).map(|(ours, bare)| ours - bare);
    let start = measured.ratio(Row::McpStart, Row::McpStartBare);
    let with_sdk = measured.ratio(Row::McpSdkStart, Row::McpSdkStartBare);
    vec![
        below("mcp run: a tool call, more than bare", 0.3, "ms", more),
        below("mcp run: start of a cached Python server", 1.3, "bare", start),
        below("mcp run: start of a cached Python server with the SDK", 1.3, "bare", with_sdk),
    ]
}

/// What E2B's protocol costs us beyond our own: by one client, so that no SDK's time is in it.
fn judge_e2b(measured: &Measurements) -> Verdict {
    let value = |row| measured.summary(row).map(|summary| summary.p50);
    let more = value(Row::E2bCalls).zip(value(Row::E2bRest)).map(|(calls, rest)| calls - rest);
    below("E2B's calls: a sandbox's life, more than by REST", 5.0, "ms", more)
}

/// How many times faster we are than LangBot's runtime, by the same client in the same run.
pub(crate) fn judge_against_reference(measured: &Measurements) -> Vec<Verdict> {
    let slower =
        |server, figure| measured.ratio(Row::Rpc(figure, server), Row::Rpc(figure, Server::Sandcrate));
    let faster = |server, figure| slower(server, figure).map(|ratio| 1.0 / ratio);
    let (nsjail, docker) = (Server::ReferenceNsjail, Server::ReferenceDocker);
    // How many times faster than the reference the floor is. What the RPC runs is a line for a shell.
    let floor = |server, figure, floor| measured.ratio(Row::Rpc(figure, server), floor);
    let floor_rate = |server| measured.ratio(Row::FloorRate32, Row::Rpc(Figure::Rate32, server));
    let bare = measured.ratio(Row::Rpc(Figure::AtOnce, docker), Row::BareContainers);
    let on_docker =
        |figure| measured.ratio(Row::Rpc(figure, docker), Row::Rpc(figure, Server::SandcrateDocker));
    let verdicts = [
        beside(
            floor(nsjail, Figure::Warm, Row::FloorWarmShell),
            above("against LangBot + nsjail: warm exec", 8.0, "x", slower(nsjail, Figure::Warm)),
        ),
        beside(
            floor(nsjail, Figure::Cold, Row::FloorCold),
            above("against LangBot + nsjail: cold", 3.0, "x", slower(nsjail, Figure::Cold)),
        ),
        beside(
            floor_rate(nsjail),
            above("against LangBot + nsjail: exec/s, 32 clients", 12.0, "x", faster(nsjail, Figure::Rate32)),
        ),
        below("against LangBot + nsjail: relayed line", 1.0, "x", faster(nsjail, Figure::RelayRoundTrip)),
        above("against LangBot + nsjail: relayed MB/s", 1.2, "x", faster(nsjail, Figure::RelayOutput)),
        beside(
            floor(docker, Figure::Warm, Row::FloorWarmShell),
            above("against LangBot + docker: warm exec", 80.0, "x", slower(docker, Figure::Warm)),
        ),
        beside(
            floor(docker, Figure::Cold, Row::FloorCold),
            above("against LangBot + docker: cold", 80.0, "x", slower(docker, Figure::Cold)),
        ),
        beside(
            floor_rate(docker),
            above("against LangBot + docker: exec/s, 32 clients", 120.0, "x", faster(docker, Figure::Rate32)),
        ),
        below("against LangBot + docker: relayed line", 1.0, "x", faster(docker, Figure::RelayRoundTrip)),
        above("against LangBot + docker: relayed MB/s", 1.2, "x", faster(docker, Figure::RelayOutput)),
        above("docker against LangBot + docker: warm exec", 2.0, "x", on_docker(Figure::Warm)),
        beside(
            bare,
            above(
                "docker against LangBot + docker: 100 sessions at once",
                3.0,
                "x",
                on_docker(Figure::AtOnce),
            ),
        ),
    ];
    verdicts.into_iter().map(|verdict| Verdict { comparison: true, ..verdict }).collect()
}

/// The isolated network, against other user-mode networks and none.
pub(crate) fn judge_network(measured: &Measurements) -> Vec<Verdict> {
    let ours = |figure| Row::Network(figure, Way::Sandcrate);
    let bulk = |figure| measured.ratio(ours(figure), Row::Network(figure, Way::Pasta));
    let value = |row| measured.summary(row).map(|summary| summary.p50);
    let later = |figure| Some(value(ours(figure))? - value(Row::Network(figure, Way::Veth))?);
    let more = value(ours(NetworkFigure::IdleOn))
        .zip(value(ours(NetworkFigure::IdleOff)))
        .map(|(with, without)| with - without);
    let against_pasta = |verdict| Verdict { comparison: true, ..verdict };
    vec![
        against_pasta(above("network: bulk data out of the box", 0.8, "pasta", bulk(NetworkFigure::Out))),
        against_pasta(above("network: bulk data into the box", 0.8, "pasta", bulk(NetworkFigure::In))),
        below("network: connect, over a veth's", 0.3, "ms", later(NetworkFigure::Connect)),
        below("network: a whole request, over a veth's", 0.3, "ms", later(NetworkFigure::Request)),
        below("network: memory of an idle box, more", 0.35, "MiB", more),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_measured_is_missed() {
        let verdicts = judge(&Measurements::default());
        assert!(verdicts.iter().all(|verdict| verdict.stretch || verdict.comparison == verdict.passed()));
    }

    #[test]
    fn bounds_hold_from_their_own_side() {
        let mut measured = Measurements::default();
        for (row, value) in
            [(Row::Rate32, 70.0), (Row::FloorRate32, 100.0), (Row::WarmShell, 2.0), (Row::FloorWarm, 1.0)]
        {
            measured.value(row, value);
        }
        measured.end_round();
        let verdicts = judge(&measured);
        assert!(verdicts.iter().find(|verdict| verdict.good == Good::Above).unwrap().passed());
        assert!(!verdicts[0].passed());
    }

    #[test]
    fn what_the_floor_misses_is_no_miss_of_ours() {
        let missed = |floor| beside(floor, above("x", 8.0, "x", Some(5.0)));
        assert!(!missed(None).passed() && !missed(Some(9.0)).passed());
        assert!(missed(Some(7.9)).passed() && missed(Some(7.9)).cells()[3].contains("floor"));
        assert!(!beside(Some(7.9), above("x", 8.0, "x", None)).passed(), "what was not measured is missed");
    }
}
