//! Reaching the host and the world by internet protocols.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::report::{AttackResult, Report, Usage};
use crate::sys::{Errno, SysResult, close, syscall, zeroed};

const MPTCP: i32 = 262;
const MSG_FASTOPEN: i32 = 0x2000_0000;
/// Where a host listens towards its containers, and the address of cloud metadata.
const GATEWAYS: [[u8; 4]; 8] = [
    [10, 0, 2, 2],
    [10, 0, 2, 3],
    [10, 0, 0, 1],
    [172, 17, 0, 1],
    [172, 18, 0, 1],
    [192, 168, 0, 1],
    [192, 168, 122, 1],
    [169, 254, 1, 2],
];

/// The address in the kernel's layout, and its length.
fn raw(address: SocketAddr) -> (libc::sockaddr_storage, usize) {
    let mut storage = zeroed::<libc::sockaddr_storage>();
    let (family, size, bytes) = match address {
        SocketAddr::V4(v4) => {
            let mut bytes = v4.port().to_be_bytes().to_vec();
            bytes.extend(v4.ip().octets());
            (libc::AF_INET, 16, bytes)
        }
        SocketAddr::V6(v6) => {
            let mut bytes = v6.port().to_be_bytes().to_vec();
            bytes.extend([0; 4]);
            bytes.extend(v6.ip().octets());
            bytes.extend(v6.scope_id().to_ne_bytes());
            (libc::AF_INET6, 28, bytes)
        }
    };
    storage.ss_family = family as u16;
    // SAFETY: the structure has 128 bytes and `bytes` is at most 26 long, after the family.
    unsafe {
        let place = (&raw mut storage).cast::<u8>().add(2);
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len());
    }
    (storage, size)
}

fn socket(address: SocketAddr, kind: i32, protocol: i32) -> SysResult {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    syscall!(libc::SYS_socket, family, kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, protocol)
}

/// Connects within 400 ms; a connection under way is judged by its outcome.
fn connect(address: SocketAddr, protocol: i32) -> SysResult {
    let fd = socket(address, libc::SOCK_STREAM, protocol)?;
    let (storage, size) = raw(address);
    let result = match syscall!(libc::SYS_connect, fd, &raw const storage, size) {
        Err(Errno(libc::EINPROGRESS)) => finish(fd),
        other => other,
    };
    close(fd);
    result
}

fn finish(fd: i64) -> SysResult {
    if !ready(fd, libc::POLLOUT, 400) {
        return Err(Errno(libc::ETIMEDOUT));
    }
    let mut error = 0i32;
    let mut size = 4u32;
    syscall!(libc::SYS_getsockopt, fd, libc::SOL_SOCKET, libc::SO_ERROR, &raw mut error, &raw mut size)?;
    if error == 0 { Ok(0) } else { Err(Errno(error)) }
}

fn ready(fd: i64, events: i16, milliseconds: i32) -> bool {
    let mut entry = libc::pollfd { fd: fd as i32, events, revents: 0 };
    // SAFETY: one live entry is passed and its count is one.
    unsafe { libc::poll(&raw mut entry, 1, milliseconds) > 0 }
}

fn fast_open(address: SocketAddr) -> SysResult {
    let fd = socket(address, libc::SOCK_STREAM, 0)?;
    let (storage, size) = raw(address);
    let result = match syscall!(libc::SYS_sendto, fd, c"x", 1, MSG_FASTOPEN, &raw const storage, size) {
        Err(Errno(libc::EINPROGRESS)) => finish(fd),
        other => other,
    };
    close(fd);
    result
}

fn port(arguments: &[String]) -> Result<u16, Usage> {
    match arguments {
        [port] => port.parse().map_err(|_| Usage(format!("{port} is not a port"))),
        _ => Err(Usage("needs one argument: the port of the host's listener".into())),
    }
}

fn must_not_connect(report: &mut Report, address: SocketAddr) {
    for (form, result) in [
        ("connect", connect(address, 0)),
        ("multipath connect", connect(address, MPTCP)),
        ("fast open", fast_open(address)),
    ] {
        let what = format!("{form} to {address}");
        if report.attempt(&what, result).succeeded() {
            report.breach(what);
        }
    }
}

/// NT-02: the host's listener on IPv4 loopback, by every address that might mean the host.
pub(crate) fn tcp4(arguments: &[String]) -> AttackResult {
    let port = port(arguments)?;
    let mut report = Report::default();
    for octets in
        [[127, 0, 0, 1], [127, 0, 0, 2], [127, 255, 255, 254], [0, 0, 0, 0]].into_iter().chain(GATEWAYS)
    {
        must_not_connect(&mut report, (Ipv4Addr::from(octets), port).into());
    }
    let mapped = Ipv4Addr::LOCALHOST.to_ipv6_mapped();
    must_not_connect(&mut report, (mapped, port).into());
    report.verdict("the host's IPv4 listener does not answer")
}

/// NT-03: the host's listener on IPv6 loopback.
pub(crate) fn tcp6(arguments: &[String]) -> AttackResult {
    let port = port(arguments)?;
    let mut report = Report::default();
    let link_local = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
    for ip in [Ipv6Addr::LOCALHOST, Ipv6Addr::UNSPECIFIED, Ipv4Addr::LOCALHOST.to_ipv6_mapped()] {
        must_not_connect(&mut report, (ip, port).into());
    }
    for scope in 1..4 {
        let address = std::net::SocketAddrV6::new(link_local, port, 0, scope);
        must_not_connect(&mut report, address.into());
    }
    report.verdict("the host's IPv6 listener does not answer")
}

/// A DNS question for the root's name servers.
const QUESTION: [u8; 17] = [0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 1];

/// NT-04: datagrams to name servers, gateways, broadcast and multicast.
pub(crate) fn udp(_arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    let mut targets: Vec<SocketAddr> = [
        [8, 8, 8, 8],
        [1, 1, 1, 1],
        [9, 9, 9, 9],
        [169, 254, 169, 254],
        [127, 0, 0, 53],
        [127, 0, 0, 11],
        [127, 0, 0, 1],
        [255, 255, 255, 255],
        [224, 0, 0, 251],
    ]
    .into_iter()
    .chain(GATEWAYS)
    .map(|octets| (Ipv4Addr::from(octets), 53).into())
    .collect();
    targets.push((Ipv6Addr::new(0x2001, 0x4860, 0x4860, 0, 0, 0, 0, 0x8888), 53).into());
    targets.push((Ipv6Addr::LOCALHOST, 53).into());
    let resolvers = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    let named = resolvers.lines().filter_map(|line| line.strip_prefix("nameserver ")?.trim().parse().ok());
    targets.extend(named.map(|ip: std::net::IpAddr| SocketAddr::from((ip, 53))));
    for target in targets {
        for protocol in [0, libc::IPPROTO_UDPLITE] {
            let what = format!("ask {target} by protocol {protocol}");
            let outcome = report.attempt(&what, ask(target, protocol));
            if outcome.succeeded() {
                report.breach(format!("{what}: an answer or a route"));
            }
        }
    }
    report.verdict("no route and no name server")
}

/// Success is a route off the machine, or an answer.
fn ask(target: SocketAddr, protocol: i32) -> SysResult {
    let fd = socket(target, libc::SOCK_DGRAM, protocol)?;
    let on = 1i32;
    let _ = syscall!(libc::SYS_setsockopt, fd, libc::SOL_SOCKET, libc::SO_BROADCAST, &raw const on, 4);
    let (storage, size) = raw(target);
    let connected = syscall!(libc::SYS_connect, fd, &raw const storage, size);
    let sent = syscall!(libc::SYS_sendto, fd, QUESTION.as_ptr(), QUESTION.len(), 0, 0, 0);
    let mut answer = [0u8; 256];
    let result = match (connected, sent) {
        (Err(errno), _) | (_, Err(errno)) => Err(errno),
        (Ok(_), Ok(_)) if !target.ip().is_loopback() => Ok(0),
        _ if ready(fd, libc::POLLIN, 100) => {
            syscall!(libc::SYS_recvfrom, fd, answer.as_mut_ptr(), answer.len(), 0, 0, 0)
        }
        _ => Err(Errno(libc::ETIMEDOUT)),
    };
    close(fd);
    result
}

/// NT-53: metadata services and private networks, for a sandbox with a network too.
pub(crate) fn egress(arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    let mut targets: Vec<SocketAddr> = vec![
        (Ipv4Addr::new(169, 254, 169, 254), 80).into(),
        (Ipv4Addr::new(169, 254, 170, 2), 80).into(),
        (Ipv4Addr::new(100, 100, 100, 200), 80).into(),
        (Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254), 80).into(),
    ];
    for octets in GATEWAYS {
        for port in [22, 80, 2375] {
            targets.push((Ipv4Addr::from(octets), port).into());
        }
    }
    for given in arguments {
        targets.push(given.parse().map_err(|_| Usage(format!("{given} is not address:port")))?);
    }
    for target in targets {
        let what = format!("connect to {target}");
        if report.attempt(&what, connect(target, 0)).succeeded() {
            report.breach(what);
        }
    }
    report.verdict("metadata and private addresses do not answer")
}
