//! Takes the addresses. A unix socket that its owner left behind is replaced; one in use is not.

use std::fs::Permissions;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sandcrate_protocol::ErrorKind;
use sandcrate_server::{Listener, TlsIdentity};
use tokio::net::{TcpListener, UnixListener};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::config::{Config, Listen};
use crate::failure::Failure;

/// Between two attempts to take what a predecessor is just leaving.
pub(super) const RETRY: Duration = Duration::from_millis(50);

/// How long to wait for what somebody else holds.
#[derive(Debug, Clone)]
pub(super) struct Patience {
    pub(super) until: Instant,
    pub(super) stop: CancellationToken,
}

impl Patience {
    pub(super) fn for_a(time: Duration, stop: CancellationToken) -> Self {
        Self { until: Instant::now() + time, stop }
    }

    /// False when the time is over.
    pub(super) async fn wait(&self) -> bool {
        Instant::now() < self.until
            && self.stop.run_until_cancelled(tokio::time::sleep(RETRY)).await.is_some()
    }
}

/// Where a bound listener is reached, as it is printed.
#[derive(Debug)]
pub(super) struct Bound {
    pub(super) listener: Listener,
    pub(super) url: String,
    /// Removes the socket's file at the end.
    pub(super) file: Option<SocketFile>,
}

/// The TCP addresses among these, with TLS and without.
pub(super) async fn tcp(
    listen: &[Listen],
    identity: Option<&TlsIdentity>,
    patience: &Patience,
    flag: &str,
) -> anyhow::Result<Vec<Bound>> {
    let mut bound = Vec::new();
    for listen in listen {
        let (address, identity) = match listen {
            Listen::Tcp(address) => (address, None),
            Listen::Tls(address) => (address, identity),
            Listen::Unix(_) => continue,
        };
        let listener = loop {
            match TcpListener::bind(address).await {
                Ok(listener) => break listener,
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && patience.wait().await => {}
                Err(error) => return Err(tcp_failure(*address, &error, flag).into()),
            }
        };
        let address = listener.local_addr()?;
        let (listener, scheme) = match identity {
            Some(identity) => (Listener::Tls(listener, identity.clone()), "https"),
            None => (Listener::Tcp(listener), "http"),
        };
        bound.push(Bound { listener, url: format!("{scheme}://{address}"), file: None });
    }
    Ok(bound)
}

/// The certificate of the addresses that want one.
pub(super) fn tls_identity(config: &Config) -> anyhow::Result<Option<TlsIdentity>> {
    let tls = &config.settings.server.tls;
    let wanted = config.listen().iter().any(|listen| matches!(listen, Listen::Tls(_)));
    let (true, Some(cert), Some(key)) = (wanted, &tls.cert, &tls.key) else { return Ok(None) };
    let identity = TlsIdentity::read(cert, key).map_err(|error| {
        Failure::invalid(format!("server.tls: {error}"))
            .hint("both are files in PEM; `sandcrate tls init` makes them for a domain of your own")
    })?;
    Ok(Some(identity))
}

fn tcp_failure(address: SocketAddr, error: &io::Error, flag: &str) -> Failure {
    let port = address.port();
    let hint = match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!("`ss -ltnp 'sport = :{port}'` says who has it; end that, or take another port: {flag}")
        }
        io::ErrorKind::PermissionDenied => format!("ports below 1024 need root; take another: {flag}"),
        io::ErrorKind::AddrNotAvailable => {
            format!("this machine does not have that address; `ip address` lists them, {flag} names another")
        }
        _ => format!("take another address: {flag}"),
    };
    Failure::new(ErrorKind::Internal, format!("cannot listen on {address}: {error}")).hint(hint)
}

/// The unix sockets among these. `mode` is that of their files.
pub(super) fn unix(listen: &[Listen], mode: u32) -> anyhow::Result<Vec<Bound>> {
    let mut bound = Vec::new();
    for listen in listen {
        let Listen::Unix(path) = listen else { continue };
        let (listener, file) = unix_one(path, mode).map_err(|error| {
            let hint = match error.kind() {
                io::ErrorKind::AddrInUse => {
                    "another server listens there; name another path: --listen unix:/PATH"
                }
                io::ErrorKind::NotFound => "make its directory first",
                _ => "name another path: --listen unix:/PATH",
            };
            Failure::new(ErrorKind::Internal, format!("cannot listen on {listen}: {error}")).hint(hint)
        })?;
        bound.push(Bound { listener: Listener::Unix(listener), url: listen.to_string(), file: Some(file) });
    }
    Ok(bound)
}

fn unix_one(path: &Path, mode: u32) -> io::Result<(UnixListener, SocketFile)> {
    let listener = match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            // Only a socket that nobody answers on was left behind.
            match UnixStream::connect(path) {
                Err(refused) if refused.kind() == io::ErrorKind::ConnectionRefused => {}
                _ => return Err(error),
            }
            std::fs::remove_file(path)?;
            UnixListener::bind(path)?
        }
        bound => bound?,
    };
    let file = SocketFile::of(path)?;
    std::fs::set_permissions(path, Permissions::from_mode(mode))?;
    Ok((listener, file))
}

/// Goes with the server, unless somebody else has put something there meanwhile.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl SocketFile {
    fn of(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), identity: identity(path)? })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|now| now == self.identity) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = std::fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}
