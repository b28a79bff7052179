//! The network of sessions: what a request means by the operator's configuration, changes on a live box, and
//! what was used and refused.
//!
//! Nothing degrades: a network that cannot be had as it was asked for is an error, and the box is not made.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::{StreamExt, stream};
use sandcrate_backend::{Backend, Isolation, Network, NetworkReport};
use sandcrate_protocol::network::{Counters, DenialKind, NetworkRequest, Policy};

use crate::RuntimeError;
use crate::config::{HostNetwork, OnNetwork};
use crate::runtime::{Inner, Runtime};
use crate::session::{LiveBox, Session, SessionView, locked};

type Result<T> = std::result::Result<T, RuntimeError>;

/// Sessions that are asked for their figures at a time, when all of them are.
const ASKED_AT_ONCE: usize = 64;

/// What of a box's figures is in the metrics already.
#[derive(Debug, Default)]
pub(crate) struct Accounted {
    /// The box they are of.
    backend_id: String,
    counters: Counters,
    denied: HashMap<DenialKind, u64>,
}

/// A session and what its network did.
#[derive(Debug, Clone)]
pub struct SessionUsage {
    pub session: SessionView,
    /// `None` while it has no box with an isolated network.
    pub network: Option<Counters>,
}

impl Runtime {
    /// Holds a session to another network from now on. One that is isolated changes at once, whatever runs;
    /// another kind of network needs another box, which is a conflict while something runs.
    pub async fn set_network(&self, session: &str, wanted: NetworkRequest) -> Result<SessionView> {
        let session = self.inner.existing(session)?;
        let _busy = session.use_now();
        self.inner.change_network(&session, wanted).await?;
        drop(_busy);
        let view = session.view(self.inner.config.session_ttl);
        view.ok_or_else(|| RuntimeError::SessionNotFound { session: session.id.to_string() })
    }

    /// What a request means here: `off`, `host`, or the policy in its text form.
    pub fn meaning(&self, wanted: &NetworkRequest) -> String {
        match self.inner.network(wanted, false) {
            Ok(Network::Off) => "off".to_owned(),
            Ok(Network::Host) => "host".to_owned(),
            Ok(Network::Isolated(isolation)) => isolation.policy.to_string(),
            // A kept session whose policy is no longer granted; its next box will say so.
            Err(_) => wanted.to_string(),
        }
    }

    /// What the session's network used and refused since its box was made. `None` while it has no box, or one
    /// without an isolated network.
    pub async fn network_report(&self, session: &str) -> Result<Option<NetworkReport>> {
        let session = self.inner.existing(session)?;
        self.inner.report(&session).await
    }

    /// All sessions with their figures.
    pub async fn usage(&self) -> Vec<SessionUsage> {
        let ttl = self.inner.config.session_ttl;
        let all = stream::iter(self.inner.table.all()).map(|session| async move {
            let view = session.view(ttl)?;
            // A box that just ended has no figures.
            let report = self.inner.report(&session).await.ok().flatten();
            Some(SessionUsage { session: view, network: report.map(|report| report.counters) })
        });
        all.buffered(ASKED_AT_ONCE).filter_map(std::future::ready).collect().await
    }

    /// Brings the metrics up to date with what the boxes' networks did.
    pub async fn refresh_metrics(&self) {
        let open: u64 = self
            .usage()
            .await
            .iter()
            .filter_map(|usage| usage.network)
            .map(|counters| u64::from(counters.connections_now))
            .sum();
        self.inner.metrics.set_connections(open);
    }
}

impl Inner {
    /// What a request means. `publishes`: ports of the box are wanted, which need a network to come in by.
    pub(crate) fn network(&self, wanted: &NetworkRequest, publishes: bool) -> Result<Network> {
        let config = &self.config.network;
        let policy = match wanted {
            NetworkRequest::Off if publishes => Policy::off(),
            NetworkRequest::Off => return Ok(Network::Off),
            NetworkRequest::On { deny } => match &config.policy {
                OnNetwork::Policy(policy) => policy.without(deny)?,
                OnNetwork::Host if deny.is_empty() => return Ok(Network::Host),
                OnNetwork::Host => {
                    return Err(denied(wanted, "`on` is the host's own network here, which has no rules"));
                }
            },
            _ if config.locked => {
                let why =
                    "the operator has locked the network ([network] locked = true): ask for `on` or `off`";
                return Err(denied(wanted, why));
            }
            NetworkRequest::Host if config.host == HostNetwork::Allow => return Ok(Network::Host),
            NetworkRequest::Host => {
                let why = "the operator does not share the host's network; [network] host = \"allow\" does";
                return Err(denied(wanted, why));
            }
            NetworkRequest::Policy(policy) => {
                policy.check_against(&config.grants)?;
                policy.clone()
            }
        };
        let (grants, limits) = (config.grants.clone(), config.limits.clone());
        Ok(Network::Isolated(Box::new(Isolation { policy, grants, limits })))
    }

    /// Refuses before a box is made what its backend does not have.
    pub(crate) fn check_network(backend: &dyn Backend, network: &Network) -> Result<()> {
        let able = backend.capabilities();
        let name = backend.name();
        match network {
            Network::Isolated(_) if !able.isolated_network => Err(RuntimeError::Unsupported {
                hint: format!(
                    "network `on` is not available: the {name} backend has no isolated network on this machine. \
                     `sandcrate doctor` says what is missing; [network] host = \"allow\" lets requests ask for \
                     `host`, the host's own"
                ),
            }),
            Network::Host if !able.host_network => Err(RuntimeError::Unsupported {
                hint: format!(
                    "network `host` is not available: the {name} backend cannot share the host's network"
                ),
            }),
            _ => Ok(()),
        }
    }

    async fn change_network(self: &Arc<Self>, session: &Arc<Session>, wanted: NetworkRequest) -> Result<()> {
        let gone = || RuntimeError::SessionNotFound { session: session.id.to_string() };
        let _gate = tokio::select! {
            gate = session.gate.lock() => gate,
            () = session.closing() => return Err(gone()),
        };
        if !session.is_open() {
            return Err(gone());
        }
        let network = self.network(&wanted, session.publishes())?;
        let before = session.swap_network(wanted);
        let changed = match session.live() {
            Some(live) if live.backend.is_alive(&session.id).await => {
                self.change_live(session, live, network).await
            }
            // The next box is made by it.
            _ => Ok(()),
        };
        if let Err(error) = changed {
            session.swap_network(before);
            return Err(error);
        }
        if session.spec.persistent {
            self.save(session)?;
        }
        Ok(())
    }

    async fn change_live(
        self: &Arc<Self>,
        session: &Arc<Session>,
        live: Arc<LiveBox>,
        network: Network,
    ) -> Result<()> {
        match (&live.network, network) {
            (Network::Isolated(_), Network::Isolated(new)) => {
                live.backend.set_network(&session.id, *new).await?;
            }
            (Network::Isolated(had), Network::Off) => {
                // The device stays, and leads nowhere.
                let off = Isolation { policy: Policy::off(), ..Isolation::clone(had) };
                live.backend.set_network(&session.id, off).await?;
            }
            (Network::Off, Network::Off) | (Network::Host, Network::Host) => {}
            (_, new) => {
                Self::check_network(live.backend.as_ref(), &new)?;
                // Held while the box is made: a collected command must not start in between.
                let turn = Arc::clone(&session.turn).try_acquire_owned();
                if turn.is_err() || session.processes.any_running() || session.streams.any_running() {
                    let had = match live.network {
                        Network::Host => "host",
                        Network::Off | Network::Isolated(_) => "off",
                    };
                    return Err(RuntimeError::SessionConflict {
                        session: session.id.to_string(),
                        field: "network",
                        existing: format!("{had} while something runs in it"),
                    });
                }
                self.remake(session, live).await?;
            }
        }
        Ok(())
    }

    async fn report(&self, session: &Arc<Session>) -> Result<Option<NetworkReport>> {
        let Some(live) = session.live().filter(|live| live.is_isolated()) else { return Ok(None) };
        let report = live.backend.network(&session.id).await?;
        self.account(session, &live, &report);
        Ok(Some(report))
    }

    /// The last figures of a box that is about to end.
    pub(crate) async fn account_last(&self, session: &Arc<Session>) {
        // A box that died by itself has none.
        let _ = self.report(session).await;
    }

    /// Adds to the metrics what is new since the last look.
    fn account(&self, session: &Session, live: &LiveBox, report: &NetworkReport) {
        let mut denied: HashMap<DenialKind, u64> = HashMap::new();
        for denial in &report.denials {
            *denied.entry(denial.kind).or_default() += u64::from(denial.count);
        }
        let mut known = locked(&session.accounted);
        if known.backend_id != live.info.backend_id {
            *known = Accounted { backend_id: live.info.backend_id.clone(), ..Accounted::default() };
        }
        self.metrics.network_used(&known.counters, &report.counters);
        for (kind, count) in &denied {
            // Fewer than before when old ones are no longer kept.
            let before = known.denied.get(kind).copied().unwrap_or(0);
            self.metrics.denied(*kind, count.saturating_sub(before));
        }
        known.counters = report.counters;
        known.denied = denied;
    }
}

fn denied(wanted: &NetworkRequest, why: &str) -> RuntimeError {
    RuntimeError::NetworkDenied { asked: wanted.to_string(), why: why.to_owned() }
}
