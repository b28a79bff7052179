//! Interfaces, netlink, raw sockets, vsock and rare address families.

use std::fs;

use crate::child::attempt_in_child;
use crate::report::{AttackResult, Report, Usage};
use crate::sys::{SysResult, close, syscall};

const SIOCGIFNAME: u64 = 0x8910;

/// NT-01: interfaces and routes, by file and by call.
pub(crate) fn ifaces(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    let mut names: Vec<String> = Vec::new();
    let mut answered = false;
    if let Ok(text) = fs::read_to_string("/proc/net/dev") {
        answered = true;
        names.extend(text.lines().skip(2).filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned())));
    }
    for entry in fs::read_dir("/sys/class/net").into_iter().flatten().flatten() {
        names.push(entry.file_name().to_string_lossy().into_owned());
    }
    for family in [libc::AF_INET, libc::AF_UNIX] {
        let Ok(fd) = syscall!(libc::SYS_socket, family, libc::SOCK_DGRAM, 0) else { continue };
        for index in 1..64u32 {
            let mut request = [0u8; 40];
            request[16..20].copy_from_slice(&index.to_ne_bytes());
            let asked = syscall!(libc::SYS_ioctl, fd, SIOCGIFNAME, request.as_mut_ptr());
            answered |= asked.is_ok();
            if asked.is_ok() {
                let end = request.iter().position(|byte| *byte == 0).unwrap_or(16);
                names.push(String::from_utf8_lossy(&request[..end]).into_owned());
            }
        }
        close(fd);
    }
    if !answered {
        return Err(Usage("neither /proc/net/dev nor SIOCGIFNAME answers".into()));
    }
    names.sort();
    names.dedup();
    println!("attempt: interfaces -> {names:?}");
    report.held();
    for name in names.iter().filter(|name| *name != "lo") {
        report.breach(format!("interface {name}"));
    }
    for (file, skipped) in [("/proc/net/route", 1), ("/proc/net/ipv6_route", 0)] {
        let text = fs::read_to_string(file).unwrap_or_default();
        for line in
            text.lines().skip(skipped).filter(|line| !line.split_whitespace().any(|word| word == "lo"))
        {
            report.breach(format!("route in {file}: {line}"));
        }
    }
    report.verdict("only lo, and no route")
}

/// NT-07: netlink of every protocol, and making a link with it.
pub(crate) fn netlink(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    let mut open = Vec::new();
    for protocol in 0..=22 {
        for kind in [libc::SOCK_RAW, libc::SOCK_DGRAM] {
            let outcome = attempt_in_child(|| syscall!(libc::SYS_socket, libc::AF_NETLINK, kind, protocol));
            if report.attempt(&format!("netlink socket {protocol}, kind {kind}"), outcome).succeeded() {
                open.push(protocol);
            }
        }
    }
    report.must_fail("RTM_NEWLINK dummy", new_link);
    open.dedup();
    if !open.is_empty() {
        report.remark(format!("netlink protocols open: {open:?}"));
    }
    report.verdict("netlink is refused")
}

/// Asks for a dummy interface and reads the acknowledgement.
fn new_link() -> SysResult {
    const RTM_NEWLINK: u16 = 16;
    const REQUEST_ACK_CREATE: u16 = 1 | 4 | 0x400 | 0x200;
    let fd = syscall!(libc::SYS_socket, libc::AF_NETLINK, libc::SOCK_RAW, 0)?;
    let mut message = Vec::new();
    message.extend([0u8; 16 + 16]);
    message.extend(attribute(3, b"probe0\0"));
    message.extend(attribute(18, &attribute(1, b"dummy\0")));
    let size = message.len() as u32;
    message[..4].copy_from_slice(&size.to_ne_bytes());
    message[4..6].copy_from_slice(&RTM_NEWLINK.to_ne_bytes());
    message[6..8].copy_from_slice(&REQUEST_ACK_CREATE.to_ne_bytes());
    syscall!(libc::SYS_sendto, fd, message.as_ptr(), message.len(), 0, 0, 0)?;
    let mut answer = [0u8; 256];
    let read = syscall!(libc::SYS_recvfrom, fd, answer.as_mut_ptr(), answer.len(), 0, 0, 0)?;
    let code =
        answer.get(16..20).and_then(|bytes| bytes.try_into().ok()).map_or(-libc::EIO, i32::from_ne_bytes);
    if code == 0 { Ok(read) } else { Err(crate::sys::Errno(-code)) }
}

fn attribute(kind: u16, payload: &[u8]) -> Vec<u8> {
    let length = 4 + payload.len() as u16;
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(payload);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// NT-08: raw and packet sockets.
pub(crate) fn raw(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    let every_protocol = i32::from(0x0003u16.to_be());
    let mut forms = vec![
        ("packet raw", libc::AF_PACKET, libc::SOCK_RAW, every_protocol),
        ("packet datagram", libc::AF_PACKET, libc::SOCK_DGRAM, every_protocol),
        ("old packet", libc::AF_INET, 10, every_protocol),
    ];
    for family in [libc::AF_INET, libc::AF_INET6] {
        for protocol in [1, 6, 17, 58, 89, 132, 255] {
            forms.push(("internet raw", family, libc::SOCK_RAW, protocol));
        }
    }
    for (name, family, kind, protocol) in forms {
        for high in [0u64, 0xffff_ffff_0000_0000] {
            let what = format!("socket({name}, family {family}, protocol {protocol}, bits {high:#x})");
            report.must_fail(&what, || syscall!(libc::SYS_socket, family as u64 | high, kind, protocol));
        }
    }
    report.must_fail("mark packets", || {
        let fd = syscall!(libc::SYS_socket, libc::AF_INET, libc::SOCK_DGRAM, 0)?;
        syscall!(libc::SYS_setsockopt, fd, libc::SOL_SOCKET, libc::SO_MARK, &raw const MARK, 4)
    });
    report.verdict("raw and packet sockets are refused")
}

static MARK: i32 = 7;

/// NT-51: the hypervisor's socket, which no network namespace separates.
///
/// A socket is the whole attack: nothing is sent or connected, since a packet would leave the machine.
pub(crate) fn vsock(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    let kinds = [libc::SOCK_STREAM, libc::SOCK_DGRAM, libc::SOCK_SEQPACKET];
    for kind in kinds {
        for high in [0u64, 1 << 32, 0xffff_ffff_0000_0000] {
            let what = format!("socket(vsock, kind {kind}, bits {high:#x})");
            report.must_fail(&what, || syscall!(libc::SYS_socket, libc::AF_VSOCK as u64 | high, kind, 0));
        }
        report.must_fail(&format!("socketpair(vsock, kind {kind})"), || {
            let mut ends = [0i32; 2];
            syscall!(libc::SYS_socketpair, libc::AF_VSOCK, kind, 0, ends.as_mut_ptr())
        });
    }
    report.must_not_open("/dev/vsock", libc::O_RDONLY);
    report.verdict("vsock is refused")
}

/// NT-54: every address family beyond unix, internet and netlink.
pub(crate) fn families(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    let usual = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];
    for family in (0..=64).filter(|family| !usual.contains(family)) {
        for kind in
            [libc::SOCK_STREAM, libc::SOCK_DGRAM, libc::SOCK_RAW, libc::SOCK_SEQPACKET, libc::SOCK_RDM]
        {
            report.quiet_must_fail(&format!("socket(family {family}, kind {kind})"), || {
                syscall!(libc::SYS_socket, family, kind, 0)
            });
        }
    }
    report.must_fail("socket(alg) with high bits", || {
        syscall!(libc::SYS_socket, libc::AF_ALG as u64 | 1 << 32, libc::SOCK_SEQPACKET, 0)
    });
    report.verdict("rare address families are refused")
}
