//! The smallest program there is: exit(0) and nothing else, so that a floor can be told from the cost of a dynamic
//! linker.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;

use rustix::fs::MemfdFlags;

const BASE: u64 = 0x40_0000;
const HEADERS: u64 = 64 + 56;
#[cfg(target_arch = "x86_64")]
const MACHINE: u16 = 62;
#[cfg(target_arch = "aarch64")]
const MACHINE: u16 = 183;

/// mov eax, 60; xor edi, edi; syscall.
#[cfg(target_arch = "x86_64")]
const CODE: &[u8] = &[0xb8, 60, 0, 0, 0, 0x31, 0xff, 0x0f, 0x05];
/// mov x8, #93; mov x0, #0; svc #0.
#[cfg(target_arch = "aarch64")]
const CODE: &[u8] = &[0xa8, 0x0b, 0x80, 0xd2, 0x00, 0x00, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4];

/// The program in memory, to be executed through its descriptor.
pub(super) fn make() -> io::Result<OwnedFd> {
    let mut file = File::from(rustix::fs::memfd_create("true", MemfdFlags::CLOEXEC)?);
    file.write_all(&image())?;
    // Not while it is open for writing (execve(2), ETXTBSY); the new descriptor is read-only.
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    Ok(File::open(path)?.into())
}

/// An ELF file of one header, one segment and the code (elf(5)).
fn image() -> Vec<u8> {
    let size = HEADERS + CODE.len() as u64;
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    for half in [2_u16, MACHINE] {
        file.extend(half.to_le_bytes());
    }
    file.extend(1_u32.to_le_bytes());
    // Entry, program headers at 64, no sections.
    for word in [BASE + HEADERS, 64, 0] {
        file.extend(word.to_le_bytes());
    }
    file.extend(0_u32.to_le_bytes());
    for half in [64_u16, 56, 1, 64, 0, 0] {
        file.extend(half.to_le_bytes());
    }
    // PT_LOAD, readable and executable: offset, address twice, size twice, alignment.
    for half in [1_u32, 5] {
        file.extend(half.to_le_bytes());
    }
    for word in [0, BASE, BASE, size, size, 0x1000] {
        file.extend(word.to_le_bytes());
    }
    file.extend(CODE);
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_program_and_ends_well() {
        let program = make().unwrap();
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&program));
        assert!(std::process::Command::new(path).status().unwrap().success());
    }
}
