//! Which box a caller gets.

use std::sync::Arc;

use sandcrate_host::{Query, Service};
use serde_json::{Value, json};

use crate::mock::MockClient;
use crate::support::{Bench, query, service};

fn over(config: &Value) -> Service {
    Service::builder().config(config).client(Arc::new(MockClient::default())).build().unwrap()
}

fn forced(template: &str) -> Value {
    json!({"system": {"limitation": {"force_box_session_id_template": template}}})
}

fn person(id: &str, template: Option<&str>) -> Query {
    Query {
        query_id: Some(7.into()),
        variables: [("launcher_type", "person"), ("launcher_id", id)]
            .map(|(name, value)| (name.to_owned(), json!(value)))
            .into(),
        session_template: template.map(str::to_owned),
        ..Query::default()
    }
}

#[tokio::test]
async fn test_box_service_defaults_session_id_from_query() {
    let bench = Bench::new().await;
    let service = bench.service(json!({})).await;
    let result =
        service.execute_tool(&json!({"command": "echo hi"}), &person("test_user", None)).await.unwrap();
    assert_eq!(result["session_id"], "person_test_user");
    assert_eq!(bench.runtime.sessions()[0].info.session_id, "person_test_user");
}

#[test]
fn test_box_service_session_id_uses_query_attributes_without_variables() {
    let query = Query {
        query_id: Some(7.into()),
        launcher_type: Some("group".to_owned()),
        launcher_id: Some(json!("room-1")),
        ..Query::default()
    };
    assert_eq!(over(&json!({})).session_id(&query).unwrap(), "group_room-1");
}

#[test]
fn test_box_service_session_id_falls_back_to_query_id_for_synthetic_queries() {
    assert_eq!(over(&json!({})).session_id(&query(7)).unwrap(), "query_7");
}

#[tokio::test]
async fn test_box_service_forced_global_scope_overrides_pipeline_template() {
    let bench = Bench::new().await;
    let service = service(bench.client(), &forced("{global}")).await;
    for caller in ["a", "b"] {
        let query = person(caller, Some("{launcher_type}_{launcher_id}"));
        let result = service.execute_tool(&json!({"command": "echo hi"}), &query).await.unwrap();
        assert_eq!(result["session_id"], "global");
    }
    assert_eq!(bench.backend.calls().start, 1, "one box for both");
}

#[test]
fn test_box_service_forced_template_ignores_pipeline_config() {
    let service = over(&forced(" {query_id} "));
    assert_eq!(service.session_id(&person("a", Some("{launcher_id}"))).unwrap(), "7");
}

#[test]
fn test_box_service_empty_forced_template_respects_pipeline_config() {
    for blank in ["", "   "] {
        let service = over(&forced(blank));
        assert_eq!(service.session_id(&person("a", Some("own_{launcher_id}"))).unwrap(), "own_a");
    }
    for absent in [json!({"system": null}), json!({"system": {"limitation": null}})] {
        assert_eq!(over(&absent).session_id(&query(7)).unwrap(), "query_7");
    }
}

#[test]
fn a_forced_template_can_change_and_a_bad_one_changes_nothing() {
    let service = over(&json!({}));
    service.force_session_template(Some("{global}")).unwrap();
    assert!(service.force_session_template(Some("{x.y}")).is_err());
    assert_eq!(service.session_id(&query(7)).unwrap(), "global");
    service.force_session_template(Some(" ")).unwrap();
    assert_eq!(service.session_id(&query(7)).unwrap(), "query_7");
}

/// S6: no configuration with more than names is taken, and no pipeline's.
#[test]
fn s6_templates_are_no_programs() {
    let error = Service::builder().config(&forced("{query_id:>999}")).build().unwrap_err();
    assert!(error.message.contains("{query_id:>999}"), "{error}");
    let error = over(&json!({})).session_id(&person("a", Some("{launcher_id.__class__}"))).unwrap_err();
    assert_eq!(error.class(), "BoxValidationError");
}
