//! The grants there are, and what is remembered of those there were: a right that was taken back or replaced never
//! comes back.

use std::collections::{BTreeSet, HashMap};

use sandcrate_protocol::{AdmissionGrant, AdmissionPolicy, Timestamp};

use super::calls::{Calls, Ending};
use crate::error::RuntimeError;
use crate::tenant::Placement;

#[derive(Debug, Default)]
pub(super) struct Book {
    /// By the name of the workspace. Never fewer: a record is what keeps older rights out.
    records: HashMap<String, Record>,
    /// When the live grants end.
    expiries: BTreeSet<(Timestamp, String)>,
}

#[derive(Debug, Default)]
struct Record {
    /// The highest that were seen.
    revision: u64,
    generation: u64,
    /// Up to this one they were taken back.
    revoked: u64,
    /// Sessions and processes of the highest revision.
    limits: Option<(u64, u64)>,
    live: Option<Live>,
}

#[derive(Debug)]
struct Live {
    grant: AdmissionGrant,
    calls: Calls,
}

/// What came of a grant.
#[derive(Debug)]
pub(super) struct Installed {
    /// The one in force.
    pub(super) grant: AdmissionGrant,
    /// What it ends, if anything.
    pub(super) ended: Option<Ending>,
}

impl Book {
    pub(super) fn install(
        &mut self,
        workspace: &str,
        grant: &AdmissionGrant,
        policy: &AdmissionPolicy,
        now: Timestamp,
        most: usize,
    ) -> Result<Installed, RuntimeError> {
        check(grant, policy, now)?;
        let record = self.record(workspace, most)?;
        if grant.entitlement_revision <= record.revoked {
            return refused("Sandbox admission grant revision was revoked");
        }
        if grant.entitlement_revision < record.revision {
            return refused("Sandbox admission grant revision is stale");
        }
        if grant.execution_generation < record.generation {
            return refused("Sandbox admission execution generation is stale");
        }
        let limits = (grant.max_sessions, grant.max_managed_processes);
        if grant.entitlement_revision == record.revision && record.limits.is_some_and(|had| had != limits) {
            return refused("Sandbox admission limits changed without a new entitlement revision");
        }
        let current = record.live.take();
        // One that has expired and was not noticed yet allows nothing any more.
        let renewed = current.as_ref().filter(|live| {
            live.grant.execution_generation == grant.execution_generation
                && live.grant.expires_at > now
                && grant.max_sessions > 0
        });
        let same_but_shorter = renewed.is_some_and(|live| {
            live.grant.entitlement_revision == grant.entitlement_revision
                && live.grant.expires_at > grant.expires_at
        });
        if let (true, Some(live)) = (same_but_shorter, current.as_ref()) {
            let grant = live.grant.clone();
            record.live = current;
            return Ok(Installed { grant, ended: None });
        }
        record.revision = grant.entitlement_revision;
        record.generation = grant.execution_generation;
        record.limits = Some(limits);
        let (calls, ended) = match renewed {
            Some(live) => (live.calls.clone(), None),
            None => {
                let next = Calls::default();
                let old = current.as_ref().map(|live| live.calls.clone());
                (next.clone(), Some(Ending::of(old, Some(next))))
            }
        };
        record.live = Some(Live { grant: grant.clone(), calls });
        if let Some(old) = current {
            self.expiries.remove(&(old.grant.expires_at, workspace.to_owned()));
        }
        self.expiries.insert((grant.expires_at, workspace.to_owned()));
        Ok(Installed { grant: grant.clone(), ended })
    }

    pub(super) fn revoke(
        &mut self,
        workspace: &str,
        revision: u64,
        most: usize,
    ) -> Result<Ending, RuntimeError> {
        let record = self.record(workspace, most)?;
        if revision < record.revision.max(record.revoked) {
            return refused("Sandbox admission revocation is stale");
        }
        record.revision = revision;
        record.revoked = revision;
        record.limits = None;
        let old = record.live.take();
        if let Some(old) = &old {
            self.expiries.remove(&(old.grant.expires_at, workspace.to_owned()));
        }
        Ok(Ending::of(old.map(|live| live.calls), None))
    }

    /// Takes out what has expired.
    pub(super) fn expire(&mut self, now: Timestamp) -> Vec<(String, Ending)> {
        let mut ended = Vec::new();
        while let Some((when, _)) = self.expiries.first()
            && *when <= now
            && let Some((_, workspace)) = self.expiries.pop_first()
        {
            let live = self.records.get_mut(&workspace).and_then(|record| record.live.take());
            if let Some(live) = live {
                ended.push((workspace, Ending::of(Some(live.calls), None)));
            }
        }
        ended
    }

    pub(super) fn next_expiry(&self) -> Option<Timestamp> {
        self.expiries.first().map(|(when, _)| *when)
    }

    /// The calls that a placement's grant allows.
    pub(super) fn calls(
        &self,
        placement: &Placement,
        policy: &AdmissionPolicy,
        now: Timestamp,
    ) -> Result<Calls, RuntimeError> {
        let record = self.records.get(placement.workspace());
        let Some(live) = record.and_then(|record| record.live.as_ref()) else {
            return refused("Sandbox admission grant is missing");
        };
        let grant = &live.grant;
        if grant.expires_at <= now {
            return refused("Sandbox admission grant has expired");
        }
        if grant.execution_generation != placement.generation() {
            return refused("Sandbox admission grant belongs to another execution generation");
        }
        if grant.max_sessions == 0 {
            return refused("Sandbox admission grant does not permit sessions");
        }
        if grant.max_sessions > policy.max_sessions
            || grant.max_managed_processes > policy.max_managed_processes
        {
            return refused("Sandbox admission grant exceeds the active runtime policy");
        }
        Ok(live.calls.clone())
    }

    pub(super) fn sessions(&self, placement: &Placement, now: Timestamp) -> u64 {
        self.live(placement, now).map_or(0, |grant| grant.max_sessions)
    }

    pub(super) fn processes(&self, placement: &Placement, now: Timestamp) -> u64 {
        self.live(placement, now).map_or(0, |grant| grant.max_managed_processes)
    }

    fn live(&self, placement: &Placement, now: Timestamp) -> Option<&AdmissionGrant> {
        let grant = &self.records.get(placement.workspace())?.live.as_ref()?.grant;
        let fits = grant.execution_generation == placement.generation() && grant.expires_at > now;
        fits.then_some(grant)
    }

    fn record(&mut self, workspace: &str, most: usize) -> Result<&mut Record, RuntimeError> {
        if !self.records.contains_key(workspace) && self.records.len() >= most {
            let why = format!(
                "Sandbox admission record capacity reached ({most}); raise box.limits.max_admission_records"
            );
            return Err(RuntimeError::Admission { why });
        }
        Ok(self.records.entry(workspace.to_owned()).or_default())
    }
}

/// What is asked of every grant, whatever was before.
fn check(grant: &AdmissionGrant, policy: &AdmissionPolicy, now: Timestamp) -> Result<(), RuntimeError> {
    if grant.expires_at <= now {
        return refused("Cannot install an expired sandbox admission grant");
    }
    // The clock's own limits are further away than any grant.
    let latest = now.0.checked_add(policy.max_grant_ttl).map_or(now, Timestamp);
    if grant.expires_at > latest {
        return refused("Sandbox admission grant lifetime exceeds the configured maximum");
    }
    if grant.max_sessions > policy.max_sessions {
        return refused("Sandbox admission grant exceeds the session cap");
    }
    if grant.max_managed_processes > policy.max_managed_processes {
        return refused("Sandbox admission grant exceeds the managed-process cap");
    }
    Ok(())
}

fn refused<T>(why: &'static str) -> Result<T, RuntimeError> {
    Err(RuntimeError::admission(why))
}

#[cfg(test)]
#[path = "book_tests.rs"]
mod tests;
