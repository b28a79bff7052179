//! What the helper has given up, as the kernel says.

use std::fs;
use std::sync::Arc;

use sandcrate_protocol::Control;

use crate::stage::{Stage, Test, helpers, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![test!(the_helper_has_no_privileges_and_no_files), test!(the_record_names_policy_and_mechanism)]
}

async fn the_helper_has_no_privileges_and_no_files(stage: Arc<Stage>) {
    let test_box = stage.open_box("public").await;
    let helper = helpers();
    assert_eq!(helper.len(), 1, "one helper serves all boxes: {helper:?}");
    let pid = helper[0];
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let field = |name: &str| {
        status
            .lines()
            .find_map(|line| line.strip_prefix(&format!("{name}:")))
            .unwrap_or_default()
            .trim()
            .to_owned()
    };
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(field(set), "0000000000000000", "{set}");
    }
    assert_eq!((field("NoNewPrivs").as_str(), field("Seccomp").as_str()), ("1", "2"));
    if rustix::process::geteuid().is_root() {
        let id = sandcrate_jail::identity::HELPER_ID.to_string();
        assert_eq!(field("Uid").split('\t').collect::<Vec<_>>(), [id.as_str(); 4]);
        assert_eq!(field("Gid").split('\t').collect::<Vec<_>>(), [id.as_str(); 4]);
        assert_eq!(field("Groups"), "");
        // Undumpable, so only root may look closer.
        let root = fs::read_dir(format!("/proc/{pid}/root")).unwrap().count();
        assert_eq!(root, 0, "the root is empty");
        let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap();
        assert_eq!(mounts.lines().count(), 1, "{mounts}");
        assert!(mounts.contains(" ro,"), "{mounts}");
        for entry in fs::read_dir(format!("/proc/{pid}/fd")).unwrap() {
            let entry = entry.unwrap();
            let target = fs::read_link(entry.path()).unwrap().to_string_lossy().into_owned();
            let number = entry.file_name().to_string_lossy().into_owned();
            let about = fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")).unwrap();
            let is_device = about.contains("iff:\ttun0");
            let known = ["/dev/null", "socket:", "anon_inode:[eventpoll]"];
            assert!(is_device || known.iter().any(|known| target.starts_with(known)), "{target}: {about}");
        }
    } else {
        assert!(fs::read_dir(format!("/proc/{pid}/fd")).is_err(), "undumpable");
    }
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap_or_default();
    if !limits.is_empty() {
        let line = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
        assert!(line.contains(" 0 "), "{line}");
    }
    test_box.stop().await;
}

async fn the_record_names_policy_and_mechanism(stage: Arc<Stage>) {
    let test_box = stage.open_box("allow web.example:443").await;
    let finding = test_box.info.enforcement.get(Control::Network).unwrap();
    for word in ["allow web.example:443", "helper", "seccomp", "empty root"] {
        assert!(finding.by.contains(word), "{}", finding.by);
    }
    test_box.stop().await;
}
