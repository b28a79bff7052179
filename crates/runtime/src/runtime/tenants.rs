//! Sessions by the workspace they belong to, as a host with many of them has them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use super::{Inner, Result, Runtime};
use crate::box_limits::BoxLimits;
use crate::error::RuntimeError;
use crate::session::{Session, SessionView, locked};
use crate::table::Caps;
use crate::tenant::{Placement, owner};

/// How many sessions a workspace can still have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Capacity {
    pub limit: usize,
    /// In every generation.
    pub used: usize,
    pub remaining: usize,
}

/// What one placement has, and what it could have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TenantStatus {
    pub active_sessions: usize,
    /// Running ones.
    pub managed_processes: usize,
    pub limits: BoxLimits,
    pub capacity: Capacity,
}

impl Runtime {
    /// In order of creation.
    pub fn sessions_of(&self, placement: &Placement) -> Vec<SessionView> {
        let ttl = self.inner.config.session_ttl;
        self.inner.of(placement).iter().filter_map(|session| session.view(ttl)).collect()
    }

    pub fn tenant_status(&self, placement: &Placement) -> TenantStatus {
        let sessions = self.inner.of(placement);
        let limits = self.inner.box_limits();
        let all = self.inner.table.count(|id| owner(id).is_some());
        let used =
            self.inner.table.count(|id| owner(id).is_some_and(|(name, _)| name == placement.workspace()));
        let limit = limits.max_sessions;
        let left = limit.saturating_sub(all);
        let limit = self.granted_sessions(placement).map_or(limit, |granted| granted.min(limit));
        let remaining = limit.saturating_sub(used).min(left);
        TenantStatus {
            active_sessions: sessions.len(),
            managed_processes: sessions.iter().map(|session| session.processes.running()).sum(),
            limits,
            capacity: Capacity { limit, used, remaining },
        }
    }

    /// The limits in force for workspaces: what their host asked for, and not more than the operator's.
    pub fn box_limits(&self) -> BoxLimits {
        self.inner.box_limits()
    }

    /// Ends what earlier generations of this workspace left, persistent sessions included.
    pub async fn end_older(&self, placement: &Placement) {
        self.end_all(|session| {
            owner(session.id.as_str()).is_some_and(|(workspace, generation)| {
                workspace == placement.workspace() && generation < placement.generation()
            })
        })
        .await;
    }

    /// Ends all sessions of workspaces but persistent ones.
    pub async fn end_tenants(&self) {
        self.end_all(|session| !session.spec.persistent && owner(session.id.as_str()).is_some()).await;
    }

    /// Sessions and running managed processes, whoever has them.
    pub fn counts(&self) -> (usize, usize) {
        let sessions = self.inner.table.all();
        (sessions.len(), sessions.iter().map(|session| session.processes.running()).sum())
    }

    /// Where the files of workspaces are, if their host told.
    pub fn default_workspace(&self) -> Option<PathBuf> {
        locked(&self.inner.langbot).default_workspace.clone()
    }
}

impl Inner {
    pub(crate) fn of(&self, placement: &Placement) -> Vec<Arc<Session>> {
        self.table.all().into_iter().filter(|session| placement.owns(session.id.as_str())).collect()
    }

    pub(crate) fn box_limits(&self) -> BoxLimits {
        let sessions = self.config.limits.sessions;
        let asked = locked(&self.langbot)
            .limits
            .unwrap_or(BoxLimits { max_sessions: sessions, ..BoxLimits::default() });
        BoxLimits {
            max_sessions: asked.max_sessions.min(sessions),
            max_rpc_file_bytes: asked.max_rpc_file_bytes.min(self.config.skill_limits.upload_bytes),
            ..asked
        }
    }

    pub(crate) fn caps(&self) -> Caps {
        let sessions = self.config.limits.sessions;
        let asked = locked(&self.langbot).limits;
        Caps { sessions, tenants: asked.map_or(usize::MAX, |limits| limits.max_sessions) }
    }

    /// Forgets ended processes of workspaces: those that ended long ago, and the oldest beyond the host's number.
    pub(crate) fn forget_completed(&self) {
        let BoxLimits { max_completed_processes, completed_process_retention_sec, .. } = self.box_limits();
        let mut tenants = self.table.all();
        tenants.retain(|session| owner(session.id.as_str()).is_some());
        let mut ended: Vec<Instant> =
            tenants.iter().flat_map(|session| session.processes.ended_since()).collect();
        ended.sort_unstable_by(|a, b| b.cmp(a));
        let retention = Duration::from_secs(completed_process_retention_sec as u64);
        let too_old = Instant::now().checked_sub(retention);
        let too_many = ended.get(max_completed_processes).copied();
        if let Some(time) = too_old.max(too_many) {
            tenants.iter().for_each(|session| session.processes.forget_ended_by(time));
        }
    }

    /// Whether a workspace's session may start one more process; one of the same id is replaced.
    pub(crate) fn check_process_room(&self, session: &Session, process: &str) -> Result<()> {
        if owner(session.id.as_str()).is_none() {
            return Ok(());
        }
        let limit = self.box_limits().max_managed_processes;
        let tenants = self.table.all();
        let tenants = tenants.iter().filter(|session| owner(session.id.as_str()).is_some());
        let running: usize = tenants.map(|session| session.processes.running()).sum();
        let replaced = session.processes.get(process).is_some_and(|old| old.is_running());
        if running.saturating_sub(usize::from(replaced)) < limit {
            return Ok(());
        }
        Err(RuntimeError::CapacityReached { what: "managed process", limit })
    }
}
