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

/// For a network namespace without any way out.
const EMPTY_NETWORK: [Feature; 3] =
    [Feature::Program("ip"), Feature::Program("unshare"), Feature::Program("setpriv")];

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
    if skip_without(&NEEDED) || skip_without(&EMPTY_NETWORK) {
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
fn a_box_with_network_on_has_one_device_and_no_way_to_the_host() {
    if skip_without(&NEEDED) || skip_without(&EMPTY_NETWORK) {
        return;
    }
    let look = "cat /proc/net/dev; python3 -c \"$TRY\"; echo code $?";
    let flags = ["run", "--network", "on", "--env", &format!("TRY={TRY}"), "--", "sh", "-c", look];
    let output = sandcrate(&flags).in_empty_network().run();
    assert_eq!(output.code, 0, "{output:?}");
    assert!(output.stdout.contains("tun0:") && output.stdout.contains("code 3"), "{output:?}");
    assert!(output.stderr.contains("denied connect: tcp 10.1.2.3:80"), "{output:?}");
}

/// The address is one of the public Internet, which is not there: what decides is seen by who is told.
#[test]
fn a_session_tells_its_denials_and_takes_a_new_policy_at_once() {
    if skip_without(&NEEDED) || skip_without(&EMPTY_NETWORK) {
        return;
    }
    let server = Server::start_in_empty_network();
    server.run(&["session", "create", "s", "--network", "on"]).ok();
    let denials = || server.run(&["denials", "s", "-o", "json"]).json();
    let told = |of: &str| denials().to_string().contains(of);
    let attempt = |address: &str| {
        let script = TRY.replace("10.1.2.3", address);
        assert_eq!(server.run(&["exec", "s", "--", "python3", "-c", &script]).code, 3, "{address}");
    };
    attempt("10.1.2.3");
    assert!(told("10.1.2.3:80"), "{:#}", denials());
    attempt("8.8.4.4");
    assert!(!told("8.8.4.4"), "allowed, and nobody there: {:#}", denials());
    server.run(&["session", "network", "s", "public, deny 8.8.4.0/24"]).ok();
    attempt("8.8.4.4");
    assert!(told("8.8.4.4:80") && told("8.8.4.0/24"), "{:#}", denials());
    let table = server.run(&["denials", "s"]).ok();
    assert!(table.starts_with("KIND") && table.contains("8.8.4.4:80"), "{table}");
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

/// Answers the upgrade and sends back one message, in capitals.
const WEBSOCKET_SERVER: &str = "import base64, hashlib, socket\n\
    listener = socket.create_server(('', 8000))\n\
    while True:\n\
    \x20   peer, _ = listener.accept()\n\
    \x20   stream = peer.makefile('rwb')\n\
    \x20   head = b''\n\
    \x20   while not head.endswith(b'\\r\\n\\r\\n'):\n\
    \x20       line = stream.readline()\n\
    \x20       if not line: break\n\
    \x20       head += line\n\
    \x20   keys = [line.split(b':')[1].strip() for line in head.splitlines() if line.lower().startswith(b'sec-websocket-key:')]\n\
    \x20   if not keys: continue\n\
    \x20   accept = base64.b64encode(hashlib.sha1(keys[0] + b'258EAFA5-E914-47DA-95CA-C5AB0DC85B11').digest())\n\
    \x20   stream.write(b'HTTP/1.1 101 Switching Protocols\\r\\nupgrade: websocket\\r\\nconnection: upgrade\\r\\nsec-websocket-accept: ' + accept + b'\\r\\n\\r\\n')\n\
    \x20   stream.flush()\n\
    \x20   length = stream.read(2)[1] & 127\n\
    \x20   mask, body = stream.read(4), stream.read(length)\n\
    \x20   text = bytes(byte ^ mask[at % 4] for at, byte in enumerate(body)).upper()\n\
    \x20   stream.write(bytes([0x81, len(text)]) + text)\n\
    \x20   stream.flush()";

#[test]
fn websockets_pass_the_proxy() {
    if skip_without(&NEEDED) {
        return;
    }
    let server = Server::start();
    server.run(&["session", "create", "s", "--allow-net", "only.example"]).ok();
    server.run(&["start", "s", "--", "python3", "-c", WEBSOCKET_SERVER]).ok();
    let mut stream = until("the upgrade", || {
        let mut stream = std::os::unix::net::UnixStream::connect(server.socket()).unwrap();
        let head = "GET /v1/sessions/s/proxy/8000/chat HTTP/1.1\r\nhost: localhost\r\nconnection: Upgrade\r\n\
            upgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        let answer = read_until(&mut stream, "\r\n\r\n");
        // Until the program in the box listens there is nobody to switch to.
        answer.starts_with("HTTP/1.1 101").then(|| {
            assert!(answer.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "{answer}");
            stream
        })
    });
    let mask = [1, 2, 3, 4];
    let masked = b"hello".iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask);
    let frame: Vec<u8> = [0x81, 0x85].into_iter().chain(mask).chain(masked).collect();
    stream.write_all(&frame).unwrap();
    let mut answer = [0; 7];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"\x81\x05HELLO");
}
