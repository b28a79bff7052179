//! A thousand networks one after another, two hundred at once: nothing is left in the daemon or the helper.

use std::fs;
use std::sync::Arc;

use sandcrate_backend::Backend;

use crate::internet::{ECHO, WEB};
use crate::stage::{Stage, Test, helpers, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![test!(a_thousand_boxes_leave_nothing), test!(two_hundred_boxes_at_once)]
}

/// Descriptors and resident memory in KiB.
#[derive(Debug, Clone, Copy)]
struct Size {
    fds: usize,
    kib: u64,
}

fn size(pid: u32) -> Size {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let kib = kib.trim().trim_end_matches(" kB").parse().unwrap();
    // An ordinary user may not look into the undumpable helper; its memory tells of it too.
    let fds = fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
    Size { fds, kib }
}

fn sizes() -> [Size; 2] {
    let helper = helpers();
    assert_eq!(helper.len(), 1, "{helper:?}");
    [size(std::process::id()), size(u32::try_from(helper[0]).unwrap())]
}

#[track_caller]
fn assert_flat(what: &str, before: [Size; 2], after: [Size; 2]) {
    for (who, before, after) in [("daemon", before[0], after[0]), ("helper", before[1], after[1])] {
        println!("{what}: {who} {before:?} -> {after:?}");
        assert!(after.fds <= before.fds + 8, "{what}: {who}: {before:?} -> {after:?}");
        assert!(after.kib <= before.kib + 4096, "{what}: {who}: {before:?} -> {after:?}");
    }
}

async fn one(stage: &Stage, traffic: bool) {
    let test_box = stage.open_box("public").await;
    if traffic {
        let said = test_box
            .must(&format!("bash -c 'exec 3<>/dev/tcp/{WEB}/{ECHO}; echo hi >&3; read x <&3; echo $x'"))
            .await;
        assert_eq!(said, "hi");
    }
    test_box.stop().await;
}

async fn a_thousand_boxes_leave_nothing(stage: Arc<Stage>) {
    for _ in 0..30 {
        one(&stage, true).await;
    }
    let before = sizes();
    for number in 0..1000 {
        one(&stage, number % 10 == 0).await;
    }
    settle(&before).await;
    assert_flat("1000 one after another", before, sizes());
}

async fn two_hundred_boxes_at_once(stage: Arc<Stage>) {
    one(&stage, true).await;
    let mut before = sizes();
    for round in 0..2 {
        let mut boxes = Vec::new();
        for _ in 0..200 {
            boxes.push(stage.open_box("public").await);
        }
        let during = sizes();
        println!("200 at once: {during:?}");
        for test_box in boxes.iter().step_by(20) {
            assert_eq!(test_box.connect(WEB, ECHO).await.0, "ok");
        }
        for test_box in boxes {
            test_box.stop().await;
        }
        settle(&before).await;
        if round == 0 {
            // Tables that have grown stay so; it is the second round that must add nothing.
            before = sizes();
        }
    }
    assert_flat("200 at once", before, sizes());
    assert!(stage.backend.probe().await.is_ok());
}

/// Until devices are closed: the kernel takes its time for each.
async fn settle(before: &[Size; 2]) {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while sizes().iter().zip(before).any(|(now, before)| now.fds > before.fds + 8)
        && std::time::Instant::now() < end
    {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}
