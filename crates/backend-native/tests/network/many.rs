//! A thousand networks one after another, two hundred at once: nothing is left in the daemon or the helper.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

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
        assert!(after.fds <= before.fds, "{what}: {who}: {before:?} -> {after:?}");
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
    let before = quiet().await;
    for number in 0..1000 {
        one(&stage, number % 10 == 0).await;
    }
    assert_flat("1000 one after another", before, quiet().await);
}

async fn two_hundred_boxes_at_once(stage: Arc<Stage>) {
    one(&stage, true).await;
    let mut before = quiet().await;
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
        let after = quiet().await;
        if round == 0 {
            // Tables that have grown stay so; it is the second round that must add nothing.
            before = after;
        } else {
            assert_flat("200 at once", before, after);
        }
    }
    assert!(stage.backend.probe().await.is_ok());
}

/// Until nothing is under way in the daemon: no device of a box is open, its descriptors have stayed as many for a
/// while (boxes that wait to be used come and go), and the helper, where we may look into it, holds no device either.
async fn quiet() -> [Size; 2] {
    const ALIKE: u32 = 50;
    let begin = Instant::now();
    let (mut last, mut alike) = (sizes(), 0);
    loop {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let now = sizes();
        alike = if now[0].fds == last[0].fds && now[1].fds == last[1].fds { alike + 1 } else { 0 };
        last = now;
        let devices = devices();
        if devices == 0 && alike >= ALIKE {
            println!("quiet after {:?}", begin.elapsed());
            return now;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "still {devices} devices open: {now:?}");
    }
}

/// Devices of boxes that this process holds.
fn devices() -> usize {
    let all = fs::read_dir("/proc/self/fd").unwrap().flatten();
    all.filter(|entry| fs::read_link(entry.path()).is_ok_and(|target| target.ends_with("net/tun"))).count()
}
