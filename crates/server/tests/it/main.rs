//! The faces from outside: a real server on loopback over the real runtime and the scripted backend.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

mod admission;
mod auth;
mod box_mcp;
mod e2b;
mod hostile;
mod relay;
mod rest;
mod rpc;
mod support;
mod tenants;
mod tls;
