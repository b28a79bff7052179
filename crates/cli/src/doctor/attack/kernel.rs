//! Attempts by system calls that rustix has.

use rustix::mount::MountFlags;
use rustix::thread::LinkNameSpaceType;
use rustix::time::{ClockId, clock_gettime, clock_settime};

use super::Bait;
use super::outcome::{Outcome, must_fail};

pub(super) fn mount(_: &Bait) -> Outcome {
    must_fail(rustix::mount::mount("none", "/tmp", "tmpfs", MountFlags::empty(), None))
}

pub(super) fn chroot(_: &Bait) -> Outcome {
    must_fail(rustix::process::chroot("/tmp"))
}

pub(super) fn pivot_root(_: &Bait) -> Outcome {
    must_fail(rustix::process::pivot_root("/tmp", "/tmp"))
}

/// PID 1's namespaces are those of the box, but entering its user namespace would bring capabilities.
pub(super) fn setns(_: &Bait) -> Outcome {
    let mut complaints = Vec::new();
    for (name, kind) in [
        ("user", LinkNameSpaceType::User),
        ("mnt", LinkNameSpaceType::Mount),
        ("net", LinkNameSpaceType::Network),
        ("pid", LinkNameSpaceType::ProcessID),
    ] {
        for process in ["1", "self"] {
            let path = format!("/proc/{process}/ns/{name}");
            if let Ok(namespace) = std::fs::File::open(&path)
                && rustix::thread::move_into_link_name_space(std::os::fd::AsFd::as_fd(&namespace), Some(kind))
                    .is_ok()
            {
                complaints.push(format!("entered {path}"));
            }
        }
    }
    Outcome::from_complaints(&complaints, "none can be entered")
}

/// To the time that it is: harmless where it works.
pub(super) fn clock(_: &Bait) -> Outcome {
    must_fail(clock_settime(ClockId::Realtime, clock_gettime(ClockId::Realtime)))
}

/// To the name that it has.
pub(super) fn host_name(_: &Bait) -> Outcome {
    must_fail(rustix::system::sethostname(rustix::system::uname().nodename().to_bytes()))
}
