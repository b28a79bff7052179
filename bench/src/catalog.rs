//! The rows of the table: their order, their words, and what each is compared with.

use serde::Serialize;

/// One figure. The order here is the order of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Row {
    SpawnTrue,
    SpawnShell,
    FloorWarm,
    FloorWarmStatic,
    FloorWarmShell,
    FloorCold,
    FloorColdStatic,
    WarmShell,
    WarmTrue,
    ColdCreate,
    ColdNoPool,
    ColdPoolFull,
    ColdPoolBusy,
    Stop,
    FileRoundTrip,
    Unshare,
    Bwrap,
    Nsjail,
    DockerExec,
    DockerRun,
    PodmanRun,
    CliRun,
    FloorRate1,
    Rate1,
    FloorRate8,
    Rate8,
    FloorRate32,
    Rate32,
    RateShell32,
    SpawnOutput,
    Output,
    OutputGrowth,
    IdleMemAvailable,
    IdleCounted,
    IdleProcess,
    WarmFewIdle,
    WarmManyIdle,
}

/// What a row says and is compared with.
pub(crate) struct Description {
    pub(crate) what: &'static str,
    pub(crate) unit: &'static str,
    /// The row it is divided by, and that row's short name.
    pub(crate) basis: Option<(Row, &'static str)>,
}

const W: Option<(Row, &str)> = Some((Row::FloorWarm, "W"));
const C: Option<(Row, &str)> = Some((Row::FloorCold, "C"));

impl Row {
    pub(crate) fn description(self) -> Description {
        let (what, unit, basis) = match self {
            Self::SpawnTrue => ("posix_spawn `true`, no sandbox", "ms", W),
            Self::SpawnShell => ("posix_spawn `sh -c true`, no sandbox", "ms", W),
            Self::FloorWarm => ("floor W: init in a box forks `true`", "ms", W),
            Self::FloorWarmStatic => ("  the same, a static `true`", "ms", W),
            Self::FloorWarmShell => ("  the same, `sh -c true`", "ms", W),
            Self::FloorCold => ("floor C: clone3, 4 mounts, seccomp, `true`", "ms", C),
            Self::FloorColdStatic => ("  the same, a static `true`", "ms", C),
            Self::WarmShell => ("sandcrate: warm exec `sh -c true`", "ms", W),
            Self::WarmTrue => ("sandcrate: warm exec `true`", "ms", W),
            Self::ColdCreate => ("sandcrate: create alone, no pool", "ms", C),
            Self::ColdNoPool => ("sandcrate: create + first exec, no pool", "ms", C),
            Self::ColdPoolFull => ("sandcrate: create + first exec, full pool", "ms", C),
            Self::ColdPoolBusy => ("sandcrate: the same, back to back, pool of 4", "ms", C),
            Self::Stop => ("sandcrate: stop", "ms", C),
            Self::FileRoundTrip => ("sandcrate: write + read 1 MiB file", "ms", W),
            Self::Unshare => ("unshare … true", "ms", C),
            Self::Bwrap => ("bwrap … true", "ms", C),
            Self::Nsjail => ("nsjail … true", "ms", C),
            Self::DockerExec => ("docker exec … true", "ms", W),
            Self::DockerRun => ("docker run … true", "ms", C),
            Self::PodmanRun => ("podman run … true", "ms", C),
            Self::CliRun => ("sandcrate run -- true", "ms", Some((Self::Bwrap, "bwrap"))),
            Self::FloorRate1 => ("floor: `true`, 1 caller", "exec/s", None),
            Self::Rate1 => ("sandcrate: `true`, 1 caller", "exec/s", Some((Self::FloorRate1, "floor"))),
            Self::FloorRate8 => ("floor: `true`, 8 callers, 8 boxes", "exec/s", None),
            Self::Rate8 => {
                ("sandcrate: `true`, 8 callers, 8 sessions", "exec/s", Some((Self::FloorRate8, "floor")))
            }
            Self::FloorRate32 => ("floor: `true`, 32 callers, 32 boxes", "exec/s", None),
            Self::Rate32 => {
                ("sandcrate: `true`, 32 callers, 32 sessions", "exec/s", Some((Self::FloorRate32, "floor")))
            }
            Self::RateShell32 => {
                ("sandcrate: `sh -c true`, 32 callers", "exec/s", Some((Self::FloorRate32, "floor")))
            }
            Self::SpawnOutput => ("96 MiB of output, no sandbox", "MB/s", None),
            Self::Output => ("sandcrate: 96 MiB of output", "MB/s", Some((Self::SpawnOutput, "spawn"))),
            Self::OutputGrowth => ("sandcrate: RSS growth while 1 GiB passes", "MiB", None),
            Self::IdleMemAvailable => ("idle session, by MemAvailable", "MiB", None),
            Self::IdleCounted => ("idle session: PSS + our RSS + kernel counters", "MiB", None),
            Self::IdleProcess => ("  of that the PSS of its init", "MiB", None),
            Self::WarmFewIdle => ("warm exec `true`, 1 session", "x W", None),
            Self::WarmManyIdle => {
                ("warm exec `true`, all sessions idle", "x W", Some((Self::WarmFewIdle, "of that")))
            }
        };
        Description { what, unit, basis }
    }
}
