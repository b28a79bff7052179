//! Workspaces that are held to grants, as LangBot's cloud edition asks for it.
//!
//! Once it is required nothing opens it again: whatever cannot be read, or cannot be held on this machine, refuses
//! sessions. [`book`] has the grants, [`readiness`] says whether the machine holds what is promised, [`spec`] makes
//! of a request what its workspace may have.

mod book;
mod calls;
mod readiness;
mod spec;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sandcrate_protocol::{AdmissionGrant, AdmissionPolicy, AdmissionRevocation, Timestamp};
use serde_json::Value;
use tokio::sync::Notify;

use self::book::Book;
pub use self::calls::Admitted;
pub use self::readiness::{Readiness, ReadyBackend};
use crate::error::RuntimeError;
use crate::runtime::{Inner, Runtime};
use crate::session::locked;
use crate::tenant::{Placement, owner};

/// What a host asked for.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Rule {
    Open,
    /// Sessions need a grant. With a fault there are none.
    Enforced {
        policy: AdmissionPolicy,
        fault: Option<String>,
    },
}

impl Rule {
    /// That of a section `admission`; nothing when there is none.
    pub(crate) fn read(config: &Value) -> Option<Self> {
        let section = config.get("admission")?;
        if section.is_null() {
            return Some(Self::Open);
        }
        // What cannot be read may mean that it is required.
        let (policy, fault) = match AdmissionPolicy::from_json(section) {
            Ok(policy) if !policy.required => return Some(Self::Open),
            Ok(policy) => (policy, None),
            Err(error) => (AdmissionPolicy::default(), Some(error.to_string())),
        };
        Some(Self::Enforced { policy, fault })
    }
}

#[derive(Debug)]
pub(crate) struct Admission {
    state: Mutex<State>,
    /// Told when a grant came that may expire before the others.
    changed: Notify,
    /// Held while the machine is looked at: whoever asks meanwhile waits for the same answer.
    looked: tokio::sync::Mutex<Option<readiness::Looked>>,
    /// Of the host's configuration, all of it: what was found out with another one does not count.
    version: AtomicU64,
}

#[derive(Debug)]
struct State {
    rule: Rule,
    book: Book,
}

/// Wall clocks are set; the longest that an expiry is slept for.
const NAP: Duration = Duration::from_secs(5);

impl Default for Admission {
    fn default() -> Self {
        let state = State { rule: Rule::Open, book: Book::default() };
        Self {
            state: Mutex::new(state),
            changed: Notify::new(),
            looked: tokio::sync::Mutex::default(),
            version: AtomicU64::new(0),
        }
    }
}

impl Admission {
    /// The policy in force, and what is wrong with the configuration.
    fn rule(&self) -> Rule {
        locked(&self.state).rule.clone()
    }

    pub(crate) fn policy(&self) -> Option<AdmissionPolicy> {
        match self.rule() {
            Rule::Open => None,
            Rule::Enforced { policy, .. } => Some(policy),
        }
    }

    /// Takes another configuration, perhaps without a word of this. Whether what workspaces have was made by other
    /// rules.
    pub(crate) fn change(&self, rule: Option<Rule>) -> bool {
        self.version.fetch_add(1, Ordering::AcqRel);
        let Some(rule) = rule else { return false };
        let mut state = locked(&self.state);
        let before = std::mem::replace(&mut state.rule, rule);
        match (before, &mut state.rule) {
            (Rule::Open, now) => matches!(now, Rule::Enforced { .. }),
            (Rule::Enforced { policy: before, .. }, Rule::Enforced { policy, .. }) => before != *policy,
            (Rule::Enforced { policy, .. }, now) => {
                let fault =
                    "Sandbox admission enforcement cannot be disabled without restarting the Box Runtime";
                *now = Rule::Enforced { policy, fault: Some(fault.to_owned()) };
                false
            }
        }
    }

    /// The policy of a configuration that can be held.
    fn sound_policy(&self) -> Result<AdmissionPolicy, RuntimeError> {
        match self.rule() {
            Rule::Open => Err(RuntimeError::admission("Sandbox admission enforcement is not enabled")),
            Rule::Enforced { fault: Some(fault), .. } => {
                let why = format!("Invalid sandbox admission configuration: {fault}");
                Err(RuntimeError::NotReady { why })
            }
            Rule::Enforced { policy, fault: None } => Ok(policy),
        }
    }

    /// Waits until a grant may have expired.
    async fn expiry(&self) {
        let changed = self.changed.notified();
        let next = locked(&self.state).book.next_expiry();
        let Some(next) = next else { return changed.await };
        let left = next.0.duration_since(Timestamp::now().0);
        let left = Duration::try_from(left).unwrap_or_default().clamp(Duration::from_millis(1), NAP);
        tokio::select! {
            () = changed => {}
            () = tokio::time::sleep(left) => {}
        }
    }
}

/// Ends what grants that have expired allowed, at their time.
pub(crate) async fn run(runtime: std::sync::Weak<Inner>, admission: Arc<Admission>) {
    loop {
        admission.expiry().await;
        let Some(runtime) = runtime.upgrade() else { return };
        let expired = locked(&admission.state).book.expire(Timestamp::now());
        for (workspace, calls) in expired {
            tracing::info!(workspace, "admission grant expired");
            // Not awaited: a backend that stops one slowly must not keep the others waiting.
            let ending = Arc::clone(&runtime);
            runtime.tasks.spawn(async move { ending.end_workspace(&workspace, calls).await });
        }
    }
}

impl Runtime {
    /// The policy, if sessions of workspaces need grants.
    pub fn admission_policy(&self) -> Option<AdmissionPolicy> {
        self.inner.admission.policy()
    }

    /// Installs a grant, and ends what an earlier one allowed and this does not. The grant in force: the longer of
    /// two that are otherwise the same.
    pub async fn install_grant(&self, grant: &AdmissionGrant) -> Result<AdmissionGrant, RuntimeError> {
        let admission = &self.inner.admission;
        let policy = admission.sound_policy()?;
        let placement = placement_of(grant);
        let most = self.inner.box_limits().max_admission_records;
        let installed = locked(&admission.state).book.install(
            placement.workspace(),
            grant,
            &policy,
            Timestamp::now(),
            most,
        )?;
        admission.changed.notify_one();
        if let Some(ended) = installed.ended {
            self.inner.ended_workspace(placement.workspace(), ended).await;
        }
        Ok(installed.grant)
    }

    /// Ends a workspace's rights, its calls and its sessions.
    pub async fn revoke_grant(&self, revocation: &AdmissionRevocation) -> Result<(), RuntimeError> {
        let admission = &self.inner.admission;
        if admission.policy().is_none() {
            return Err(RuntimeError::admission("Sandbox admission enforcement is not enabled"));
        }
        let AdmissionRevocation { instance_uuid, workspace_uuid, entitlement_revision } = revocation;
        let placement = Placement::new(instance_uuid, workspace_uuid, 1);
        let most = self.inner.box_limits().max_admission_records;
        let ended =
            locked(&admission.state).book.revoke(placement.workspace(), *entitlement_revision, most)?;
        self.inner.ended_workspace(placement.workspace(), ended).await;
        Ok(())
    }

    /// The right of a call to a workspace's sessions. It ends when the grant does.
    pub async fn admit(&self, placement: &Placement) -> Result<Admitted, RuntimeError> {
        let readiness = self.readiness().await;
        if let Some(why) = readiness.refusal() {
            return Err(RuntimeError::NotReady { why });
        }
        let policy = self.inner.admission.sound_policy()?;
        let calls = locked(&self.inner.admission.state).book.calls(placement, &policy, Timestamp::now())?;
        calls.enter().await
    }

    /// The sessions that a workspace's grant allows, if grants are required and it has one.
    pub(crate) fn granted_sessions(&self, placement: &Placement) -> Option<usize> {
        let policy = self.inner.admission.policy()?;
        let most = locked(&self.inner.admission.state).book.sessions(placement, Timestamp::now());
        Some(usize::try_from(most.min(policy.max_sessions)).unwrap_or(usize::MAX))
    }

    /// Whether a workspace may have one managed process more.
    pub fn check_granted_process(&self, placement: &Placement) -> Result<(), RuntimeError> {
        if self.inner.admission.policy().is_none() {
            return Ok(());
        }
        let allowed = locked(&self.inner.admission.state).book.processes(placement, Timestamp::now());
        let running: usize = self.inner.of(placement).iter().map(|session| session.processes.running()).sum();
        if (running as u64) < allowed {
            return Ok(());
        }
        Err(RuntimeError::admission("Sandbox admission grant does not permit managed processes"))
    }
}

fn placement_of(grant: &AdmissionGrant) -> Placement {
    Placement::new(&grant.instance_uuid, &grant.workspace_uuid, grant.execution_generation)
}

impl Inner {
    /// Ends all that a workspace has, once its calls have ended.
    async fn end_workspace(self: &Arc<Self>, workspace: &str, calls: calls::Ending) {
        calls.ended().await;
        self.end_sessions_of(|owner| owner == workspace).await;
        calls.cleared();
    }

    /// The same, whether or not the caller waits for it.
    async fn ended_workspace(self: &Arc<Self>, workspace: &str, calls: calls::Ending) {
        let (runtime, workspace) = (Arc::clone(self), workspace.to_owned());
        let ending = self.tasks.spawn(async move { runtime.end_workspace(&workspace, calls).await });
        // It is not cancelled; a panic in it has been told already.
        let _ = ending.await;
    }

    async fn end_sessions_of(self: &Arc<Self>, which: impl Fn(&str) -> bool) {
        let sessions = self.table.all().into_iter();
        let ends = sessions.filter(|session| owner(session.id.as_str()).is_some_and(|(name, _)| which(name)));
        futures_util::future::join_all(ends.map(|session| self.close(session))).await;
    }

    /// Ends what workspaces have: it was made by other rules.
    pub(crate) fn end_all_workspaces(self: &Arc<Self>) {
        let runtime = Arc::clone(self);
        self.tasks.spawn(async move { runtime.end_sessions_of(|_| true).await });
    }

    /// Whether a session is one that grants are required for.
    pub(crate) fn admission_of(&self, session: &str) -> Option<AdmissionPolicy> {
        owner(session)?;
        self.admission.policy()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn enforced(section: &Value) -> Option<String> {
        match Rule::read(&json!({ "admission": section })) {
            Some(Rule::Enforced { fault, .. }) => Some(fault.unwrap_or_default()),
            _ => None,
        }
    }

    #[test]
    fn what_cannot_be_read_is_required() {
        assert_eq!(Rule::read(&json!({})), None);
        assert_eq!(enforced(&json!(null)), None);
        assert_eq!(enforced(&json!({"required": false})), None);
        assert_eq!(enforced(&json!({"required": true})).as_deref(), Some(""));
        for bad in [json!({"required": false, "x": 1}), json!([]), json!({"required": 7}), json!("no")] {
            let fault = enforced(&bad).unwrap_or_else(|| panic!("{bad} leaves it open"));
            assert!(fault.contains("validation error"), "{fault}");
        }
    }

    #[test]
    fn nothing_opens_it_again() {
        let admission = Admission::default();
        assert!(admission.sound_policy().is_err());
        let required = || Rule::read(&json!({"admission": {"required": true, "memory_mb": 64}}));
        assert!(admission.change(required()));
        assert_eq!(admission.sound_policy().unwrap().memory_mb, 64);
        assert!(!admission.change(None) && !admission.change(Some(Rule::Open)));
        let refused = admission.sound_policy().unwrap_err();
        assert!(refused.to_string().contains("cannot be disabled"), "{refused}");
        assert_eq!(admission.policy().unwrap().memory_mb, 64, "what was required stays so");
        assert!(!admission.change(required()));
        assert!(admission.sound_policy().is_ok());
    }
}
