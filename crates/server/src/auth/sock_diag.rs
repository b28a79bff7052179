//! Whose socket is at the other end of a loopback connection: one question to the kernel (sock_diag(7)).
//!
//! The table that it prints as text has a row for every connection of the machine, so reading it for each new one
//! costs more the busier a server is. Messages are laid out by hand: one request, one answer, all of fixed size.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};

use super::proc_net::SocketOwner;

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const IPPROTO_TCP: u8 = 6;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const HEADER: usize = 16;
/// Where the two ends are in the request's and the answer's payload: ports, then addresses.
const REQUEST_ENDS: usize = HEADER + 8;
const ANSWER_ENDS: usize = HEADER + 4;
const ENDS: usize = 36;
const ANSWER_UID: usize = HEADER + 64;
const ANSWER_INODE: usize = HEADER + 68;
const ANSWER: usize = HEADER + 72;

/// The owner of the socket that is bound to `local` and connected to `remote`. An error means that the kernel
/// cannot be asked this way.
pub(super) fn socket_owner(local: SocketAddr, remote: SocketAddr) -> io::Result<Option<SocketOwner>> {
    let kind = SocketType::DGRAM;
    let kernel = socket_with(AddressFamily::NETLINK, kind, SocketFlags::CLOEXEC, Some(netlink::SOCK_DIAG))?;
    set_socket_timeout(&kernel, Timeout::Recv, Some(Duration::from_secs(1)))?;
    let request = request(local, remote);
    send(&kernel, &request, SendFlags::empty())?;
    let mut answer = [0; 256];
    let (length, _) = recv(&kernel, &mut answer, RecvFlags::empty())?;
    read(&answer[..length], &request[REQUEST_ENDS..REQUEST_ENDS + ENDS])
}

fn request(local: SocketAddr, remote: SocketAddr) -> [u8; HEADER + 56] {
    let mut message = [0; HEADER + 56];
    let length = message.len() as u32;
    message[..4].copy_from_slice(&length.to_ne_bytes());
    message[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    message[6..8].copy_from_slice(&NLM_F_REQUEST.to_ne_bytes());
    let payload = &mut message[HEADER..];
    let (here, there) = (local.ip().to_canonical(), remote.ip().to_canonical());
    let family = if here.is_ipv4() { AF_INET } else { AF_INET6 };
    payload[..2].copy_from_slice(&[family, IPPROTO_TCP]);
    // Every state: an answer without a process behind it says so itself.
    payload[4..8].copy_from_slice(&u32::MAX.to_ne_bytes());
    payload[8..10].copy_from_slice(&local.port().to_be_bytes());
    payload[10..12].copy_from_slice(&remote.port().to_be_bytes());
    write_address(&mut payload[12..28], here);
    write_address(&mut payload[28..44], there);
    // No interface, and no cookie of an earlier answer.
    payload[48..56].fill(0xff);
    message
}

fn write_address(place: &mut [u8], address: IpAddr) {
    match address {
        IpAddr::V4(v4) => place[..4].copy_from_slice(&v4.octets()),
        IpAddr::V6(v6) => place.copy_from_slice(&v6.octets()),
    }
}

/// Reads an answer about the socket with these ends.
fn read(answer: &[u8], ends: &[u8]) -> io::Result<Option<SocketOwner>> {
    let word = |at: usize| {
        let bytes = answer.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        bytes.map(u32::from_ne_bytes).ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))
    };
    let kind = word(4)? as u16;
    if kind == NLMSG_ERROR {
        let errno = word(HEADER)?.cast_signed().wrapping_neg();
        let error = io::Error::from_raw_os_error(errno);
        return if error.kind() == io::ErrorKind::NotFound { Ok(None) } else { Err(error) };
    }
    if kind != SOCK_DIAG_BY_FAMILY || answer.len() < ANSWER {
        return Err(io::ErrorKind::InvalidData.into());
    }
    // Where there is no such connection the kernel shows who listens at its port.
    if &answer[ANSWER_ENDS..ANSWER_ENDS + ENDS] != ends {
        return Ok(None);
    }
    let (uid, inode) = (word(ANSWER_UID)?, u64::from(word(ANSWER_INODE)?));
    // Without an inode no process has it any more, and the uid means nothing.
    Ok((inode != 0).then_some(SocketOwner { uid, inode }))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_live_connection_has_its_owner_and_a_closed_one_none() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (server, remote) = listener.accept().unwrap();
            let local = server.local_addr().unwrap();
            let owner = socket_owner(remote, local).unwrap().unwrap();
            assert_eq!(owner.uid, rustix::process::getuid().as_raw());
            let text = super::super::proc_net::socket_owner_by_table(remote, local).unwrap().unwrap();
            assert_eq!(owner, text, "both ways to ask agree");
            drop(client);
            assert_eq!(socket_owner(remote, local).unwrap(), None, "closed");
        }
    }

    /// A connection that is gone must not be taken for whoever listens at its port now.
    #[test]
    fn a_listener_at_the_port_is_not_the_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let elsewhere = SocketAddr::from(([127, 0, 0, 1], 9));
        assert_eq!(socket_owner(listener.local_addr().unwrap(), elsewhere).unwrap(), None);
    }

    #[test]
    fn answers_that_are_cut_or_of_another_kind_are_errors() {
        let ends = [0; ENDS];
        for bad in [&[][..], &[0; 8], &[0; ANSWER - 1]] {
            assert!(read(bad, &ends).is_err(), "{}", bad.len());
        }
        let mut refused = [0; HEADER + 20];
        refused[4..6].copy_from_slice(&NLMSG_ERROR.to_ne_bytes());
        refused[HEADER..HEADER + 4].copy_from_slice(&(-2_i32).to_ne_bytes());
        assert_eq!(read(&refused, &ends).unwrap(), None, "ENOENT: there is no such socket");
        refused[HEADER..HEADER + 4].copy_from_slice(&(-1_i32).to_ne_bytes());
        assert!(read(&refused, &ends).is_err());
    }
}
