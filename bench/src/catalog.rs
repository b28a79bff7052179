//! The rows of the table: their order, their words, and what each is compared with.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One figure. The order here is the order of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Row {
    SpawnTrue,
    SpawnShell,
    FloorWarm,
    FloorWarmStatic,
    FloorWarmShell,
    FloorCold,
    FloorColdStatic,
    FloorCold50P99,
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
    BareContainers,
    PodmanRun,
    CliRun,
    McpCallBare,
    McpCall,
    McpStartBare,
    McpStart,
    McpSdkStartBare,
    McpSdkStart,
    E2bRest,
    E2bCalls,
    E2bSdk,
    E2bSdkP99,
    E2bSdkCrowd,
    E2bSdkCrowdP99,
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
    FloorIdle,
    FloorCrowd,
    IdleMemAvailable,
    IdleCounted,
    IdleProcess,
    IdleCaches,
    WarmFewIdle,
    WarmManyIdle,
    /// Of a server, by a client on the RPC.
    Rpc(Figure, Server),
    /// Of a network, by the same client.
    Network(NetworkFigure, Way),
}

/// What is measured of a network. The order here is the order of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum NetworkFigure {
    Out,
    In,
    Connect,
    Request,
    Rate1,
    Rate8,
    IdleOff,
    IdleOn,
}

/// How packets get to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Way {
    Veth,
    Sandcrate,
    Pasta,
    Slirp,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Veth => "veth",
            Self::Sandcrate => "sandcrate",
            Self::Pasta => "pasta",
            Self::Slirp => "slirp4netns",
        })
    }
}

/// What is measured of a server. The order here is the order of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Figure {
    Ping,
    Warm,
    Cold,
    ColdRested,
    Delete,
    RelayRoundTrip,
    Cold50,
    Cold50P99,
    Rate1,
    Rate8,
    Rate32,
    AtOnce,
    Output,
    RelayLines,
    RelayOutput,
    Flood,
    FloodBefore,
    FloodPeak,
    FloodGrowth,
    Start,
    Idle,
    IdleTree,
    SessionMemAvailable,
    SessionCounted,
    SessionServer,
    SessionProcess,
    SessionCaches,
    WarmAlone,
    WarmCrowded,
    ChurnRate,
    GrownMemory,
    GrownDescriptors,
    GrownMounts,
    GrownCgroups,
    GrownDirectories,
    GrownProcesses,
}

/// Who is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Server {
    Sandcrate,
    SandcrateNoPool,
    /// Told to keep more boxes than any burst here takes.
    SandcratePool64,
    /// With its boxes on the daemon that the reference has its own on.
    SandcrateDocker,
    /// LangBot's runtime where it has no backend.
    Reference,
    ReferenceNsjail,
    ReferenceDocker,
}

impl Server {
    /// As its users get it.
    pub(crate) fn is_shipped(self) -> bool {
        !matches!(self, Self::SandcrateNoPool | Self::SandcratePool64)
    }

    /// Measured with many clients that come at the same moment.
    pub(crate) fn meets_bursts(self) -> bool {
        self.is_shipped() || self == Self::SandcratePool64
    }

    pub(crate) fn has_boxes(self) -> bool {
        self != Self::Reference
    }

    pub(crate) fn is_ours(self) -> bool {
        matches!(self, Self::Sandcrate | Self::SandcrateNoPool | Self::SandcratePool64)
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sandcrate => "sandcrate serve",
            Self::SandcrateNoPool => "sandcrate serve, no pool",
            Self::SandcratePool64 => "sandcrate serve, pool of 64",
            Self::SandcrateDocker => "sandcrate serve, docker",
            Self::Reference => "LangBot's runtime",
            Self::ReferenceNsjail => "LangBot's runtime, nsjail",
            Self::ReferenceDocker => "LangBot's runtime, docker",
        })
    }
}

/// What a row says and is compared with.
pub(crate) struct Description {
    pub(crate) what: String,
    pub(crate) unit: &'static str,
    /// The row it is divided by, and that row's short name.
    pub(crate) basis: Option<(Row, &'static str)>,
}

const W: Option<(Row, &str)> = Some((Row::FloorWarm, "W"));
const C: Option<(Row, &str)> = Some((Row::FloorCold, "C"));

impl Row {
    pub(crate) fn description(self) -> Description {
        let (what, unit, basis) = match self {
            Self::Rpc(figure, server) => return figure.description(server),
            Self::Network(figure, way) => return figure.description(way),
            Self::SpawnTrue => ("posix_spawn `true`, no sandbox", "ms", W),
            Self::SpawnShell => ("posix_spawn `sh -c true`, no sandbox", "ms", W),
            Self::FloorWarm => ("floor W: init in a box forks `true`", "ms", W),
            Self::FloorWarmStatic => ("  the same, a static `true`", "ms", W),
            Self::FloorWarmShell => ("  the same, `sh -c true`", "ms", W),
            Self::FloorCold => ("floor C: clone3, 4 mounts, seccomp, `true`", "ms", C),
            Self::FloorColdStatic => ("  the same, a static `true`", "ms", C),
            Self::FloorCold50P99 => ("  the same, 50 at once, p99", "ms", C),
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
            Self::BareContainers => ("docker: 100 bare containers at once, by its API", "s", None),
            Self::DockerRun => ("docker run … true", "ms", C),
            Self::PodmanRun => ("podman run … true", "ms", C),
            Self::CliRun => ("sandcrate run -- true", "ms", Some((Self::Bwrap, "bwrap"))),
            Self::McpCallBare => ("MCP server in Python, bare: a tool call", "ms", None),
            Self::McpCall => ("  the same by sandcrate mcp run", "ms", Some((Self::McpCallBare, "bare"))),
            Self::McpStartBare => ("MCP server in Python, bare: start to first answer", "ms", None),
            Self::McpStart => ("  the same by sandcrate mcp run", "ms", Some((Self::McpStartBare, "bare"))),
            Self::McpSdkStartBare => {
                ("MCP server with the Python SDK, bare: start to first answer", "ms", None)
            }
            Self::McpSdkStart => {
                ("  the same by sandcrate mcp run", "ms", Some((Self::McpSdkStartBare, "bare")))
            }
            Self::E2bRest => ("REST: create, `bash -l -c true`, delete", "ms", None),
            Self::E2bCalls => ("  the same by E2B's calls", "ms", Some((Self::E2bRest, "REST"))),
            Self::E2bSdk => ("  the same by E2B's Python SDK", "ms", Some((Self::E2bRest, "REST"))),
            Self::E2bSdkP99 => ("  the same, p99", "ms", Some((Self::E2bRest, "REST"))),
            Self::E2bSdkCrowd => ("  the same, 20 at once", "ms", Some((Self::E2bRest, "REST"))),
            Self::E2bSdkCrowdP99 => ("  the same, 20 at once, p99", "ms", Some((Self::E2bRest, "REST"))),
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
            Self::FloorIdle => ("floor: an idle box with cgroups, kernel and process", "MiB", None),
            Self::FloorCrowd => ("  the same, as many as the server has", "MiB", None),
            Self::IdleMemAvailable => ("idle session, by MemAvailable", "MiB", None),
            Self::IdleCounted => {
                ("idle session: PSS + our RSS + kernel counters", "MiB", Some((Self::FloorIdle, "floor")))
            }
            Self::IdleProcess => ("  of that the PSS of its init", "MiB", None),
            Self::IdleCaches => ("  beside that reclaimable caches", "MiB", None),
            Self::WarmFewIdle => ("warm exec `true`, 1 session", "x W", None),
            Self::WarmManyIdle => {
                ("warm exec `true`, all sessions idle", "x W", Some((Self::WarmFewIdle, "of that")))
            }
        };
        Description { what: what.to_owned(), unit, basis }
    }
}

impl Figure {
    fn description(self, server: Server) -> Description {
        let (what, unit, basis) = match self {
            Self::Ping => ("ping", "ms", W),
            Self::Warm => ("warm exec `true`", "ms", W),
            Self::Cold => ("create + first exec", "ms", C),
            Self::ColdRested => ("the same, full pool", "ms", C),
            Self::Delete => ("delete", "ms", C),
            Self::RelayRoundTrip => ("line to a process and back", "ms", W),
            Self::Cold50 => ("create + first exec, 50 at once", "ms", C),
            Self::Cold50P99 => ("the same, p99", "ms", C),
            Self::Rate1 => ("`true`, 1 client", "exec/s", Some((Row::FloorRate1, "floor"))),
            Self::Rate8 => ("`true`, 8 clients", "exec/s", Some((Row::FloorRate8, "floor"))),
            Self::Rate32 => ("`true`, 32 clients", "exec/s", Some((Row::FloorRate32, "floor"))),
            Self::AtOnce => ("100 sessions at once", "s", None),
            Self::Output => ("96 MiB of output", "MB/s", None),
            Self::RelayLines => ("lines of 64 bytes from a process", "lines/s", None),
            Self::RelayOutput => ("lines of 8 KiB from a process", "MB/s", None),
            Self::Flood => ("a flood of output", "MB/s", None),
            Self::FloodBefore => ("RSS before the flood", "MiB", None),
            Self::FloodPeak => ("RSS at its highest", "MiB", None),
            Self::FloodGrowth => ("growth while it passes", "MiB", None),
            Self::Start => ("start to first ping", "ms", None),
            Self::Idle => ("idle, RSS", "MiB", None),
            Self::IdleTree => ("idle, PSS of all its processes", "MiB", None),
            Self::SessionMemAvailable => ("each of many sessions, by MemAvailable", "MiB", None),
            Self::SessionCounted => ("each: PSS + server's RSS + kernel counters", "MiB", None),
            Self::SessionServer => ("of that RSS of the server", "MiB", None),
            Self::SessionProcess => ("of that PSS of its init", "MiB", None),
            Self::SessionCaches => ("beside that reclaimable caches", "MiB", None),
            Self::WarmAlone => ("warm exec, 1 session", "x W", None),
            Self::WarmCrowded => {
                ("warm exec, many sessions", "x W", Some((Row::Rpc(Self::WarmAlone, server), "of that")))
            }
            Self::ChurnRate => ("create, exec, delete, 8 clients", "1/s", None),
            Self::GrownMemory => ("growth by all of these, RSS", "MiB", None),
            Self::GrownDescriptors => ("growth, descriptors", "", None),
            Self::GrownMounts => ("growth, mounts", "", None),
            Self::GrownCgroups => ("growth, cgroups", "", None),
            Self::GrownDirectories => ("growth, directories", "", None),
            Self::GrownProcesses => ("growth, processes", "", None),
        };
        // The reference is compared with us, not with the floor.
        let basis = if server.is_ours() { basis } else { Some((Row::Rpc(self, Server::Sandcrate), "ours")) };
        Description { what: format!("{server}: {what}"), unit, basis }
    }
}

impl NetworkFigure {
    fn description(self, way: Way) -> Description {
        let (what, unit) = match self {
            Self::Out => ("bulk data out of the box", "MB/s"),
            Self::In => ("bulk data into the box", "MB/s"),
            Self::Connect => ("connect", "ms"),
            Self::Request => ("connect, 1 byte there and back, close", "ms"),
            Self::Rate1 => ("the same, 1 caller", "1/s"),
            Self::Rate8 => ("the same, 8 callers", "1/s"),
            Self::IdleOff => ("an idle box without a network", "MiB"),
            Self::IdleOn => ("an idle box with one, helper included", "MiB"),
        };
        let basis = match self {
            Self::IdleOff | Self::IdleOn => None,
            // What user-mode networks are compared with.
            Self::Out | Self::In if way != Way::Veth => Some((Row::Network(self, Way::Pasta), "pasta")),
            _ => Some((Row::Network(self, Way::Veth), "veth")),
        };
        Description { what: format!("network, {way}: {what}"), unit, basis }
    }
}
