//! None of the reference's tests may get lost.

use std::collections::BTreeMap;
use std::path::Path;

/// In the order of the reference's suites.
const NAMES: [&str; 87] = [
    "test_box_service_without_explicit_client_initializes_internal_connector",
    "test_true_for_stdio_connector",
    "test_false_for_websocket_connector_via_endpoint",
    "test_false_for_websocket_connector_in_docker",
    "test_false_when_client_injected_without_connector",
    "test_explicit_override_wins",
    "test_box_service_get_sessions_delegates_to_client",
    "test_box_service_dispose_delegates_to_internal_connector",
    "test_box_service_dispose_schedules_shutdown_on_event_loop",
    "test_box_runtime_reuses_request_session",
    "test_box_service_defaults_session_id_from_query",
    "test_box_service_session_id_uses_query_attributes_without_variables",
    "test_box_service_session_id_falls_back_to_query_id_for_synthetic_queries",
    "test_box_service_forced_global_scope_overrides_pipeline_template",
    "test_box_service_forced_template_ignores_pipeline_config",
    "test_box_service_empty_forced_template_respects_pipeline_config",
    "test_box_service_fails_closed_when_backend_unavailable",
    "test_box_service_allows_host_mount_under_configured_root",
    "test_box_service_uses_default_workspace_when_host_path_omitted",
    "test_box_service_creates_default_workspace_on_initialize",
    "test_box_service_derives_workspace_and_allowed_root_from_host_root",
    "test_box_service_rejects_host_mount_outside_allowed_roots",
    "test_box_runtime_rejects_host_mount_conflict_in_same_session",
    "test_box_runtime_rejects_resource_limit_conflict_in_same_session",
    "test_truncate_short_output_unchanged",
    "test_truncate_preserves_head_and_tail",
    "test_truncate_at_exact_limit_not_truncated",
    "test_truncate_stderr_independently",
    "test_profile_default_provides_defaults",
    "test_profile_unlocked_field_can_be_overridden",
    "test_profile_locked_field_cannot_be_overridden",
    "test_profile_timeout_clamped_to_max",
    "test_profile_timeout_clamped_for_coercible_inputs",
    "test_unknown_profile_raises_error",
    "test_builtin_profiles_are_consistent",
    "test_profile_default_applies_resource_limits",
    "test_box_service_applies_workspace_quota_from_config",
    "test_box_service_rejects_execution_when_workspace_already_exceeds_quota",
    "test_box_service_rejects_and_cleans_up_when_execution_exceeds_workspace_quota",
    "test_profile_offline_readonly_locks_read_only_rootfs",
    "test_profile_network_extended_has_relaxed_limits",
    "test_box_spec_validates_resource_limits",
    "test_runtime_get_status_reports_backend_and_sessions",
    "test_runtime_get_sessions_returns_session_info",
    "test_runtime_get_backend_info_when_no_backend",
    "test_service_records_errors_on_failure",
    "test_service_error_ring_buffer_capped",
    "test_service_get_status_aggregates_runtime_and_profile",
    "test_rpc_client_execute",
    "test_rpc_client_get_sessions",
    "test_rpc_client_get_status",
    "test_rpc_client_get_backend_info",
    "test_rpc_client_delete_session",
    "test_rpc_client_delete_session_raises_not_found",
    "test_rpc_client_create_session",
    "test_rpc_client_exec_raises_conflict_error",
    "test_none_mode_is_valid_enum",
    "test_spec_with_none_mode_skips_workdir_check",
    "test_spec_with_rw_mode_requires_workspace_workdir",
    "test_spec_with_ro_mode_requires_workspace_workdir",
    "test_spec_with_custom_mount_path_allows_matching_workdir",
    "test_spec_with_custom_mount_path_rejects_outside_workdir",
    "test_initialize_skips_connector_when_disabled",
    "test_get_status_reports_disabled",
    "test_get_status_distinguishes_enabled_but_unavailable",
    "test_get_status_downgrades_available_when_backend_dead",
    "test_get_status_keeps_available_true_when_backend_ok",
    "test_disconnect_callback_is_no_op_when_disabled",
    "test_skips_skill_with_missing_package_root",
    "test_trusts_box_paths_when_filesystem_not_shared",
    "test_skips_skill_with_empty_package_root",
    "test_empty_package_root_skipped_even_when_not_shared",
    "test_returns_empty_when_no_skill_manager",
    "test_exec_simple_command",
    "test_session_persists_files",
    "test_timeout_kills_command",
    "test_offline_cannot_reach_network",
    "test_backend_unavailable_returns_error",
    "test_full_service_to_remote_runtime",
    "test_managed_process_start_and_query",
    "test_ws_stdio_attach_echo",
    "test_delete_session_cleans_up",
    "test_get_session_returns_details",
    "test_process_exit_detected",
    "test_orphan_cleanup_preserves_own_containers",
    "test_runtime_start_managed_process_tracks_status",
    "test_runtime_does_not_reap_session_with_running_managed_process",
];

/// Relative to this directory.
const IN_REAL_BOXES: &str = "../../../cli/tests/it/host_seeds.rs";

/// Names of functions right below a `#[test]` or `#[tokio::test]`, in the modules that `main.rs` has and in the one
/// of the binary's own tests that runs in real boxes.
fn tests_there() -> BTreeMap<String, usize> {
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it");
    let main = std::fs::read_to_string(place.join("main.rs")).unwrap();
    let modules = main.lines().filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';'));
    let files = modules.map(|module| place.join(format!("{module}.rs")));
    let mut found = BTreeMap::new();
    for file in files.chain([place.join(IN_REAL_BOXES)]) {
        let text = std::fs::read_to_string(file).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        for pair in lines.windows(2) {
            let is_test = pair[0] == "#[test]" || pair[0].starts_with("#[tokio::test");
            let name = pair[1].trim_start_matches("async ").strip_prefix("fn ");
            if let (true, Some((name, _))) = (is_test, name.and_then(|rest| rest.split_once('('))) {
                *found.entry(name.to_owned()).or_default() += 1;
            }
        }
    }
    found
}

#[test]
fn every_test_of_the_reference_is_here_once() {
    let found = tests_there();
    let missing: Vec<&&str> = NAMES.iter().filter(|name| found.get(**name) != Some(&1)).collect();
    assert!(missing.is_empty(), "missing or twice: {missing:#?}");
    let others: Vec<&String> =
        found.keys().filter(|name| name.starts_with("test_") && !NAMES.contains(&name.as_str())).collect();
    assert!(others.is_empty(), "not of the reference: {others:#?}");
    let distinct: std::collections::BTreeSet<_> = NAMES.iter().collect();
    assert_eq!(distinct.len(), NAMES.len());
}

/// The faults of the reference's host by their marks: security, service, MCP paths, tools.
const FAULTS: [(char, u32); 4] = [('s', 12), ('b', 13), ('m', 3), ('f', 11)];

/// All text of the crate's tests, those beside the code included.
fn test_text(directory: &Path, text: &mut String) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            test_text(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let content = std::fs::read_to_string(&path).unwrap();
            let whole = path.to_str().unwrap().contains("tests");
            let tests = if whole { 0 } else { content.find("#[cfg(test)]").unwrap_or(content.len()) };
            text.push_str(&content[tests..]);
        }
    }
}

#[test]
fn every_fault_of_the_reference_has_a_test_that_names_it() {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut text = String::new();
    test_text(&crate_dir.join("src"), &mut text);
    test_text(&crate_dir.join("tests"), &mut text);
    text.push_str(&std::fs::read_to_string(crate_dir.join("tests/it").join(IN_REAL_BOXES)).unwrap());
    let names: std::collections::BTreeSet<String> =
        text.split(|c: char| !c.is_alphanumeric()).map(str::to_lowercase).collect();
    let marks =
        FAULTS.iter().flat_map(|(part, last)| (1..=*last).map(move |number| format!("{part}{number}")));
    let missing: Vec<String> = marks.filter(|mark| !names.contains(mark)).collect();
    assert!(missing.is_empty(), "no test names {missing:?}");
}
