//! The sessions there are. Its lock is held for look-ups only.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use sandcrate_backend::SessionId;
use sandcrate_protocol::BoxSpec;

use crate::RuntimeError;
use crate::session::{Session, SessionOptions, locked};
use crate::tenant::owner;

#[derive(Debug, Default)]
pub(crate) struct Table {
    sessions: Mutex<Sessions>,
}

#[derive(Debug, Default)]
struct Sessions {
    by_id: HashMap<String, Arc<Session>>,
    next: u64,
}

/// How many sessions there may be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Caps {
    pub(crate) sessions: usize,
    /// Of workspaces, among them.
    pub(crate) tenants: usize,
}

pub(crate) enum Found {
    Open(Arc<Session>),
    /// On its way out; the id is free when it has closed.
    Closing(Arc<Session>),
}

impl Table {
    pub(crate) fn get(&self, id: &str) -> Option<Arc<Session>> {
        locked(&self.sessions).by_id.get(id).filter(|session| session.is_open()).cloned()
    }

    /// The session of that id, or a new one; a new one has no box yet.
    pub(crate) fn get_or_insert(
        &self,
        id: &SessionId,
        spec: &BoxSpec,
        options: &SessionOptions,
        caps: Caps,
    ) -> Result<Found, RuntimeError> {
        let mut sessions = locked(&self.sessions);
        if let Some(known) = sessions.by_id.get(id.as_str()) {
            if !known.is_open() {
                return Ok(Found::Closing(Arc::clone(known)));
            }
            known.check_compatible(spec, options)?;
            return Ok(Found::Open(Arc::clone(known)));
        }
        let limit = caps.sessions;
        let tenants = || sessions.by_id.keys().filter(|id| owner(id).is_some()).count();
        if owner(id.as_str()).is_some() && caps.tenants < limit && tenants() >= caps.tenants {
            return Err(RuntimeError::CapacityReached { what: "session", limit: caps.tenants });
        }
        if sessions.by_id.len() >= limit {
            return Err(RuntimeError::LimitExceeded {
                what: "another session".to_owned(),
                limit: format!("{limit} sessions (limits.sessions)"),
            });
        }
        sessions.next += 1;
        let session = Arc::new(Session::new(id.clone(), sessions.next, spec, options.clone()));
        sessions.by_id.insert(id.as_str().to_owned(), Arc::clone(&session));
        Ok(Found::Open(session))
    }

    /// Puts back a session of an earlier life.
    pub(crate) fn restore(&self, make: impl FnOnce(u64) -> Session) {
        let mut sessions = locked(&self.sessions);
        sessions.next += 1;
        let session = make(sessions.next);
        sessions.by_id.insert(session.id.as_str().to_owned(), Arc::new(session));
    }

    /// Removes this very session, not a later one of the same id.
    pub(crate) fn remove(&self, session: &Arc<Session>) {
        let mut sessions = locked(&self.sessions);
        if sessions.by_id.get(session.id.as_str()).is_some_and(|known| Arc::ptr_eq(known, session)) {
            sessions.by_id.remove(session.id.as_str());
        }
    }

    /// Open sessions in order of their creation.
    pub(crate) fn all(&self) -> Vec<Arc<Session>> {
        let mut all: Vec<_> =
            locked(&self.sessions).by_id.values().filter(|session| session.is_open()).cloned().collect();
        all.sort_by_key(|session| session.number);
        all
    }

    /// How many sessions there are, closing ones too, and how many of them this holds for.
    pub(crate) fn count(&self, which: impl Fn(&str) -> bool) -> usize {
        locked(&self.sessions).by_id.keys().filter(|id| which(id)).count()
    }

    /// Closing ones too.
    pub(crate) fn len(&self) -> usize {
        locked(&self.sessions).by_id.len()
    }
}
