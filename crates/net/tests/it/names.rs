//! Names: resolved, bound, shown; and policies that change.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use sandcrate_protocol::network::DenialKind;

use crate::internet::{ECHO, SERVER_FIRST, WEB, turned_away};
use crate::world::{TestBox, World};

fn lookup(test_box: &TestBox, name: &str) -> String {
    test_box.python(&format!(
        "import socket,time\nt=time.time()\ntry: r=sorted({{a[4][0] for a in socket.getaddrinfo('{name}',80)}})\nexcept OSError as e: r=e.args[1]\nassert time.time()-t<6\nprint(r)"
    ))
}

fn curl(test_box: &TestBox, arguments: &[&str]) -> (bool, String) {
    let all = [&["curl", "-sSk", "--noproxy", "*", "-m", "5"][..], arguments].concat();
    let output = test_box.run(&all);
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

pub(crate) fn names_are_resolved_and_bound(world: &World) {
    let mut test_box = world.open("allow *.example, allow web.example");
    assert_eq!(lookup(&test_box, "web.example"), "['2001:db8:f::10', '203.0.113.10']");
    assert!(lookup(&test_box, "nothing.example").contains("not known"));
    assert_eq!(test_box.denials(), []);
    assert!(lookup(&test_box, "data.exfiltrated.org").contains("not known"));
    let denials = test_box.denials();
    assert!(
        denials
            .iter()
            .any(|denial| denial.kind == DenialKind::Resolve && denial.target == "data.exfiltrated.org"),
        "{denials:?}"
    );
}

pub(crate) fn rebinding_is_refused(world: &World) {
    let mut test_box = world.open("public");
    for name in ["rebind.example", "meta.example", "loop.example", "own.example"] {
        let result = lookup(&test_box, name);
        assert!(!result.contains('['), "{name}: {result}");
        let denials = test_box.denials();
        assert!(
            denials
                .iter()
                .any(|denial| denial.kind == DenialKind::Resolve && denial.target.starts_with(name)),
            "{denials:?}"
        );
    }
}

pub(crate) fn the_shown_name_must_be_allowed(world: &World) {
    // Names stand for addresses that are reserved, so the operator grants the range; the list is of names.
    let mut test_box = world.open(&format!("allow web.example, allow alias.example:{SERVER_FIRST}"));
    assert!(curl(&test_box, &["https://web.example/"]).0);
    assert!(curl(&test_box, &["http://web.example/"]).1.contains("you asked web.example"));
    assert!(curl(&test_box, &["http://web.example:8080/"]).0, "any port, as long as the name is shown");
    assert_eq!(test_box.denials(), []);
    let lies: [&[&str]; 4] = [
        &["https://evil.example/", "--resolve", "evil.example:443:203.0.113.10"],
        &["http://web.example/", "-H", "Host: evil.example"],
        &["https://203.0.113.10/"],
        &["http://web.example/", "--http2-prior-knowledge"],
    ];
    for lie in lies {
        let (success, text) = curl(&test_box, lie);
        assert!(!success, "{lie:?}: {text}");
        let denials = test_box.denials();
        assert_eq!(denials.len(), 1, "{lie:?}: {denials:?}");
        assert_eq!(denials[0].kind, DenialKind::Name, "{denials:?}");
    }
    // Not asked for by name in this box: not bound.
    let mut other = world.open("allow web.example");
    assert!(turned_away(&other.connect(WEB, 80).0));
    assert!(other.denials()[0].hint.contains("connect by name"));
    // Protocols without a name: by a rule that states the port only.
    let talk = |name: &str, port: u16| {
        test_box.python(&format!(
            "import socket\ns=socket.create_connection(('{name}',{port}))\ns.settimeout(3)\ntry:\n s.sendall(b'SSH-2.0-x\\r\\n');r=s.recv(99)\n print('ok' if r else 'end')\nexcept OSError as e: print(type(e).__name__)"
        ))
    };
    assert_eq!(talk("alias.example", SERVER_FIRST), "ok");
    assert_eq!(talk("web.example", ECHO), "ConnectionResetError");
}

pub(crate) fn a_new_policy_holds_at_once(world: &World) {
    let mut test_box = world.open("public");
    let mut client = test_box.spawn(&[
        "python3", "-c",
        &format!("import socket,sys\ns=socket.create_connection(('{WEB}',{ECHO}))\nprint('up',flush=True)\ntry: s.recv(1);print('end')\nexcept OSError as e: print(type(e).__name__)"),
    ]);
    let mut lines = BufReader::new(client.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "up");
    test_box.set_policy("public, deny 203.0.113.10");
    assert_eq!(lines.next().unwrap().unwrap(), "ConnectionResetError");
    client.wait().unwrap();
    assert!(turned_away(&test_box.connect(WEB, ECHO).0));
    assert_eq!(test_box.denials()[0].rule, "deny 203.0.113.10");
    test_box.set_policy("off");
    assert!(lookup(&test_box, "web.example").contains("not known"));
    test_box.set_policy("public");
    assert_eq!(test_box.connect(WEB, ECHO).0, "ok");
    let _ = (Stdio::null(), std::io::sink().flush());
}
