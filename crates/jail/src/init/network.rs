//! The network device of an isolated box: made while init still may, handed to the daemon, closed in the box.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, open};
use sandcrate_sys::tun::{self, InterfaceSettings};

use crate::identity::IdMapping;
use crate::message::{Failure, Step};
use crate::plan::{INTERFACE_NAME, Plan};

/// Makes and configures the device; `None` for a plan without one. Takes the descriptor of /dev/net/tun, the last
/// that came with the plan.
pub(super) fn set_up(
    plan: &Plan,
    fds: &mut Vec<OwnedFd>,
    ping_range: Option<File>,
) -> Result<Option<OwnedFd>, Failure> {
    let Some(interface) = &plan.interface else { return Ok(None) };
    let node = fds
        .pop()
        .ok_or_else(|| Failure { step: "no tun device came with the plan".into(), errno: libc::EBADF })?;
    // Opened here and not by the daemon: the device belongs to the network namespace of whoever opened the node.
    let device = open(
        format!("/proc/self/fd/{}", node.as_raw_fd()),
        OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .step("opening /dev/net/tun")?;
    tun::attach(device.as_fd(), INTERFACE_NAME).step("making the tun device")?;
    let settings = InterfaceSettings {
        v4: interface.v4,
        gateway_v4: interface.gateway_v4,
        v6: Path::new("/proc/sys/net/ipv6").exists().then_some(interface.v6),
        gateway_v6: interface.gateway_v6,
        mtu: interface.mtu,
    };
    tun::configure(INTERFACE_NAME, &settings).step("configuring the tun device")?;
    if let Some(mut range) = ping_range {
        let groups = match plan.mapping {
            IdMapping::Range => "0 65535".to_owned(),
            IdMapping::Single { .. } => format!("{0} {0}", plan.user),
        };
        range.write_all(groups.as_bytes()).step("allowing echo sockets")?;
    }
    Ok(Some(device))
}
