//! The network of a `run`: its person is the operator, so that what they name is granted; and its ports.

use std::net::SocketAddr;
use std::sync::Arc;

use sandcrate_backend::{Backend, Isolation, Network, SessionId};
use sandcrate_protocol::network::{
    AddressClass, Grants, Limits, NetworkRequest, Policy, PortRequest, Rule, classify,
};
use sandcrate_runtime::{PortView, carry_port};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::failure::Failure;

/// What the box gets. A port needs a network to come in by, if nothing else.
pub(super) fn network(request: Option<NetworkRequest>, publishes: bool) -> anyhow::Result<Network> {
    let policy = match request.unwrap_or(NetworkRequest::Off) {
        NetworkRequest::Off if publishes => Policy::off(),
        NetworkRequest::Off => return Ok(Network::Off),
        NetworkRequest::Host if publishes => {
            return Err(Failure::invalid(
                "--publish beside --network host: the box's ports are the host's own",
            )
            .hint("leave out -p, or use --network on")
            .into());
        }
        NetworkRequest::Host => return Ok(Network::Host),
        NetworkRequest::On { deny } => Policy::public().without(&deny)?,
        NetworkRequest::Policy(policy) => policy,
    };
    // Ranges that somebody writes out are meant; a name is not trusted with where it points.
    let private =
        |rule: &&Rule| rule.range().is_some_and(|range| classify(range.base()) != AddressClass::Public);
    let grants = Grants { allow: policy.allow().iter().filter(private).cloned().collect(), deny: Vec::new() };
    Ok(Network::Isolated(Box::new(Isolation { policy, grants, limits: Limits::default() })))
}

/// Ports that are listened on before there is a box.
#[derive(Debug, Default)]
pub(super) struct Published {
    listeners: Vec<(TcpListener, u16)>,
    pub(super) views: Vec<PortView>,
}

impl Published {
    pub(super) async fn bind(ports: &[PortRequest]) -> anyhow::Result<Self> {
        let mut published = Self::default();
        for port in ports {
            let unusable = |error: std::io::Error| {
                Failure::invalid(format!("--publish {port}: the host's port cannot be had: {error}"))
                    .hint("host port 0 is any that is free: -p 0:BOX")
            };
            let asked = SocketAddr::new(port.address, port.host_port);
            let listener = TcpListener::bind(asked).await.map_err(unusable)?;
            let bound = listener.local_addr().map_err(unusable)?;
            published.views.push(PortView {
                address: bound.ip(),
                host_port: bound.port(),
                box_port: port.box_port,
            });
            published.listeners.push((listener, port.box_port));
        }
        Ok(published)
    }

    /// Lets them into the box, for as long as the set is kept.
    pub(super) fn carry(&mut self, backend: &Arc<dyn Backend>, session: &SessionId) -> JoinSet<()> {
        let mut carrying = JoinSet::new();
        for (listener, box_port) in self.listeners.drain(..) {
            let (backend, session) = (Arc::clone(backend), session.clone());
            carrying
                .spawn(carry_port(listener, box_port, move || Some((Arc::clone(&backend), session.clone()))));
        }
        carrying
    }
}

/// What a person is told of a port.
pub(super) fn notice(port: &PortView) -> String {
    let outside = SocketAddr::new(port.address, port.host_port);
    format!("port {} of the box is reached at {outside}", port.box_port)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn isolated(text: &str, publishes: bool) -> Isolation {
        match network(Some(text.parse().unwrap()), publishes).unwrap() {
            Network::Isolated(isolation) => *isolation,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn on_is_the_internet_and_ranges_that_are_named_are_granted() {
        assert_eq!(isolated("on, deny a.example", false).policy.to_string(), "public, deny a.example");
        assert!(isolated("on", false).grants.allow.is_empty());
        let list = isolated("allow 10.0.0.1:5432, allow 192.0.9.1, allow db.example", false);
        assert_eq!(list.grants.allow, ["10.0.0.1:5432".parse().unwrap()]);
        assert!(isolated("off", true).policy.is_off());
        assert_eq!(network(None, false).unwrap(), Network::Off);
        assert!(network(Some(NetworkRequest::Host), true).unwrap_err().to_string().contains("--publish"));
    }

    #[tokio::test]
    async fn a_port_that_is_taken_names_the_flag() {
        let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = format!("{}:80", taken.local_addr().unwrap().port()).parse().unwrap();
        let error = Published::bind(&[port]).await.unwrap_err();
        assert!(error.to_string().contains("--publish 127.0.0.1:"), "{error}");
        let free = Published::bind(&["0:80".parse().unwrap()]).await.unwrap();
        assert!(notice(&free.views[0]).starts_with("port 80 of the box is reached at 127.0.0.1:"));
    }
}
