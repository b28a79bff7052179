//! Tests of what the crate gives to the layers above: the fold over a command's events, and the fake.

#![expect(clippy::unwrap_used, reason = "helpers of tests stand outside #[test] functions")]

mod fake;
mod fold;
mod suite;
