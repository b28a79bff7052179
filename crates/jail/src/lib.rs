//! One Linux sandbox: a pure [`Plan`], and its application by a launcher and an init.
//!
//! The daemon's side is a few messages: start a launcher ([`NewLauncher`]), have it prepare and furnish
//! a box ([`message::LauncherRequest`]), then talk to the box's init ([`message::InitRequest`]).

pub mod cgroup;
mod cgroup_report;
pub mod channel;
mod confine;
mod etc;
pub mod guest;
pub mod identity;
mod init;
mod landlock_rules;
mod launcher;
pub mod message;
mod mounts;
pub mod nsjail;
mod plan;
mod privileges;
pub mod remove_tree;
mod role;
pub mod seccomp;
mod template;
mod tree;
mod userns;

pub use cgroup_report::{record as record_cgroups, record_none as record_no_cgroups};
pub use channel::Channel;
pub use confine::confine_network_helper;
pub use init::EXECUTING;
pub use plan::{
    Access, Interface, JailSpec, MountSource, NetworkMode, NodeKind, Plan, PlanError, PlannedMount,
    PlannedRlimit, RequestedMount, Rlimit, RootMode,
};
pub use role::{LauncherProcess, NewLauncher, compile_policy, dispatch_role};
