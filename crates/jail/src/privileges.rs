//! Giving up privileges, and looking afterwards whether they are gone.

use std::io;

use rustix::thread::{
    CapabilitiesSecureBits, CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set,
    clear_ambient_capability_set, no_new_privs, remove_capability_from_bounding_set, set_capabilities,
    set_capabilities_secure_bits, set_no_new_privs,
};

use crate::message::{Failure, Step};

/// Drops every capability but `keep`, for good: nothing that is executed later has more, whoever owns it.
pub(crate) fn drop_to(keep: CapabilitySet) -> Result<(), Failure> {
    clear_ambient_capability_set().step("clearing ambient capabilities")?;
    for capability in CapabilitySet::all().iter() {
        match remove_capability_from_bounding_set(capability) {
            // A capability this kernel does not know.
            Err(rustix::io::Errno::INVAL) => {}
            other => other.step("dropping the bounding set")?,
        }
    }
    let locked = CapabilitiesSecureBits::NO_ROOT
        | CapabilitiesSecureBits::NO_ROOT_LOCKED
        | CapabilitiesSecureBits::NO_SETUID_FIXUP
        | CapabilitiesSecureBits::NO_SETUID_FIXUP_LOCKED
        | CapabilitiesSecureBits::KEEP_CAPS_LOCKED
        | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE
        | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE_LOCKED;
    // Before the capability set: it needs CAP_SETPCAP.
    set_capabilities_secure_bits(locked).step("locking the secure bits")?;
    set_no_new_privs(true).step("setting no_new_privs")?;
    set_only(keep).step("dropping capabilities")
}

/// Sets the effective and permitted sets of this process; the others are empty already.
pub(crate) fn set_only(keep: CapabilitySet) -> io::Result<()> {
    let sets = CapabilitySets { effective: keep, permitted: keep, inheritable: CapabilitySet::empty() };
    Ok(set_capabilities(None, sets)?)
}

/// Fails unless this process has exactly `keep` and can never have more.
pub(crate) fn verify(keep: CapabilitySet) -> Result<(), Failure> {
    let now = capabilities(None).step("reading capabilities back")?;
    let mut left = None;
    if now.effective != keep || now.permitted != keep || !now.inheritable.is_empty() {
        left = Some("capabilities");
    }
    if CapabilitySet::all().iter().any(|capability| capability_is_in_bounding_set(capability) == Ok(true)) {
        left = Some("the bounding set");
    }
    if no_new_privs() != Ok(true) {
        left = Some("no_new_privs");
    }
    match left {
        None => Ok(()),
        Some(what) => {
            Err(io::Error::from_raw_os_error(libc::EPERM)).step_with(|| format!("{what} not as set"))
        }
    }
}
