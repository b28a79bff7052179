//! Bounds on what one box may use of the network, and what it has used.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Bounds per box.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    /// TCP connections at a time. Each may hold 512 KiB of buffers in the helper.
    pub connections: u32,
    /// UDP and echo associations and pending DNS questions at a time.
    pub associations: u32,
    /// New connections and associations per second, and as many at once.
    pub opened_per_second: u32,
    /// Payload bytes per second, both ways together; `None`: as fast as it goes.
    pub bytes_per_second: Option<u64>,
    pub connect_timeout: Duration,
    pub tcp_idle: Duration,
    pub udp_idle: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 256,
            associations: 256,
            opened_per_second: 512,
            bytes_per_second: None,
            // What a program waits for a peer that does not answer; the kernel's own is two minutes.
            connect_timeout: Duration::from_secs(30),
            tcp_idle: Duration::from_secs(3600),
            udp_idle: Duration::from_secs(60),
        }
    }
}

/// What a box has used. Bytes are payload, seen from the box.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    pub bytes_sent: u64,
    pub bytes_received: u64,
    pub connections_opened: u64,
    /// The peer or the host's network refused.
    pub connections_failed: u64,
    pub associations_opened: u64,
    pub names_asked: u64,
    pub denied: u64,
    /// Malformed, fragmented, of another protocol.
    pub packets_dropped: u64,
    pub connections_now: u32,
}
