use sandcrate_jail::identity::IdMapping;
use sandcrate_jail::{JailSpec, NetworkMode, RequestedMount, RootMode};

use super::*;

fn plan(mounts: Vec<RequestedMount>) -> Plan {
    Plan::new(&JailSpec {
        image: None,
        mapping: IdMapping::Range,
        network: NetworkMode::Off,
        interface: None,
        root: RootMode::ReadOnly,
        memory_bytes: 512 << 20,
        pids: 64,
        pids_counted: true,
        tmp_bytes: 8 << 20,
        open_files: 200,
        data_bytes: None,
        mounts,
        workspace: "/workspace".to_owned(),
    })
    .unwrap()
}

fn around() -> Surroundings {
    Surroundings {
        hidden: vec![("keys".to_owned(), NodeKind::File), ("acpi".to_owned(), NodeKind::Directory)],
        policy: "POLICY a {\n  ALLOW { SYSCALL[0] }\n}\nUSE a DEFAULT ERRNO(38)\n".to_owned(),
        most_open_files: 1024,
        most_processes: 100,
    }
}

fn mount(target: &str, access: Access, kind: NodeKind) -> RequestedMount {
    RequestedMount { target: target.to_owned(), access, kind }
}

fn lines<'a>(text: &'a str, key: &str) -> Vec<&'a str> {
    text.lines().filter(|line| line.starts_with(key)).collect()
}

/// P2: nsjail's defaults end a process after 600 s, of the clock and of the CPU.
#[test]
fn no_limit_of_nsjails_own_is_left() {
    let written = write(&plan(Vec::new()), &around());
    for text in [&written.session, &written.command] {
        assert_eq!(lines(text, "time_limit"), ["time_limit: 0"]);
        for line in
            ["rlimit_cpu_type: HARD", "rlimit_as_type: HARD", "rlimit_fsize_type: HARD", "nice_level: 0"]
        {
            assert!(text.contains(line), "{line} in {text}");
        }
        assert!(text.contains("rlimit_nofile: 200\n") && text.contains("rlimit_core: 0\n"), "{text}");
        assert!(text.contains("rlimit_nproc: 100\n"), "the hard limit stands above the session's: {text}");
    }
}

/// S6, S13: the session has every namespace of its own and ids of its own; its commands join, and take one id.
#[test]
fn the_session_unshares_everything_and_its_commands_nothing() {
    let written = write(&plan(Vec::new()), &around());
    assert_eq!(lines(&written.session, "clone_new").len(), 7);
    assert!(lines(&written.session, "clone_new").iter().all(|line| line.ends_with("true")));
    assert!(lines(&written.command, "clone_new").iter().all(|line| line.ends_with("false")));
    let maps = lines(&written.session, "uidmap");
    assert_eq!(
        maps,
        [
            "uidmap: { inside_id: \"65533\" outside_id: \"1879113725\" count: 1 }",
            "uidmap: { inside_id: \"0\" outside_id: \"1879048192\" count: 65533 }",
            "uidmap: { inside_id: \"65534\" outside_id: \"1879113726\" count: 2 }",
        ]
    );
    assert_eq!(
        lines(&written.command, "uidmap"),
        ["uidmap: { inside_id: \"1000\" outside_id: \"1000\" count: 1 }"]
    );
    assert!(!written.session.contains("outside_id: \"0\""), "host uid 0 stands behind no id");
}

/// S4: a colon, a quote or a newline in a target is a character and nothing else.
#[test]
fn targets_are_quoted_and_sources_are_places_of_ours() {
    let odd = ["/etc:/x", "/a\"b", "/a\\b", "/a b", "/\u{fc}"];
    let mounts = odd.iter().map(|target| mount(target, Access::ReadWrite, NodeKind::Directory)).collect();
    let written = write(&plan(mounts), &around());
    let mounts = lines(&written.session, "mount {");
    for wanted in [
        "src: \"/tmp/sources/0\" dst: \"/etc:/x\" is_bind: true rw: true",
        "src: \"/tmp/sources/1\" dst: \"/a\\\"b\"",
        "src: \"/tmp/sources/2\" dst: \"/a\\\\b\"",
        "src: \"/tmp/sources/4\" dst: \"/\\303\\274\"",
    ] {
        assert!(mounts.iter().any(|line| line.contains(wanted)), "{wanted} in {mounts:#?}");
    }
    assert!(!written.command.contains("mount"), "a command's nsjail mounts nothing");
}

#[test]
fn mounts_come_in_an_order_that_hides_none() {
    let mounts = vec![
        mount("/tmp/deep", Access::ReadOnly, NodeKind::Directory),
        mount("/workspace/settings", Access::ReadOnly, NodeKind::File),
    ];
    let written = write(&plan(mounts), &around());
    let mounts = lines(&written.session, "mount {");
    let place = |target: &str| {
        let wanted = format!("dst: \"{target}\" ");
        mounts
            .iter()
            .position(|line| line.contains(&wanted))
            .unwrap_or_else(|| panic!("{target} in {mounts:#?}"))
    };
    let order =
        ["/", "/proc", "/proc/sys", "/proc/keys", "/dev/pts", "/tmp", "/workspace", "/workspace/settings"];
    assert!(order.windows(2).all(|pair| place(pair[0]) < place(pair[1])), "{mounts:#?}");
    assert!(place("/tmp") < place("/tmp/deep"));
    assert!(mounts[place("/workspace/settings")].contains("is_dir: false"));
    assert!(mounts[place("/")].contains("rw: false") && mounts[place("/proc/keys")].contains("/tmp/blank"));
    assert!(mounts[place("/tmp")].contains("size=8388608,"), "{mounts:#?}");
}

#[test]
fn the_policy_is_in_both() {
    let written = write(&plan(Vec::new()), &around());
    for text in [&written.session, &written.command] {
        assert_eq!(lines(text, "seccomp_string").len(), 4);
        assert!(text.contains("seccomp_string: \"  ALLOW { SYSCALL[0] }\"\n"));
    }
}
