//! The helper dies: boxes lose their network, say so, and get it back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use sandcrate_backend::{Backend, ExecRequest};
use sandcrate_protocol::network::DenialKind;

use crate::internet::{ECHO, WEB, WEB6, turned_away};
use crate::stage::{Stage, Test, eventually, helpers, isolation, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test!(a_killed_helper_is_replaced),
        test!(idle_connections_end_with_their_helper),
        test!(a_policy_set_meanwhile_is_kept),
        test!(a_stopped_helper_is_replaced),
    ]
}

fn kill(signal: Signal) -> i32 {
    let helper = helpers();
    assert_eq!(helper.len(), 1, "{helper:?}");
    kill_process(Pid::from_raw(helper[0]).unwrap(), signal).unwrap();
    helper[0]
}

async fn replaced(old: i32) {
    eventually("another helper", || helpers().first().is_some_and(|new| *new != old)).await;
}

async fn a_killed_helper_is_replaced(stage: Arc<Stage>) {
    let boxes = [stage.open_box("public").await, stage.open_box("public").await];
    assert_eq!(boxes[0].connect(WEB, ECHO).await.0, "ok");
    let before = boxes[0].report().await.counters;
    let script = format!(
        "/usr/bin/python3 -u -c \"import socket\ns=socket.create_connection(('{WEB}',{ECHO}))\nprint('up')\ns.settimeout(20)\ntry:\n while True:\n  s.sendall(b'x')\n  if not s.recv(1): break\n  import time;time.sleep(0.05)\nexcept OSError as e: print(type(e).__name__)\""
    );
    let mut running = boxes[0].backend.exec(&boxes[0].id, ExecRequest::shell(script)).await.unwrap();
    let _up = running.next().await;
    let old = kill(Signal::KILL);
    let ended = tokio::time::timeout(Duration::from_secs(20), running.collect(1 << 16)).await;
    let ended = ended.expect("a connection that was open ends").unwrap();
    let text = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert!(text.contains("ConnectionResetError"), "{text}");
    assert!(
        ended.exit.denials.iter().any(|denial| denial.kind == DenialKind::Outage),
        "the command is told: {:?}",
        ended.exit.denials
    );
    replaced(old).await;
    for test_box in &boxes {
        let report = test_box.report().await;
        let told = report.denials.iter().filter(|denial| denial.kind == DenialKind::Outage).count();
        assert_eq!(told, 1, "each session is told: {report:?}");
        assert_eq!(test_box.connect(WEB, ECHO).await.0, "ok");
        assert!(turned_away(&test_box.connect("10.9.9.9", 80).await.0), "the policy holds again");
    }
    let after = boxes[0].report().await.counters;
    assert!(after.connections_opened > before.connections_opened, "{before:?} {after:?}");
    for test_box in boxes {
        test_box.stop().await;
    }
}

/// Neither side has anything to send, so nobody would notice.
async fn idle_connections_end_with_their_helper(stage: Arc<Stage>) {
    let test_box = stage.open_box("public").await;
    for address in [WEB, WEB6] {
        let script = format!(
            "/usr/bin/python3 -u -c \"import socket\ns=socket.create_connection(('{address}',{ECHO}))\nprint('up')\ntry: s.recv(1)\nexcept OSError as e: print(type(e).__name__)\""
        );
        let mut request = ExecRequest::shell(script);
        request.timeout = Some(Duration::from_secs(30));
        let mut running = test_box.backend.exec(&test_box.id, request).await.unwrap();
        let _up = running.next().await;
        let old = kill(Signal::KILL);
        let ended = running.collect(1 << 16).await.unwrap();
        let text = String::from_utf8_lossy(&ended.stdout).into_owned();
        assert!(text.contains("ConnectionResetError"), "{address}: {text} {ended:?}");
        replaced(old).await;
    }
    test_box.stop().await;
}

async fn a_policy_set_meanwhile_is_kept(stage: Arc<Stage>) {
    let test_box = stage.open_box("public").await;
    kill(Signal::KILL);
    // Whichever of the two comes first.
    test_box.backend.set_network(&test_box.id, isolation("public, deny 203.0.113.10")).await.unwrap();
    assert!(turned_away(&test_box.connect(WEB, ECHO).await.0));
    kill(Signal::KILL);
    let fresh = stage.open_box("public").await;
    assert_eq!(fresh.connect(WEB, ECHO).await.0, "ok");
    assert!(turned_away(&test_box.connect(WEB, ECHO).await.0), "the next helper has the policy too");
    fresh.stop().await;
    test_box.stop().await;
}

/// One that does not answer is as good as dead: commands end in time, and it is replaced.
async fn a_stopped_helper_is_replaced(stage: Arc<Stage>) {
    let test_box = stage.open_box("public").await;
    let old = kill(Signal::STOP);
    let started = Instant::now();
    let ran = test_box.run("echo quick").await;
    assert!(ran.ok && started.elapsed() < Duration::from_secs(3), "{:?} {ran:?}", started.elapsed());
    let end = Instant::now() + Duration::from_secs(30);
    while helpers().first().is_none_or(|new| *new == old) {
        assert!(Instant::now() < end, "it is not replaced");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(test_box.connect(WEB, ECHO).await.0, "ok");
    test_box.stop().await;
}
