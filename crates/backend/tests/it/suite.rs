//! The list of conformance cases itself.
#![cfg(feature = "conformance")]

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use sandcrate_backend::conformance::{Harness, Need, cases};
use sandcrate_backend::fake::FakeBackend;
use sandcrate_backend::{Backend, Capabilities};

struct OnFake(Arc<FakeBackend>);

impl Harness for OnFake {
    fn backend(&self) -> Arc<dyn Backend> {
        self.0.clone()
    }

    fn host_dir(&self) -> Result<PathBuf, String> {
        Err("a fake mounts nothing".to_owned())
    }
}

#[test]
fn names_are_unique_and_say_their_family() {
    let all = cases();
    let names: BTreeSet<_> = all.iter().map(|case| case.name).collect();
    assert_eq!(names.len(), all.len());
    assert!(names.iter().all(|name| name.split("::").count() == 2));
}

#[test]
fn a_case_is_left_out_when_the_backend_cannot_do_what_it_needs() {
    let able = FakeBackend::scripted([]);
    let capabilities = Capabilities { pty: false, isolated_network: false, ..able.capabilities() };
    let harness = OnFake(Arc::new(able.with_capabilities(capabilities)));
    for case in cases() {
        let lacking =
            [Need::Pty, Need::HardDiskQuota, Need::HostNetwork, Need::IsolatedNetwork, Need::Internet];
        let expected = lacking.iter().any(|need| case.needs.contains(need));
        assert_eq!(case.missing(&harness).is_some(), expected, "{}", case.name);
    }
}

/// The suite must be able to fail: a backend that runs nothing passes hardly a case about commands.
#[tokio::test(start_paused = true)]
async fn a_backend_that_runs_nothing_is_found_out() {
    let mut passed = Vec::new();
    for case in cases() {
        if ["session::", "confinement::", "network::"].iter().any(|family| case.name.starts_with(family)) {
            continue;
        }
        let harness = OnFake(Arc::new(FakeBackend::scripted([])));
        if (case.run)(Arc::new(harness)).await.is_ok() {
            passed.push(case.name);
        }
    }
    // What is left is about requests that never reach a command, and about commands that have ended.
    let expected = [
        "commands::nul_in_a_command_is_refused",
        "commands::a_bad_workdir_is_refused",
        "stdin::input_to_a_command_that_has_ended_is_refused",
        "environment::a_bad_key_is_refused_by_name",
        "control::control_of_an_ended_command_is_refused",
        "keeping::a_restart_of_an_unknown_session_is_not_found",
        "limits::a_limit_of_zero_is_refused",
        "files::reads_begin_and_end_where_asked",
        "file_errors::a_missing_path_is_not_found",
    ];
    assert_eq!(passed, expected);
}
