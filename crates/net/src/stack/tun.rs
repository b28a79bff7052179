//! Packets to and from a tun device that was opened with a virtio header (10 bytes in front of each packet).
//!
//! The header saves the checksums of bulk data: the box's kernel hands us segments with the sum not yet made
//! (nobody needs it), and takes ours as good when told that the sum is still to be made.

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use smoltcp::phy::{Checksum, ChecksumCapabilities, Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant;

use super::packet;

/// The largest that Linux takes for a tun device; segments of bulk data are this long.
pub(super) const MTU: usize = 65_520;
const HEADER: usize = 10;
pub(super) const BUFFER_BYTES: usize = HEADER + 65_536;
const NEEDS_CHECKSUM: u8 = 1;

/// One packet of the box; `None` when there is none.
pub(super) fn recv<'a>(tun: BorrowedFd<'_>, buffer: &'a mut [u8]) -> io::Result<Option<&'a [u8]>> {
    match rustix::io::read(tun, &mut *buffer) {
        Ok(length) if length >= HEADER => Ok(Some(&buffer[HEADER..length])),
        Ok(_) => Ok(Some(&[])),
        Err(rustix::io::Errno::AGAIN) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Sends a packet that has its checksums. A device that is gone or full loses it, as a wire would.
pub(super) fn send(tun: BorrowedFd<'_>, packet: &[u8]) {
    let header = io::IoSlice::new(&[0; HEADER]);
    let _ = rustix::io::writev(tun, &[header, io::IoSlice::new(packet)]);
}

/// The device as one connection sees it: at most one packet to take, and a way out.
pub(super) struct Port<'a> {
    pub(super) tun: BorrowedFd<'a>,
    pub(super) incoming: Option<&'a [u8]>,
    pub(super) scratch: &'a mut [u8],
}

pub(super) struct Incoming<'a>(&'a [u8]);

pub(super) struct Outgoing<'a> {
    tun: BorrowedFd<'a>,
    scratch: &'a mut [u8],
}

impl Device for Port<'_> {
    type RxToken<'t>
        = Incoming<'t>
    where
        Self: 't;
    type TxToken<'t>
        = Outgoing<'t>
    where
        Self: 't;

    fn receive(&mut self, _: Instant) -> Option<(Incoming<'_>, Outgoing<'_>)> {
        let packet = self.incoming.take()?;
        Some((Incoming(packet), Outgoing { tun: self.tun, scratch: self.scratch }))
    }

    fn transmit(&mut self, _: Instant) -> Option<Outgoing<'_>> {
        Some(Outgoing { tun: self.tun, scratch: self.scratch })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut checksum = ChecksumCapabilities::default();
        checksum.tcp = Checksum::None;
        checksum.ipv4 = Checksum::Tx;
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = MTU;
        capabilities.checksum = checksum;
        capabilities
    }
}

impl RxToken for Incoming<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(self.0)
    }
}

impl TxToken for Outgoing<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, f: F) -> R {
        let end = (HEADER + length).min(self.scratch.len());
        let result = f(&mut self.scratch[HEADER..end]);
        finish_tcp(&mut self.scratch[..end]);
        let _ = rustix::io::write(self.tun, &self.scratch[..end]);
        result
    }
}

/// Fills in the header and the part of the checksum that the kernel wants to find.
fn finish_tcp(buffer: &mut [u8]) {
    let (header, ip) = buffer.split_at_mut(HEADER);
    header.fill(0);
    let (start, from, to) = match ip.first().map(|byte| byte >> 4) {
        Some(4) if ip.len() >= 40 => {
            let at = |i: usize| IpAddr::from([ip[i], ip[i + 1], ip[i + 2], ip[i + 3]]);
            (20, at(12), at(16))
        }
        Some(6) if ip.len() >= 60 => {
            let at = |i: usize| IpAddr::from(<[u8; 16]>::try_from(&ip[i..i + 16]).unwrap_or_default());
            (40, at(8), at(24))
        }
        _ => return,
    };
    let sum = packet::partial(packet::pseudo(from, to, 6, ip.len() - start));
    ip[start + 16..start + 18].copy_from_slice(&sum.to_be_bytes());
    header[0] = NEEDS_CHECKSUM;
    header[6..8].copy_from_slice(&(start as u16).to_ne_bytes());
    header[8..10].copy_from_slice(&16_u16.to_ne_bytes());
}
