//! The device of an isolated network, made from outside in a box that somebody else set up.
//!
//! A native box's init makes its own, while it still may. A container's has no right to, so a thread of the daemon
//! enters the container's network namespace for it, and ends there: no other thread ever leaves the daemon's own.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags, open};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use sandcrate_backend::BackendError;
use sandcrate_protocol::Control;
use sandcrate_sys::tun::{self, InterfaceSettings};

use super::{DEVICE, interface};

const NAME: &str = "tun0";

/// Makes and configures the device in the network namespace of a process. Needs root.
pub async fn make_device_in(pid: i32) -> Result<OwnedFd, BackendError> {
    let unenforceable = |why: String| BackendError::Unenforceable { control: Control::Network, why };
    let made = tokio::task::spawn_blocking(move || {
        let namespace = namespace_of(pid)?;
        // A thread of its own, not one that others use afterwards.
        let thread = std::thread::Builder::new()
            .name("sandcrate-device".to_owned())
            .spawn(move || make_inside(&namespace))
            .map_err(|error| format!("starting a thread: {error}"))?;
        thread.join().unwrap_or_else(|_| Err("the thread that makes the device has panicked".to_owned()))
    });
    made.await.unwrap_or_else(|error| Err(error.to_string())).map_err(unenforceable)
}

fn namespace_of(pid: i32) -> Result<File, String> {
    if pid <= 0 {
        return Err(
            "the box's init is no process that this host can see, so its network namespace cannot be entered"
                .to_owned(),
        );
    }
    let failed = |error: io::Error| format!("opening the box's network namespace: {error}");
    let namespace = File::open(format!("/proc/{pid}/ns/net")).map_err(failed)?;
    let (theirs, ours) =
        (namespace.metadata().map_err(failed)?, fs::metadata("/proc/self/ns/net").map_err(failed)?);
    if (theirs.dev(), theirs.ino()) == (ours.dev(), ours.ino()) {
        return Err("the box shares the host's network namespace".to_owned());
    }
    Ok(namespace)
}

fn make_inside(namespace: &File) -> Result<OwnedFd, String> {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
        .map_err(|error| format!("entering the box's network namespace: {error}"))?;
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let device = open(DEVICE, flags, Mode::empty()).map_err(|error| format!("opening {DEVICE}: {error}"))?;
    tun::attach(device.as_fd(), NAME).map_err(|error| format!("making the tun device: {error}"))?;
    let wanted = interface();
    let settings = InterfaceSettings {
        v4: wanted.v4,
        gateway_v4: wanted.gateway_v4,
        v6: has_v6().then_some(wanted.v6),
        gateway_v6: wanted.gateway_v6,
        mtu: wanted.mtu,
    };
    tun::configure(NAME, &settings).map_err(|error| format!("configuring the tun device: {error}"))?;
    // Echo sockets for every group of the box; a kernel that refuses has none to give.
    let _ = fs::write("/proc/sys/net/ipv4/ping_group_range", "0 2147483647");
    Ok(device)
}

/// Engines turn IPv6 off in namespaces that they give no address. Settings are those of the thread's namespace:
/// proc_sys(5) looks at whoever opens them.
fn has_v6() -> bool {
    let place = Path::new("/proc/sys/net/ipv6/conf");
    let on = |name: &str| fs::write(place.join(name).join("disable_ipv6"), "0").is_ok();
    place.exists() && on("default") && on(NAME)
}
