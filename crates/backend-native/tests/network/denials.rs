//! What the owner of a session learns.

use std::sync::Arc;
use std::time::Duration;

use sandcrate_backend::{Backend, ExecEvent, ExecRequest, Isolation};
use sandcrate_protocol::network::{DenialKind, Limits};

use crate::internet::{ECHO, WEB};
use crate::stage::{Stage, Test, isolation, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test!(a_denial_just_before_the_end_is_in_the_result),
        test!(commands_at_the_same_time_hear_of_it),
        test!(limits_are_denials_and_can_be_changed),
        test!(the_session_keeps_the_latest),
        test!(the_hosts_new_resolver_is_asked),
    ]
}

/// The datagram leaves, the program ends at once: the refusal is still to be read from the device.
async fn a_denial_just_before_the_end_is_in_the_result(stage: Arc<Stage>) {
    let test_box = stage.open_box("public").await;
    for number in 0..20 {
        let ran = test_box.run(&format!("echo x > /dev/udp/10.9.9.9/{}", 1000 + number)).await;
        let ran = if ran.text.contains("No such file") || !ran.ok {
            // dash has no such device.
            test_box.run(&format!("bash -c 'echo x > /dev/udp/10.9.9.9/{}'", 1000 + number)).await
        } else {
            ran
        };
        assert_eq!(ran.denials.len(), 1, "{number}: {ran:?}");
        assert_eq!(ran.denials[0].kind, DenialKind::Datagram, "{ran:?}");
    }
    test_box.stop().await;
}

async fn commands_at_the_same_time_hear_of_it(stage: Arc<Stage>) {
    let test_box = stage.open_box("public").await;
    let request = ExecRequest::shell("echo here; sleep 20");
    let mut waiting = test_box.backend.exec(&test_box.id, request).await.unwrap();
    assert!(matches!(waiting.next().await, Some(ExecEvent::Output(..))));
    test_box.connect("10.9.9.9", 443).await;
    match tokio::time::timeout(Duration::from_secs(5), waiting.next()).await {
        Ok(Some(ExecEvent::Denied(denial))) => {
            assert!(denial.target.starts_with("tcp 10.9.9.9:443"), "{denial:?}")
        }
        other => panic!("{other:?}"),
    }
    drop(waiting);
    test_box.stop().await;
}

async fn limits_are_denials_and_can_be_changed(stage: Arc<Stage>) {
    let limits = Limits { connections: 2, ..Limits::default() };
    let test_box = stage.open_with(Isolation { limits, ..isolation("public") }, |_| {}).await;
    let script = format!(
        "import socket,errno\nk=[]\nfor n in range(4):\n s=socket.socket();s.settimeout(3)\n try: s.connect(('{WEB}',{ECHO}));k.append(s)\n except OSError as e: pass\nprint(len(k))"
    );
    let ran = test_box.python(&script).await;
    assert_eq!(ran.text, "2", "{ran:?}");
    assert!(ran.denials.iter().any(|denial| denial.kind == DenialKind::Limit), "{ran:?}");
    test_box.backend.set_network(&test_box.id, isolation("public")).await.unwrap();
    let ran = test_box.python(&script).await;
    assert_eq!((ran.text.as_str(), ran.denials.len()), ("4", 0), "{ran:?}");
    test_box.stop().await;
}

async fn the_session_keeps_the_latest(stage: Arc<Stage>) {
    let test_box = stage.open_box("public").await;
    let ran = test_box
        .python("import socket\nfor n in range(300):\n s=socket.socket()\n try: s.connect(('10.9.9.9',1000+n))\n except OSError: pass")
        .await;
    assert!(ran.ok, "{ran:?}");
    assert_eq!(ran.denials.len(), 256);
    let report = test_box.report().await;
    assert_eq!((report.denials.len(), report.lost, report.counters.denied), (256, 44, 300));
    assert!(report.denials[255].target.starts_with("tcp 10.9.9.9:1299"), "{:?}", report.denials[255]);
    test_box.stop().await;
}

/// resolv.conf of the host is a file of the world: writing another name server into it is enough.
async fn the_hosts_new_resolver_is_asked(stage: Arc<Stage>) {
    let test_box = stage.open_box("public").await;
    let lookup = "/usr/bin/python3 -c \"import socket;print(socket.gethostbyname('other.example'))\"";
    assert_eq!(test_box.must(lookup).await, "203.0.113.11");
    let before = std::fs::read("/etc/resolv.conf").unwrap();
    // Nobody answers there.
    std::fs::write("/etc/resolv.conf", format!("nameserver {WEB}9\n")).unwrap();
    std::fs::write("/etc/resolv.conf", "nameserver 203.0.113.11\n").unwrap();
    let end = std::time::Instant::now() + Duration::from_secs(20);
    while test_box.run(&format!("timeout 1 {lookup}")).await.ok {
        assert!(std::time::Instant::now() < end, "the old resolver is still asked");
    }
    std::fs::write("/etc/resolv.conf", before).unwrap();
    while !test_box.run(&format!("timeout 2 {lookup}")).await.ok {
        assert!(std::time::Instant::now() < end, "the resolver does not come back");
    }
    test_box.stop().await;
}
