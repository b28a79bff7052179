//! What an attack finds outside its box: a canary, listeners of every kind, and the attack program itself.
//!
//! Everything is on loopback with ports of the kernel's choice. Each listener is proven to answer the host before
//! an attack is judged by its silence.

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use sandcrate_backend::conformance::Check;

/// Names the attack program where the machine has no cargo.
pub(crate) const PROBE_VARIABLE: &str = "SANDCRATE_PROBE";
const SECRET: &[u8] = b"of the host and of nobody else\n";

pub(crate) struct Host {
    pub(crate) scratch: PathBuf,
    pub(crate) canary: PathBuf,
    pub(crate) socket_file: PathBuf,
    pub(crate) abstract_name: String,
    tcp4: TcpListener,
    /// None where the machine has no IPv6.
    tcp6: Option<TcpListener>,
    udp: UdpSocket,
    unix: [UnixListener; 2],
}

impl Host {
    pub(crate) fn new(scratch: &Path) -> io::Result<Self> {
        let canary = scratch.join("canary");
        fs::write(&canary, SECRET)?;
        // Only the box stands between the canary and everybody.
        fs::set_permissions(&canary, PermissionsExt::from_mode(0o666))?;
        fs::set_permissions(scratch, PermissionsExt::from_mode(0o755))?;
        let abstract_name = format!("sandcrate-it-{}", std::process::id());
        let socket_file = scratch.join("socket");
        let unix = [
            UnixListener::bind(&socket_file)?,
            UnixListener::bind_addr(&SocketAddr::from_abstract_name(&abstract_name)?)?,
        ];
        fs::set_permissions(&socket_file, PermissionsExt::from_mode(0o777))?;
        let host = Self {
            scratch: scratch.to_owned(),
            canary,
            socket_file,
            abstract_name,
            tcp4: TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?,
            tcp6: TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).ok(),
            udp: UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?,
            unix,
        };
        host.answers_itself()?;
        for listener in [Some(&host.tcp4), host.tcp6.as_ref()].into_iter().flatten() {
            listener.set_nonblocking(true)?;
        }
        host.udp.set_nonblocking(true)?;
        host.unix.iter().try_for_each(|listener| listener.set_nonblocking(true))?;
        Ok(host)
    }

    fn answers_itself(&self) -> io::Result<()> {
        for listener in [Some(&self.tcp4), self.tcp6.as_ref()].into_iter().flatten() {
            TcpStream::connect(listener.local_addr()?)?.write_all(b"x")?;
            listener.accept()?;
        }
        for listener in &self.unix {
            UnixStream::connect_addr(&listener.local_addr()?)?;
            listener.accept()?;
        }
        UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?.send_to(b"x", self.udp.local_addr()?)?;
        self.udp.recv_from(&mut [0; 8]).map(drop)
    }

    /// An argument of the table with its placeholder filled in.
    pub(crate) fn fill(&self, argument: &str) -> io::Result<String> {
        Ok(match argument {
            "{canary}" => self.canary.display().to_string(),
            "{port4}" => self.tcp4.local_addr()?.port().to_string(),
            // Without IPv6 any port does: no listener is there to answer.
            "{port6}" => self.tcp6.as_ref().unwrap_or(&self.tcp4).local_addr()?.port().to_string(),
            "{udp}" => self.udp.local_addr()?.port().to_string(),
            "{abstract}" => self.abstract_name.clone(),
            "{socket}" => self.socket_file.display().to_string(),
            "{address}" => self.tcp4.local_addr()?.to_string(),
            plain => plain.to_owned(),
        })
    }

    /// Nobody came, and the canary is as it was.
    pub(crate) fn is_untouched(&self) -> Check {
        let tcp =
            [Some(&self.tcp4), self.tcp6.as_ref()].into_iter().flatten().map(|one| one.accept().map(drop));
        let unix = self.unix.iter().map(|one| one.accept().map(drop));
        let udp = [self.udp.recv_from(&mut [0; 8]).map(drop)];
        for visit in tcp.chain(unix).chain(udp) {
            match visit {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(format!("a listener of the host failed: {error}")),
                Ok(()) => return Err("a listener of the host had a visitor".to_owned()),
            }
        }
        match fs::read(&self.canary) {
            Ok(content) if content == SECRET => Ok(()),
            other => Err(format!("the canary changed: {other:?}")),
        }
    }

    /// A new directory of the host, readable by everybody.
    pub(crate) fn directory(&self, prefix: &str) -> Result<PathBuf, String> {
        let made = tempfile::Builder::new().prefix(prefix).tempdir_in(&self.scratch);
        let path = made.map(tempfile::TempDir::keep).map_err(|error| error.to_string())?;
        fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).map_err(|error| error.to_string())?;
        Ok(path)
    }
}

/// Puts the attack program into a directory of its own and gives that directory. Blocks: it may build it.
pub(crate) fn place_probe(scratch: &Path) -> Result<PathBuf, String> {
    let built = match std::env::var_os(PROBE_VARIABLE).filter(|value| !value.is_empty()) {
        Some(named) => PathBuf::from(named),
        None => build_probe()?,
    };
    let directory = scratch.join("probe");
    let place = || {
        fs::create_dir(&directory)?;
        fs::copy(&built, directory.join("probe"))?;
        fs::set_permissions(directory.join("probe"), PermissionsExt::from_mode(0o755))
    };
    place().map_err(|error| format!("placing {}: {error}", built.display()))?;
    Ok(directory)
}

/// Static, so that it runs in a box without libraries; in a target directory of its own, because of its flags.
fn build_probe() -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let target = own.ancestors().nth(3).ok_or("the test program is not in a target directory")?.join("probe");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["build", "--quiet", "--package", "sandcrate-probe", "--target-dir"])
        .arg(&target)
        .env("RUSTFLAGS", "-C target-feature=+crt-static")
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .map_err(|error| format!("cargo cannot be run, and {PROBE_VARIABLE} names no program: {error}"))?;
    match built.status.success() {
        true => Ok(target.join("debug/probe")),
        false => Err(format!("building the probe failed: {}", String::from_utf8_lossy(&built.stderr))),
    }
}
