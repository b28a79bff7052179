//! The E2B backend against a mock of an endpoint, and against the E2B face of a Sandcrate.
//!
//! A main of its own, because the test program is also the launcher of that Sandcrate's native boxes: the role is
//! dispatched before any thread exists.

#![expect(clippy::expect_used, clippy::unwrap_used, reason = "a test program with a main of its own")]

mod client;
mod golden;
mod mock;
mod secure;
mod suite;

use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::{Arguments, Trial};

macro_rules! trials {
    ($handle:expr, $family:literal: $($case:path),+ $(,)?) => {
        vec![$({
            let handle = $handle.clone();
            let name = stringify!($case).rsplit("::").next().unwrap_or_default().trim().to_owned();
            Trial::test(format!("{}::{name}", $family), move || { handle.block_on($case()); Ok(()) })
        }),+]
    };
}

fn main() -> ExitCode {
    if let Some(code) = sandcrate_backend_native::dispatch_role() {
        return code;
    }
    let arguments = Arguments::from_args();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let handle = runtime.handle();
    let mut trials = trials!(handle, "golden":
        golden::every_deviation_is_of_a_recorded_case,
        golden::a_sandbox_is_asked_for_as_the_reference_does,
        golden::a_command_gets_what_the_reference_gives_it_and_its_end_is_a_result,
        golden::host_directories_travel_as_the_reference_has_them,
        golden::a_read_only_directory_never_comes_back,
    );
    trials.extend(trials!(handle, "client":
        client::an_endpoint_of_before_is_asked_by_its_own_address,
        client::what_is_missing_is_said_by_the_probe_and_a_client_can_bring_it,
        client::a_stream_that_is_cut_is_taken_up_again,
        client::a_deadline_kills_the_program_and_what_it_started,
        client::what_does_not_start_is_told_in_our_words,
        client::a_sandbox_that_dies_ends_its_session,
        client::what_cannot_be_held_is_in_the_record_and_refused_where_it_is_required,
        client::a_sweep_ends_sandboxes_of_dead_servers_of_this_state_and_no_others,
        client::what_a_dead_server_left_goes_without_a_key,
    ));
    trials.extend(trials!(handle, "secure":
        secure::an_endpoint_is_believed_by_the_authority_that_is_named_and_by_no_other,
        secure::a_file_without_certificates_is_refused_at_the_start,
    ));
    let far = Arc::new(runtime.block_on(suite::Far::new()));
    trials.extend(suite::trials(&far, handle));
    let conclusion = libtest_mimic::run(&arguments, trials);
    match runtime.block_on(far.close()) {
        Ok(()) => conclusion.exit_code(),
        Err(why) => {
            eprintln!("FAILED: {why}");
            ExitCode::FAILURE
        }
    }
}
