//! The network device of an isolated box: made while init still may, handed to the daemon, closed in the box.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, open};
use sandcrate_sys::tun::{self, InterfaceSettings};

use crate::identity::IdMapping;
use crate::message::{Failure, Step};
use crate::plan::{INTERFACE_NAME, NetworkMode, Plan};
use crate::template::TUN;

/// What a later plan may need for its network and init cannot get by then.
#[derive(Debug, Default)]
pub(super) struct Preparations {
    /// Opened while init has its maker's id on the host: distributions differ in who may open the node. Opened in
    /// the box's network namespace: that is where the device will be. What went wrong matters only to a plan that
    /// wants it.
    pub(super) device: Option<io::Result<OwnedFd>>,
    /// The groups that may have echo sockets; settings are read-only later.
    pub(super) ping_range: Option<File>,
}

impl Preparations {
    pub(super) fn open_device(network: NetworkMode) -> Self {
        let device = (network == NetworkMode::Isolated).then(|| {
            let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
            open(TUN, flags, Mode::empty()).map_err(io::Error::from)
        });
        Self { device, ping_range: None }
    }
}

/// Makes and configures the device; `None` for a plan without one.
pub(super) fn set_up(plan: &Plan, prepared: Preparations) -> Result<Option<OwnedFd>, Failure> {
    let Some(interface) = &plan.interface else { return Ok(None) };
    let device = prepared.device.unwrap_or_else(|| Err(io::ErrorKind::NotFound.into()));
    let device = device.step("opening /dev/net/tun, as it was when the launcher started")?;
    tun::attach(device.as_fd(), INTERFACE_NAME).step("making the tun device")?;
    let settings = InterfaceSettings {
        v4: interface.v4,
        gateway_v4: interface.gateway_v4,
        v6: Path::new("/proc/sys/net/ipv6").exists().then_some(interface.v6),
        gateway_v6: interface.gateway_v6,
        mtu: interface.mtu,
    };
    tun::configure(INTERFACE_NAME, &settings).step("configuring the tun device")?;
    if let Some(mut range) = prepared.ping_range {
        let groups = match plan.mapping {
            IdMapping::Range => "0 65535".to_owned(),
            IdMapping::Single { .. } => format!("{0} {0}", plan.user),
        };
        range.write_all(groups.as_bytes()).step("allowing echo sockets")?;
    }
    Ok(Some(device))
}
