//! Whose socket is at the other end of a loopback connection: asked of the kernel, or read in its tables.
//!
//! Only a row with an inode tells an owner: a socket without one (TIME_WAIT, or closed by its process) is
//! listed with uid 0, and taking that for root would let everybody in who hangs up fast enough.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::sock_diag;

/// The process side of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SocketOwner {
    pub(super) uid: u32,
    pub(super) inode: u64,
}

/// The owner of the socket that is bound to `local` and connected to `remote`.
pub(super) fn socket_owner(local: SocketAddr, remote: SocketAddr) -> io::Result<Option<SocketOwner>> {
    // A kernel without the module, or a filter around us, leaves the text.
    sock_diag::socket_owner(local, remote).or_else(|_| socket_owner_by_table(local, remote))
}

pub(super) fn socket_owner_by_table(
    local: SocketAddr,
    remote: SocketAddr,
) -> io::Result<Option<SocketOwner>> {
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        let text = match std::fs::read_to_string(table) {
            Ok(text) => text,
            // Without IPv6 there is no second table.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        if let Some(owner) = find(&text, local, remote) {
            return Ok(Some(owner));
        }
    }
    Ok(None)
}

fn find(table: &str, local: SocketAddr, remote: SocketAddr) -> Option<SocketOwner> {
    let wanted = (canonical(local), canonical(remote));
    table.lines().skip(1).find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let (here, there) = (address(fields.nth(1)?)?, address(fields.next()?)?);
        if (here, there) != wanted {
            return None;
        }
        // After the two addresses: state, queues, timer, retransmits, uid, timeout, inode.
        let uid = fields.nth(4)?.parse().ok()?;
        let inode = fields.nth(1)?.parse().ok()?;
        (inode != 0).then_some(SocketOwner { uid, inode })
    })
}

fn canonical(address: SocketAddr) -> (IpAddr, u16) {
    (address.ip().to_canonical(), address.port())
}

/// `0100007F:1522`: the address in words of the machine's byte order, the port in the network's.
fn address(field: &str) -> Option<(IpAddr, u16)> {
    let (address, port) = field.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |index: usize| {
        let digits = address.get(index * 8..index * 8 + 8)?;
        u32::from_str_radix(digits, 16).ok().map(u32::to_ne_bytes)
    };
    let address = match address.len() {
        8 => IpAddr::from(word(0)?),
        32 => {
            let mut bytes = [0; 16];
            for (index, chunk) in bytes.chunks_exact_mut(4).enumerate() {
                chunk.copy_from_slice(&word(index)?);
            }
            IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical()
        }
        _ => return None,
    };
    Some((address, port))
}

/// The working directory of a process that holds this socket. Only processes of `uid` are looked into.
pub(super) fn working_directory_of_socket(owner: SocketOwner) -> Option<PathBuf> {
    let wanted = format!("socket:[{}]", owner.inode);
    let holds = |process: &Path| {
        let Ok(open) = std::fs::read_dir(process.join("fd")) else { return false };
        open.flatten()
            .any(|fd| std::fs::read_link(fd.path()).is_ok_and(|link| link.as_os_str() == wanted.as_str()))
    };
    let process = std::fs::read_dir("/proc").ok()?.flatten().find(|entry| {
        let name = entry.file_name();
        name.as_encoded_bytes().iter().all(u8::is_ascii_digit)
            && entry.metadata().is_ok_and(|about| about.uid() == owner.uid)
            && holds(&entry.path())
    })?;
    std::fs::read_link(process.path().join("cwd")).ok()
}

/// The working directory of a process.
pub(super) fn working_directory(pid: u32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/cwd")).ok()
}

/// The real uid of a process.
pub(super) fn uid_of_process(pid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Uid:")?.split_ascii_whitespace().next()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1522 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 100 1 0 100 0 0 10 0
   1: 0100007F:9C40 0100007F:1522 01 00000000:00000000 00:00000000 00000000  1000        0 200 1 0 20 4 30 10 -1
   2: 0100007F:1522 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0        0 300 1 0 20 4 30 10 -1
   3: 0100007F:9C41 0100007F:1522 06 00000000:00000000 03:00000000 00000000     0        0 0 3 0
   4: 0100007F:9C42 0100007F:1522 04 00000000:00000000 01:00000000 00000000     0        0 0 3 0
";

    fn at(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    #[test]
    fn the_row_of_the_client_tells_its_uid() {
        assert_eq!(find(TABLE, at(0x9c40), at(0x1522)), Some(SocketOwner { uid: 1000, inode: 200 }));
        assert_eq!(find(TABLE, at(0x9c43), at(0x1522)), None);
        let mapped: SocketAddr = "[::ffff:127.0.0.1]:40000".parse().unwrap();
        assert_eq!(find(TABLE, mapped, at(0x1522)).unwrap().uid, 1000);
    }

    /// A closed socket is listed with uid 0: hanging up must not make anybody root.
    #[test]
    fn a_socket_without_a_process_has_no_owner() {
        assert_eq!(find(TABLE, at(0x9c41), at(0x1522)), None);
        assert_eq!(find(TABLE, at(0x9c42), at(0x1522)), None);
    }

    #[test]
    fn addresses_are_read_as_the_kernel_prints_them() {
        assert_eq!(address("0100007F:1522"), Some(([127, 0, 0, 1].into(), 0x1522)));
        let loopback = address("00000000000000000000000001000000:0050").unwrap();
        assert_eq!(loopback, (Ipv6Addr::LOCALHOST.into(), 80));
        let mapped = address("0000000000000000FFFF00000100007F:0050").unwrap();
        assert_eq!(mapped.0, IpAddr::from([127, 0, 0, 1]));
        for bad in ["", ":", "0100007F", "0100007:50", "zz00007F:0050", "0100007F:fffff"] {
            assert_eq!(address(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_live_connection_leads_to_this_process() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = std::net::TcpListener::bind(address) else { continue };
            let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (server, remote) = listener.accept().unwrap();
            let owner = socket_owner(remote, server.local_addr().unwrap()).unwrap().unwrap();
            assert_eq!(owner.uid, rustix::process::getuid().as_raw());
            assert_eq!(working_directory_of_socket(owner), std::env::current_dir().ok());
            drop(client);
            assert_eq!(socket_owner(remote, server.local_addr().unwrap()).unwrap(), None, "closed");
        }
    }

    #[test]
    fn a_process_tells_its_uid() {
        assert_eq!(uid_of_process(std::process::id()), Some(rustix::process::getuid().as_raw()));
        assert_eq!(uid_of_process(u32::MAX), None);
    }
}
