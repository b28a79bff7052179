//! Credentials: capabilities, no_new_privs, the filter, id maps, groups, and changing them.

use std::fs;

use crate::proc_tree::status_field;
use crate::report::{AttackResult, Report, Usage, Verdict};
use crate::sys::{SysResult, syscall};

const LAST_CAPABILITY: u32 = 63;

/// `struct __user_cap_header_struct`, version 3, this process.
const CAPABILITY_HEADER: [u32; 2] = [0x2008_0522, 0];

fn prctl(option: i32, arguments: [u64; 4]) -> SysResult {
    let [second, third, fourth, fifth] = arguments;
    syscall!(libc::SYS_prctl, option, second, third, fourth, fifth)
}

/// PR-01: no capability in any set, and none can be raised.
pub(crate) fn caps(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    let mut header = CAPABILITY_HEADER;
    let mut sets = [0u32; 6];
    let asked = syscall!(libc::SYS_capget, header.as_mut_ptr(), sets.as_mut_ptr());
    report.attempt(&format!("capget {sets:x?}"), asked);
    if asked.is_ok() && sets.iter().any(|set| *set != 0) {
        report.breach(format!("capget shows {sets:x?}"));
    }
    for field in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
        if let Some(value) = status_field("/proc/self/status", field) {
            println!("attempt: {field} -> {value}");
            if value.bytes().any(|digit| digit != b'0') {
                report.breach(format!("{field} is {value}"));
            }
        }
    }
    for set in [[1 << 21, 1 << 21, 0, 0, 0, 0], [u32::MAX; 6], [0, 1, 0, 0, 0, 0], [0, 0, 1, 0, 0, 0]] {
        report.must_fail(&format!("capset({set:x?})"), || {
            syscall!(libc::SYS_capset, CAPABILITY_HEADER.as_ptr(), set.as_ptr())
        });
    }
    for capability in 0..=40 {
        report.quiet_must_fail(&format!("raise ambient capability {capability}"), || {
            prctl(libc::PR_CAP_AMBIENT, [2, capability, 0, 0])
        });
    }
    report.verdict("no capability is held or can be raised")
}

/// PR-02: an empty bounding set.
pub(crate) fn bnd(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    for capability in 0..=LAST_CAPABILITY {
        report.held();
        if prctl(libc::PR_CAPBSET_READ, [capability.into(), 0, 0, 0]) == Ok(1) {
            report.breach(format!("capability {capability} is in the bounding set"));
        }
    }
    if let Some(value) = status_field("/proc/self/status", "CapBnd") {
        println!("attempt: CapBnd -> {value}");
        if value.bytes().any(|digit| digit != b'0') {
            report.breach(format!("CapBnd is {value}"));
        }
    }
    report.verdict("the bounding set is empty")
}

/// PR-03: no_new_privs is set and stays.
pub(crate) fn nnp(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    let state = prctl(libc::PR_GET_NO_NEW_PRIVS, [0; 4]);
    report.attempt("prctl(PR_GET_NO_NEW_PRIVS)", state);
    if state != Ok(1) {
        report.breach("no_new_privs is not set");
    }
    report.must_fail("prctl(PR_SET_NO_NEW_PRIVS, 0)", || prctl(libc::PR_SET_NO_NEW_PRIVS, [0; 4]));
    report.verdict("no_new_privs is set")
}

/// PR-04: a filter is active and cannot be left.
pub(crate) fn seccomp(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    let state = prctl(libc::PR_GET_SECCOMP, [0; 4]);
    report.attempt("prctl(PR_GET_SECCOMP)", state);
    let shown = status_field("/proc/self/status", "Seccomp");
    println!("attempt: Seccomp in status -> {shown:?}");
    // A filter may refuse PR_GET_SECCOMP itself; then the status file decides.
    if state != Ok(2) && shown.as_deref() != Some("2") {
        report.breach(format!("no filter: {shown:?}"));
    }
    report.must_fail("prctl(PR_SET_SECCOMP, disabled)", || prctl(libc::PR_SET_SECCOMP, [0; 4]));
    report.must_fail("ptrace(PTRACE_SETOPTIONS, suspend seccomp)", || {
        const SEIZE: i32 = 0x4206;
        const SUSPEND_SECCOMP: i32 = 1 << 21;
        let sleeper = crate::child::Child::spawn(|| {
            std::thread::sleep(std::time::Duration::from_secs(2));
            0
        })?;
        syscall!(libc::SYS_ptrace, SEIZE, sleeper.pid(), 0, SUSPEND_SECCOMP)
    });
    report.verdict("a filter is active")
}

/// PR-05: host ids 0 are not mapped.
pub(crate) fn uidmap(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    for file in ["uid_map", "gid_map"] {
        let path = format!("/proc/self/{file}");
        let text = fs::read_to_string(&path).map_err(|error| Usage(format!("{path}: {error}")))?;
        for line in text.lines() {
            let numbers: Vec<u64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
            println!("attempt: {file} -> {numbers:?}");
            report.held();
            if let [inside, 0, count] = numbers[..] {
                report.breach(format!("{file} maps {inside} to host id 0 ({count} ids)"));
            }
        }
    }
    report.verdict("host ids 0 are not mapped")
}

/// PR-06: supplementary groups, and whether they can be changed.
pub(crate) fn groups(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    let mut groups = [0u32; 256];
    let count = syscall!(libc::SYS_getgroups, groups.len(), groups.as_mut_ptr());
    let held = &groups[..count.unwrap_or(0) as usize];
    for set in [&[][..], &[0u32][..], &[6, 42][..]] {
        report.must_fail(&format!("setgroups({set:?})"), || {
            syscall!(libc::SYS_setgroups, set.len(), set.as_ptr())
        });
    }
    report.remark(match held {
        [] => "no supplementary groups".to_owned(),
        held => format!("supplementary groups {held:?}"),
    });
    report.verdict("no supplementary groups")
}

/// PR-55: becoming another user or group.
pub(crate) fn setid(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    // SAFETY: neither call has preconditions.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    for other in [0u32, 1, 65534, 1000, 1001] {
        if other != user {
            report.must_fail(&format!("setuid({other})"), || syscall!(libc::SYS_setuid, other));
            report.must_fail(&format!("setresuid({other})"), || {
                syscall!(libc::SYS_setresuid, other, other, other)
            });
            report.must_fail(&format!("setreuid({other})"), || syscall!(libc::SYS_setreuid, other, other));
            report.must_fail(&format!("setfsuid({other})"), || changed_to(libc::SYS_setfsuid, other));
        }
        if other != group {
            report.must_fail(&format!("setgid({other})"), || syscall!(libc::SYS_setgid, other));
            report.must_fail(&format!("setresgid({other})"), || {
                syscall!(libc::SYS_setresgid, other, other, other)
            });
            report.must_fail(&format!("setfsgid({other})"), || changed_to(libc::SYS_setfsgid, other));
        }
    }
    report.must_fail("prctl(PR_SET_SECUREBITS)", || prctl(libc::PR_SET_SECUREBITS, [0; 4]));
    report.verdict("user and group stay as they are")
}

/// The file system id calls return the previous id and never fail; asking twice tells.
fn changed_to(call: i64, id: u32) -> SysResult {
    syscall!(call, id)?;
    let now = syscall!(call, id)?;
    if now == i64::from(id) { Ok(now) } else { Err(crate::sys::Errno(libc::EPERM)) }
}

/// PR-33: whether this process is dumpable, which lets its own kind trace it.
pub(crate) fn dump(_arguments: &[String]) -> AttackResult {
    let state = prctl(libc::PR_GET_DUMPABLE, [0; 4]);
    let shown = state.map_or_else(|errno| errno.to_string(), |value| value.to_string());
    println!("attempt: prctl(PR_GET_DUMPABLE) -> {shown}");
    Ok(Verdict::Info(format!("dumpable is {shown}")))
}
