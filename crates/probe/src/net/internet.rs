//! Reaching the host and the world by internet protocols.
//!
//! Every packet that leaves a socket here is for loopback: `raw` makes no other address. Whether there is a way
//! off the machine is read from the kernel's tables and never tried; an interface or a route is the verdict.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::report::{AttackResult, Report, Usage};
use crate::sys::{Errno, SysResult, close, syscall, zeroed};

const MPTCP: i32 = 262;
const MSG_FASTOPEN: i32 = 0x2000_0000;
/// The address in the kernel's layout, and its length; EHOSTUNREACH for any that is not of loopback.
fn raw(address: SocketAddr) -> Result<(libc::sockaddr_storage, usize), Errno> {
    if !stays_here(address.ip()) {
        return Err(Errno(libc::EHOSTUNREACH));
    }
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
    Ok((storage, size))
}

/// Loopback and the unspecified address, which connects to loopback; IPv4 ones also as mapped.
fn stays_here(ip: IpAddr) -> bool {
    let v4 = |ip: Ipv4Addr| ip.is_loopback() || ip.is_unspecified();
    match ip {
        IpAddr::V4(ip) => v4(ip),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unspecified() || ip.to_ipv4_mapped().is_some_and(v4),
    }
}

fn socket(address: SocketAddr, kind: i32, protocol: i32) -> SysResult {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    syscall!(libc::SYS_socket, family, kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, protocol)
}

/// Connects within 400 ms; a connection under way is judged by its outcome.
fn connect(address: SocketAddr, protocol: i32) -> SysResult {
    let fd = socket(address, libc::SOCK_STREAM, protocol)?;
    let (storage, size) = raw(address)?;
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
    let (storage, size) = raw(address)?;
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

const LOOPBACK4: [[u8; 4]; 6] =
    [[127, 0, 0, 1], [127, 0, 0, 2], [127, 0, 0, 11], [127, 0, 0, 53], [127, 255, 255, 254], [0, 0, 0, 0]];

/// Every form of loopback that a listener on IPv4 may answer to.
fn loopback4(port: u16) -> Vec<SocketAddr> {
    let plain = LOOPBACK4.map(|octets| IpAddr::from(Ipv4Addr::from(octets)));
    let mapped = Ipv4Addr::LOCALHOST.to_ipv6_mapped();
    plain.into_iter().chain([mapped.into()]).map(|ip| (ip, port).into()).collect()
}

fn loopback6(port: u16) -> Vec<SocketAddr> {
    [Ipv6Addr::LOCALHOST, Ipv6Addr::UNSPECIFIED].map(|ip| (ip, port).into()).to_vec()
}

/// NT-02: the host's listener on IPv4 loopback, by every address of loopback.
pub(crate) fn tcp4(arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    for address in loopback4(port(arguments)?) {
        must_not_connect(&mut report, address);
    }
    report.verdict("the host's IPv4 listener does not answer")
}

/// NT-03: the host's listener on IPv6 loopback.
pub(crate) fn tcp6(arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    for address in loopback6(port(arguments)?) {
        must_not_connect(&mut report, address);
    }
    report.verdict("the host's IPv6 listener does not answer")
}

/// A DNS question for the root's name servers.
const QUESTION: [u8; 17] = [0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 1];

/// NT-04: datagrams to name servers on loopback and to the host's socket; no route anywhere else.
///
/// A resolver elsewhere needs a route; whether there is one is read, not tried.
pub(crate) fn udp(arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    let mut ports = vec![53];
    if !arguments.is_empty() {
        ports.push(port(arguments)?);
    }
    for target in ports.into_iter().flat_map(|port| [loopback4(port), loopback6(port)].concat()) {
        for protocol in [0, libc::IPPROTO_UDPLITE] {
            let what = format!("ask {target} by protocol {protocol}");
            if report.attempt(&what, ask(target, protocol)).succeeded() {
                report.breach(format!("{what}: an answer"));
            }
        }
    }
    ways_out(&mut report)?;
    report.verdict("no route and no name server")
}

/// Success is an answer.
fn ask(target: SocketAddr, protocol: i32) -> SysResult {
    let fd = socket(target, libc::SOCK_DGRAM, protocol)?;
    let exchange = || {
        let (storage, size) = raw(target)?;
        syscall!(libc::SYS_connect, fd, &raw const storage, size)?;
        syscall!(libc::SYS_sendto, fd, QUESTION.as_ptr(), QUESTION.len(), 0, 0, 0)?;
        if !ready(fd, libc::POLLIN, 100) {
            return Err(Errno(libc::ETIMEDOUT));
        }
        let mut answer = [0u8; 256];
        syscall!(libc::SYS_recvfrom, fd, answer.as_mut_ptr(), answer.len(), 0, 0, 0)
    };
    let result = exchange();
    close(fd);
    result
}

/// NT-53: services of a host that its containers usually find, on loopback; no way to anything else.
pub(crate) fn egress(arguments: &[String]) -> AttackResult {
    let mut report = Report::default();
    let mut targets: Vec<SocketAddr> = [22, 80, 2375, 8080]
        .into_iter()
        .flat_map(|port| [loopback4(port), loopback6(port)].concat())
        .collect();
    for given in arguments {
        let target: SocketAddr = given.parse().map_err(|_| Usage(format!("{given} is not address:port")))?;
        if !stays_here(target.ip()) {
            return Err(Usage(format!("{given} is not of loopback, and nothing else is ever tried")));
        }
        targets.push(target);
    }
    for target in targets {
        let what = format!("connect to {target}");
        if report.attempt(&what, connect(target, 0)).succeeded() {
            report.breach(what);
        }
    }
    ways_out(&mut report)?;
    report.verdict("no service of the host answers, and there is no way to another machine")
}

/// Any interface but lo and any route that is not of lo is a breach; both are only looked up.
fn ways_out(report: &mut Report) -> Result<(), Usage> {
    let read = |path: &str| {
        std::fs::read_to_string(path)
            .map_err(|error| Usage(format!("no proof that nothing leads out: {path}: {error}")))
    };
    let devices = read("/proc/net/dev")?;
    let devices = devices.lines().skip(2).filter_map(|line| Some(line.split_once(':')?.0.trim()));
    let routes = read("/proc/net/route")?;
    let routes = routes.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    // Absent where IPv6 is.
    let routes6 = std::fs::read_to_string("/proc/net/ipv6_route").unwrap_or_default();
    let routes6 = routes6.lines().filter_map(|line| line.split_whitespace().last());
    for (what, names) in [
        ("interface", devices.collect::<Vec<_>>()),
        ("IPv4 route by", routes.collect()),
        ("IPv6 route by", routes6.collect()),
    ] {
        println!("attempt: {what} -> {names:?}");
        report.held();
        for name in names.into_iter().filter(|name| *name != "lo") {
            report.breach(format!("{what} {name}"));
        }
    }
    Ok(())
}
