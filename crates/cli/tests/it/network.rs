//! The network of real boxes from the command line: what is refused is told, and ports lead in.
//!
//! What tries a forbidden address runs in a network namespace of its own without any way out, so that even a
//! test that fails sends nothing. Every box here is allowed to reach one name that does not exist, or nothing.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::client::Server;
use crate::driver::{read_until, sandcrate, until};
use crate::skip::{Feature, skip_without};

const NEEDED: [Feature; 3] = [Feature::Box, Feature::IsolatedNetwork, Feature::Program("python3")];

/// Tries to connect and exits with 3 when it is refused.
const TRY: &str = "import socket, sys\n\
    try:\n    socket.create_connection(('10.1.2.3', 80), 30)\n\
    except OSError:\n    sys.exit(3)";

/// The whole answer of a plain request, once there is one.
fn ask(mut stream: impl Read + Write, path: &str) -> Option<String> {
    let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    (!answer.is_empty()).then(|| String::from_utf8_lossy(&answer).into_owned())
}

#[test]
fn a_refused_connection_fails_at_once_and_is_told() {
    if skip_without(&NEEDED) || skip_without(&[Feature::Root, Feature::Program("ip")]) {
        return;
    }
    let flags = ["run", "-o", "json", "--allow-net", "only.example", "--", "python3", "-c", TRY];
    let report = sandcrate(&flags).in_empty_network().run().json();
    assert_eq!(report["exit_code"], 3, "{report:#}");
    let denial = &report["denials"][0];
    assert_eq!(denial["kind"], "connect", "{report:#}");
    assert!(denial["target"].as_str().unwrap().contains("10.1.2.3:80"), "{denial}");
    assert!(!denial["hint"].as_str().unwrap().is_empty(), "{denial}");
    assert!(report["network"]["denied"].as_u64().unwrap() >= 1, "{report:#}");
    assert!(report["usage"]["wall_ms"].as_f64().unwrap() < 20_000.0, "it did not wait: {report:#}");

    let flags = ["run", "--allow-net", "only.example", "--", "python3", "-c", TRY];
    let output = sandcrate(&flags).in_empty_network().run();
    assert_eq!(output.code, 3, "{output:?}");
    assert!(
        output.stderr.contains("denied connect: ") && output.stderr.contains("10.1.2.3:80"),
        "{output:?}"
    );
}

#[test]
fn a_port_of_a_run_is_reached() {
    if skip_without(&NEEDED) {
        return;
    }
    let flags = ["run", "-p", "0:8000", "--timeout", "100s", "--", "python3", "-m", "http.server", "8000"];
    let mut running = sandcrate(&flags).start();
    let notice = read_until(running.child.stderr.as_mut().unwrap(), "\n");
    let address = notice.trim().rsplit(' ').next().unwrap().to_owned();
    assert!(address.starts_with("127.0.0.1:"), "{notice}");
    let answer = until("an answer of the box's server", || ask(TcpStream::connect(&address).ok()?, "/"));
    assert!(answer.contains("200 OK"), "{answer}");
}

#[test]
fn a_session_is_reached_by_port_and_by_proxy_and_changes_its_network_live() {
    if skip_without(&NEEDED) {
        return;
    }
    let server = Server::start();
    let made =
        server.run(&["session", "create", "s", "--allow-net", "only.example", "-p", "0:8000", "-o", "json"]);
    assert_eq!(made.code, 0, "{made:?}");
    let made = made.json();
    assert_eq!((&made["network"], &made["network_policy"]), (&"on".into(), &"allow only.example".into()));
    let address = format!("127.0.0.1:{}", made["ports"][0]["host_port"]);
    server.run(&["start", "s", "--", "python3", "-m", "http.server", "8000"]).ok();
    let answer = until("the published port", || ask(TcpStream::connect(&address).ok()?, "/"));
    assert!(answer.contains("200 OK"), "{answer}");
    let socket = || std::os::unix::net::UnixStream::connect(server.socket()).unwrap();
    let answer = ask(socket(), "/v1/sessions/s/proxy/8000/").unwrap();
    assert!(answer.contains("200 OK") && answer.contains("content-security-policy: sandbox"), "{answer}");
    let nobody = ask(socket(), "/v1/sessions/s/proxy/8001/").unwrap();
    assert!(nobody.contains("502") && nobody.contains("bad_gateway"), "{nobody}");

    assert_eq!(server.run(&["session", "network", "s"]).ok(), "allow only.example\n");
    assert_eq!(server.run(&["session", "network", "s", "allow other.example"]).ok(), "allow other.example\n");
    assert_eq!(server.run(&["session", "network", "s", "off"]).ok(), "off\n");
    assert!(ask(TcpStream::connect(&address).unwrap(), "/").unwrap().contains("200 OK"), "ports stay");
    let table = server.run(&["top", "--once"]).ok();
    assert!(table.lines().any(|line| line.starts_with("s ") && line.ends_with("off")), "{table}");
    assert!(server.run(&["denials", "s"]).ok().starts_with("KIND"));
    let closed = server.run(&["session", "ports", "s", "--close", &address["127.0.0.1:".len()..]]).ok();
    assert_eq!(closed, "ADDRESS  HOST  BOX\n");
    assert!(TcpStream::connect(&address).is_err());
}
