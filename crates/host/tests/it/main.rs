//! The service, its connector and the runtime below it. Tests whose names begin with `test_` are those of the
//! reference's own suites; [`names`] counts them.

#![expect(clippy::unwrap_used, reason = "helpers of tests stand outside #[test] functions")]
#![expect(clippy::needless_pass_by_value, reason = "helpers are given what json! makes")]

mod config;
mod connector;
mod faults;
mod files;
mod lifecycle;
mod mock;
mod mounts;
mod names;
mod processes;
mod profiles;
mod quota;
mod recorded;

mod rpc;
mod runtime;
mod session_ids;
mod sharing;
mod skills;
mod specs;
mod status;
mod support;
mod truncation;
