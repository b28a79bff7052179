//! The other end of a connection, and what the kernel says about it.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use tokio::sync::OnceCell;

use super::proc_net::{self, SocketOwner};

/// Where a connection comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    Tcp { local: SocketAddr, remote: SocketAddr },
    Unix { uid: u32, pid: Option<u32> },
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { remote, .. } => remote.fmt(f),
            Self::Unix { uid, .. } => write!(f, "unix:uid={uid}"),
        }
    }
}

/// A connection as the middleware sees it; an extension of each of its requests.
#[derive(Debug)]
pub struct Connection {
    pub peer: Peer,
    /// Looked up once: the owner of a socket is that of its creation.
    owner: OnceCell<Option<SocketOwner>>,
}

/// What the rules need to know of a peer that shows no token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Over a unix socket.
    Unix {
        uid: u32,
    },
    /// From this machine; `None` when the kernel does not tell whose socket it is.
    Loopback {
        address: IpAddr,
        uid: Option<u32>,
    },
    Remote {
        address: IpAddr,
    },
}

impl Connection {
    pub fn new(peer: Peer) -> Self {
        Self { peer, owner: OnceCell::new() }
    }

    pub(crate) async fn standing(&self) -> Standing {
        match self.peer {
            Peer::Unix { uid, .. } => Standing::Unix { uid },
            Peer::Tcp { remote, .. } => {
                let address = remote.ip().to_canonical();
                if !address.is_loopback() {
                    return Standing::Remote { address };
                }
                Standing::Loopback { address, uid: self.owner().await.map(|owner| owner.uid) }
            }
        }
    }

    pub(crate) async fn working_directory(&self) -> Option<PathBuf> {
        let find: Box<dyn FnOnce() -> Option<PathBuf> + Send> = match self.peer {
            Peer::Unix { pid, .. } => {
                let pid = pid?;
                Box::new(move || proc_net::working_directory(pid))
            }
            Peer::Tcp { .. } => {
                let owner = self.owner().await?;
                Box::new(move || proc_net::working_directory_of_socket(owner))
            }
        };
        tokio::task::spawn_blocking(find).await.ok().flatten()
    }

    async fn owner(&self) -> Option<SocketOwner> {
        let Peer::Tcp { local, remote } = self.peer else { return None };
        if !remote.ip().to_canonical().is_loopback() {
            return None;
        }
        let look = || async move {
            // The peer's row has our two addresses the other way round.
            match tokio::task::spawn_blocking(move || proc_net::socket_owner(remote, local)).await {
                Ok(Ok(owner)) => owner,
                Ok(Err(error)) => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "socket table not readable");
                    None
                }
                Err(_) => None,
            }
        };
        *self.owner.get_or_init(look).await
    }
}
