//! The network of sessions: whose policy holds, who may ask for another, and what changes on a live box.

use std::sync::Arc;

use sandcrate_backend::{Isolation, Network, NetworkReport, SessionId};
use sandcrate_protocol::network::{Counters, Denial, DenialKind, NetworkRequest};
use sandcrate_protocol::{ErrorKind, NetworkMode};
use sandcrate_runtime::{HostNetwork, OnNetwork, OnTimeout, RuntimeError, SessionOptions};

use crate::bench::Bench;

fn asking(text: &str) -> SessionOptions {
    SessionOptions { network: Some(text.parse().unwrap()), ..SessionOptions::default() }
}

fn request(text: &str) -> NetworkRequest {
    text.parse().unwrap()
}

fn isolation(bench: &Bench, id: &str) -> Isolation {
    match bench.backend.spec(&SessionId::new(id).unwrap()).unwrap().network {
        Network::Isolated(isolation) => *isolation,
        other => panic!("not isolated: {other:?}"),
    }
}

async fn create(bench: &Bench, id: &str, network: &str) -> Result<(), RuntimeError> {
    bench.runtime.create_session(&Bench::spec(id, ""), asking(network)).await.map(drop)
}

#[tokio::test(start_paused = true)]
async fn on_is_what_the_operator_says_with_grants_and_limits() {
    let bench = Bench::networked(|config| {
        config.network.policy = "public, deny ads.example".to_owned().try_into().unwrap();
        config.network.grants.allow = vec!["10.1.0.0/16".parse().unwrap()];
        config.network.limits.connections = 7;
    })
    .await;
    // LangBot's request can say no more than the mode.
    let mut spec = Bench::spec("s", "echo hi");
    spec.network = NetworkMode::On;
    bench.runtime.exec(&spec, OnTimeout::EndSession).await.unwrap();
    let got = isolation(&bench, "s");
    assert_eq!(got.policy.to_string(), "public, deny ads.example");
    assert_eq!((got.grants.allow.len(), got.limits.connections), (1, 7));
    create(&bench, "less", "on, deny more.example").await.unwrap();
    assert_eq!(isolation(&bench, "less").policy.to_string(), "public, deny ads.example, deny more.example");
    let view = bench.runtime.session("less").unwrap();
    assert_eq!(
        (view.info.network, view.network.to_string().as_str()),
        (NetworkMode::On, "on, deny more.example")
    );
    assert_eq!(bench.runtime.meaning(&view.network), "public, deny ads.example, deny more.example");
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_enforced_makes_no_box() {
    let bench = Bench::with(|config| config.network.host = HostNetwork::Allow).await;
    for network in ["on", "public", "allow a.example", "host"] {
        let error = create(&bench, "s", network).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{network}");
        assert!(error.to_string().contains("not available"), "{network}: {error}");
    }
    assert!(bench.runtime.sessions().is_empty() && bench.backend.calls().start == 0);
    create(&bench, "s", "off").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_request_may_have_a_policy_within_the_grants() {
    let bench = Bench::networked(|config| {
        config.network.grants.allow = vec!["10.1.0.0/16".parse().unwrap()];
    })
    .await;
    create(&bench, "s", "allow a.example:443").await.unwrap();
    assert_eq!(isolation(&bench, "s").policy.to_string(), "allow a.example:443");
    create(&bench, "s", "allow a.example:443").await.unwrap();
    let error = create(&bench, "s", "allow b.example").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SessionConflict);
    assert_eq!(error.to_string(), "Box session s already exists with network=allow a.example:443");
    create(&bench, "granted", "allow 10.1.2.3:5432").await.unwrap();
    let error = create(&bench, "not", "allow 10.2.0.1").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(error.to_string().contains("network.allow"), "{error}");
    let error = create(&bench, "not", "host").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(error.to_string().contains("[network] host"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_locked_network_is_on_or_off() {
    let bench = Bench::networked(|config| {
        config.network.locked = true;
        config.network.host = HostNetwork::Allow;
    })
    .await;
    for network in ["public", "allow a.example", "host"] {
        let error = create(&bench, "s", network).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{network}");
        assert!(error.to_string().contains("locked"), "{error}");
    }
    create(&bench, "s", "on").await.unwrap();
    let error = bench.runtime.set_network("s", request("public")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    bench.runtime.set_network("s", request("off")).await.unwrap();
    assert!(isolation(&bench, "s").policy.is_off());
}

#[tokio::test(start_paused = true)]
async fn a_live_network_changes_in_place_and_requests_still_fit() {
    let bench = Bench::networked(|_| {}).await;
    let mut spec = Bench::spec("s", "echo hi");
    spec.network = NetworkMode::On;
    bench.runtime.exec(&spec, OnTimeout::EndSession).await.unwrap();
    let before = bench.runtime.session("s").unwrap().info.backend_session_id;
    let view = bench.runtime.set_network("s", request("allow a.example")).await.unwrap();
    assert_eq!(view.network, request("allow a.example"));
    assert_eq!(isolation(&bench, "s").policy.to_string(), "allow a.example");
    // LangBot goes on asking for what it always asks for.
    bench.runtime.exec(&spec, OnTimeout::EndSession).await.unwrap();
    assert_eq!(bench.runtime.session("s").unwrap().info.backend_session_id, before, "the same box");
    // A box that dies comes back with what it was changed to.
    bench.backend.kill_box(&SessionId::new("s").unwrap(), "test");
    bench.runtime.exec(&spec, OnTimeout::EndSession).await.unwrap();
    assert_eq!(isolation(&bench, "s").policy.to_string(), "allow a.example");
}

#[tokio::test(start_paused = true)]
async fn another_kind_of_network_needs_another_box() {
    let bench = Bench::networked(|_| {}).await;
    create(&bench, "s", "off").await.unwrap();
    let running = sandcrate_backend::ExecRequest::shell("hang");
    let command = bench.runtime.start_command("s", running).await.unwrap();
    let error = bench.runtime.set_network("s", request("on")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SessionConflict);
    assert_eq!(bench.runtime.session("s").unwrap().network, NetworkRequest::Off, "as it was");
    bench.runtime.control_command("s", &command, sandcrate_backend::ExecControl::Kill).await.unwrap();
    let mut log = bench.runtime.follow_command("s", &command, None).unwrap();
    while log.next().await.is_some() {}
    bench.runtime.set_network("s", request("on")).await.unwrap();
    assert_eq!(isolation(&bench, "s").policy.to_string(), "public");
}

#[tokio::test]
async fn a_persistent_session_keeps_what_it_is_held_to() {
    let bench = Bench::networked(|_| {}).await;
    let state = Arc::clone(&bench.state);
    let mut spec = Bench::spec("s", "");
    spec.persistent = true;
    bench.runtime.create_session(&spec, asking("allow a.example")).await.unwrap();
    bench.runtime.set_network("s", request("allow b.example")).await.unwrap();
    bench.runtime.shutdown(std::time::Duration::ZERO).await;
    drop(bench);
    let bench = Bench::networked_again(Arc::clone(&state), |_| {}).await;
    bench.runtime.create_session(&spec, asking("allow a.example")).await.unwrap();
    assert_eq!(isolation(&bench, "s").policy.to_string(), "allow b.example");
    bench.runtime.shutdown(std::time::Duration::ZERO).await;
    drop(bench);
    // The lock came later: the policy it was made with is no longer to be had, so there is no box.
    let bench = Bench::networked_again(state, |config| config.network.locked = true).await;
    let error = bench
        .runtime
        .exec_in("s", sandcrate_backend::ExecRequest::shell("echo hi"), Default::default())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
}

#[tokio::test(start_paused = true)]
async fn the_hosts_network_is_had_by_its_name_or_as_the_operators_on() {
    let able = |config: &mut sandcrate_runtime::RuntimeConfig| {
        config.network.host = HostNetwork::Allow;
        config.network.policy = OnNetwork::Host;
    };
    let bench = Bench::networked(able).await;
    // The fake cannot share it, so what was asked for shows in the refusal.
    for network in ["on", "host"] {
        let error = create(&bench, "s", network).await.unwrap_err();
        assert!(error.to_string().contains("network `host` is not available"), "{error}");
    }
    let error = create(&bench, "s", "on, deny a.example").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
}

#[tokio::test(start_paused = true)]
async fn figures_reach_the_metrics_once() {
    let bench = Bench::networked(|_| {}).await;
    create(&bench, "s", "on").await.unwrap();
    let id = SessionId::new("s").unwrap();
    let mut denial =
        Denial::new(DenialKind::Connect, "tcp 10.0.0.1:80", "never: private", "ask the operator");
    denial.count = 3;
    let report = NetworkReport {
        counters: Counters {
            bytes_sent: 10,
            bytes_received: 20,
            connections_opened: 2,
            connections_now: 1,
            denied: 3,
            ..Counters::default()
        },
        denials: vec![denial],
        lost: 0,
    };
    bench.backend.set_report(&id, report.clone());
    assert_eq!(bench.runtime.network_report("s").await.unwrap(), Some(report));
    bench.runtime.refresh_metrics().await;
    bench.runtime.refresh_metrics().await;
    let text = bench.runtime.metrics().render();
    for line in [
        "sandcrate_denials_total{kind=\"connect\"} 3",
        "sandcrate_network_sent_bytes_total 10",
        "sandcrate_network_received_bytes_total 20",
        "sandcrate_network_connections_total 2",
        "sandcrate_network_connections_open 1",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    create(&bench, "off", "off").await.unwrap();
    assert_eq!(bench.runtime.network_report("off").await.unwrap(), None);
    bench.runtime.delete_session("s").await.unwrap();
    assert!(bench.runtime.metrics().render().contains("sandcrate_network_sent_bytes_total 10"));
}
