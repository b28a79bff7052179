//! What the runtime counts, and the text that monitoring reads.

use std::fmt;
use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, text::encode};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use sandcrate_backend::{ExecExit, LimitHit};
use sandcrate_protocol::network::{Counters, DenialKind};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Limit {
    limit: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Kind {
    kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BackendLabel {
    backend: String,
}

/// The runtime's own figures.
pub struct Metrics {
    registry: Registry,
    execs: Family<Outcome, Counter>,
    exec_seconds: Histogram,
    create_seconds: Histogram,
    starts_failed: Counter,
    sessions: Gauge,
    processes: Gauge,
    reaped: Counter,
    output_bytes: Counter,
    limit_hits: Family<Limit, Counter>,
    denials: Family<Kind, Counter>,
    sent_bytes: Counter,
    received_bytes: Counter,
    connections: Counter,
    connections_open: Gauge,
    backend_up: Family<BackendLabel, Gauge>,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Metrics {
    pub(crate) fn new() -> Self {
        // From a warm command to a long build.
        let buckets = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0, 300.0];
        let mut made = Self {
            registry: Registry::with_prefix("sandcrate"),
            execs: Family::default(),
            exec_seconds: Histogram::new(buckets),
            create_seconds: Histogram::new(buckets),
            starts_failed: Counter::default(),
            sessions: Gauge::default(),
            processes: Gauge::default(),
            reaped: Counter::default(),
            output_bytes: Counter::default(),
            limit_hits: Family::default(),
            denials: Family::default(),
            sent_bytes: Counter::default(),
            received_bytes: Counter::default(),
            connections: Counter::default(),
            connections_open: Gauge::default(),
            backend_up: Family::default(),
        };
        let registry = &mut made.registry;
        registry.register("execs", "Commands by how they ended", made.execs.clone());
        registry.register_with_unit(
            "exec_duration",
            "Wall time of commands",
            Unit::Seconds,
            made.exec_seconds.clone(),
        );
        registry.register_with_unit(
            "session_start_duration",
            "Time to make a box",
            Unit::Seconds,
            made.create_seconds.clone(),
        );
        registry.register(
            "session_start_failures",
            "Boxes that could not be made",
            made.starts_failed.clone(),
        );
        registry.register("sessions", "Sessions there are", made.sessions.clone());
        registry.register("managed_processes", "Managed processes that run", made.processes.clone());
        registry.register("sessions_reaped", "Sessions ended for want of use", made.reaped.clone());
        registry.register_with_unit(
            "output",
            "Bytes written by commands",
            Unit::Bytes,
            made.output_bytes.clone(),
        );
        registry.register("limit_hits", "Limits that fired, by kind", made.limit_hits.clone());
        registry.register("denials", "What boxes were refused, by kind", made.denials.clone());
        registry.register_with_unit(
            "network_sent",
            "Payload that boxes sent",
            Unit::Bytes,
            made.sent_bytes.clone(),
        );
        registry.register_with_unit(
            "network_received",
            "Payload that boxes received",
            Unit::Bytes,
            made.received_bytes.clone(),
        );
        registry.register(
            "network_connections",
            "TCP connections that boxes opened",
            made.connections.clone(),
        );
        registry.register(
            "network_connections_open",
            "TCP connections of boxes that are open",
            made.connections_open.clone(),
        );
        registry.register("backend_up", "Whether the backend in use answers", made.backend_up.clone());
        made
    }

    /// The figures as OpenMetrics text.
    pub fn render(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = encode(&mut text, &self.registry);
        text
    }

    pub(crate) fn command_ended(&self, exit: &ExecExit, wall: Duration, bytes: u64) {
        let outcome = if exit.timed_out { "timed_out" } else { "completed" };
        self.execs.get_or_create(&Outcome { outcome }).inc();
        self.exec_seconds.observe(wall.as_secs_f64());
        self.output_bytes.inc_by(bytes);
        for hit in &exit.limits_hit {
            self.limit_hit(hit);
        }
    }

    pub(crate) fn exec_failed(&self) {
        self.execs.get_or_create(&Outcome { outcome: "failed" }).inc();
    }

    fn limit_hit(&self, hit: &LimitHit) {
        let limit = match hit {
            LimitHit::Memory { .. } => "memory",
            LimitHit::Pids { .. } => "pids",
            LimitHit::Disk { .. } => "disk",
            _ => "other",
        };
        self.limit_hits.get_or_create(&Limit { limit }).inc();
    }

    /// What a box used between two looks.
    pub(crate) fn network_used(&self, before: &Counters, now: &Counters) {
        self.sent_bytes.inc_by(now.bytes_sent.saturating_sub(before.bytes_sent));
        self.received_bytes.inc_by(now.bytes_received.saturating_sub(before.bytes_received));
        self.connections.inc_by(now.connections_opened.saturating_sub(before.connections_opened));
    }

    pub(crate) fn denied(&self, kind: DenialKind, count: u64) {
        if count > 0 {
            self.denials.get_or_create(&Kind { kind: kind.name() }).inc_by(count);
        }
    }

    pub(crate) fn set_connections(&self, open: u64) {
        self.connections_open.set(i64::try_from(open).unwrap_or(i64::MAX));
    }

    pub(crate) fn session_started(&self, took: Duration) {
        self.create_seconds.observe(took.as_secs_f64());
    }

    pub(crate) fn session_start_failed(&self) {
        self.starts_failed.inc();
    }

    pub(crate) fn session_reaped(&self) {
        self.reaped.inc();
    }

    pub(crate) fn set_counts(&self, sessions: usize, processes: usize) {
        self.sessions.set(i64::try_from(sessions).unwrap_or(i64::MAX));
        self.processes.set(i64::try_from(processes).unwrap_or(i64::MAX));
    }

    pub(crate) fn set_backend(&self, name: &str, up: bool) {
        self.backend_up.get_or_create(&BackendLabel { backend: name.to_owned() }).set(i64::from(up));
    }
}
