//! What a box refused while a tool was called: told with the result, so that a model does not take it for a fault of
//! the network.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use rmcp::model::{CallToolResult, ContentBlock, MetaObject};
use sandcrate_protocol::network::{Denial, DenialKind};
use sandcrate_runtime::Runtime;
use serde_json::json;

/// The key of a result's `_meta`.
pub const DENIALS_KEY: &str = "sandcrate/denials";
/// Told with one result.
const MOST_TOLD: usize = 20;

/// Knows what boxes refused.
#[async_trait]
pub trait Refusals: Send + Sync + std::fmt::Debug {
    /// What the session's box refused since it was made, as far as it is kept.
    async fn refused(&self, session: &str) -> Vec<Denial>;
}

#[async_trait]
impl Refusals for Runtime {
    async fn refused(&self, session: &str) -> Vec<Denial> {
        // A box that just ended has nothing to tell.
        self.network_report(session).await.ok().flatten().map(|report| report.denials).unwrap_or_default()
    }
}

type Key = (DenialKind, String, String);

/// Which denials were told already, by session. Sessions are those of servers, so there are few.
#[derive(Debug, Default)]
pub(crate) struct Told(Mutex<HashMap<String, HashMap<Key, u32>>>);

impl Told {
    /// Those that are new; all of them are told with this.
    pub(crate) fn news(&self, session: &str, denials: Vec<Denial>) -> Vec<Denial> {
        let counts = denials.iter().map(|denial| (key(denial), denial.count)).collect();
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = told.insert(session.to_owned(), counts).unwrap_or_default();
        drop(told);
        let new = |denial: Denial| {
            let known = before.get(&key(&denial)).copied().unwrap_or(0);
            // Fewer than before: the box was made anew, and all are new.
            let count = if denial.count >= known { denial.count - known } else { denial.count };
            (count > 0).then_some(Denial { count, ..denial })
        };
        denials.into_iter().filter_map(new).collect()
    }

    pub(crate) fn knows(&self, session: &str) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains_key(session)
    }
}

fn key(denial: &Denial) -> Key {
    (denial.kind, denial.target.clone(), denial.rule.clone())
}

/// Puts them into the result: for programs always, in words when the tool failed.
pub(crate) fn tell(result: &mut CallToolResult, denials: &[Denial]) {
    if denials.is_empty() {
        return;
    }
    let told = &denials[..denials.len().min(MOST_TOLD)];
    result.meta.get_or_insert_with(MetaObject::default).insert(DENIALS_KEY.to_owned(), json!(told));
    if result.is_error == Some(true) {
        let lines: Vec<_> = told
            .iter()
            .map(|denial| format!("The box refused {} ({}). {}", denial.target, denial.rule, denial.hint))
            .collect();
        result.content.push(ContentBlock::text(lines.join("\n")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denial(target: &str, count: u32) -> Denial {
        let mut denial = Denial::new(DenialKind::Connect, target, "deny *", "ask for it");
        denial.count = count;
        denial
    }

    #[test]
    fn a_denial_is_told_once_and_again_when_it_happens_again() {
        let told = Told::default();
        assert!(!told.knows("s"));
        assert_eq!(told.news("s", vec![denial("a", 1)]), [denial("a", 1)]);
        assert!(told.knows("s"));
        assert!(told.news("s", vec![denial("a", 1)]).is_empty());
        assert_eq!(told.news("s", vec![denial("a", 3), denial("b", 1)]), [denial("a", 2), denial("b", 1)]);
        assert_eq!(told.news("s", vec![denial("a", 1)]), [denial("a", 1)], "a new box begins at zero");
        assert_eq!(told.news("t", vec![denial("a", 1)]).len(), 1, "another session's are its own");
    }

    #[test]
    fn words_are_added_to_a_failure_only() {
        let mut fine = CallToolResult::success(vec![]);
        tell(&mut fine, &[]);
        assert_eq!(fine.meta, None);
        tell(&mut fine, &[denial("tcp 10.0.0.1:5432", 1)]);
        assert!(fine.content.is_empty() && fine.meta.unwrap().contains_key(DENIALS_KEY));
        let mut failed = CallToolResult::error(vec![ContentBlock::text("cannot connect")]);
        tell(&mut failed, &[denial("tcp 10.0.0.1:5432", 1)]);
        let said = failed.content[1].as_text().unwrap();
        assert_eq!(said.text, "The box refused tcp 10.0.0.1:5432 (deny *). ask for it");
    }
}
