//! The runtime over the scripted backend, on a paused clock.

#![expect(clippy::unwrap_used, reason = "helpers of tests stand outside #[test] functions")]

mod bench;
mod lifecycle;
mod network;
mod persistence;
mod ports;
mod processes;
mod queue;
mod streams;
