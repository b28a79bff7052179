//! The namespace that plays the Internet: its servers also stand at addresses that no box may reach, so that a
//! mistake would be seen as an answer and not as silence.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use sandcrate_net::dns::{Data, Message, Record, ResponseCode, kind};

use crate::world::{address, ip};

pub(crate) const WEB: &str = "203.0.113.10";
pub(crate) const OTHER: &str = "203.0.113.11";
pub(crate) const WEB6: &str = "2001:db8:f::10";
/// Takes no packets.
#[allow(dead_code, reason = "not every suite that plays with this Internet needs it")]
pub(crate) const SILENT: &str = "203.0.113.99";

pub(crate) const ECHO: u16 = 7;
pub(crate) const SOURCE: u16 = 9000;
pub(crate) const SINK: u16 = 9001;
pub(crate) const SERVER_FIRST: u16 = 2222;
/// Sends nothing, closes its half, reads slowly; the other port tells how much came.
pub(crate) const ENDS_FIRST: u16 = 9002;
pub(crate) const ENDS_FIRST_COUNT: u16 = 9003;
/// Nobody listens.
pub(crate) const CLOSED: u16 = 81;

/// Forbidden places that would answer.
pub(crate) const FORBIDDEN: [&str; 8] = [
    "10.9.9.9",
    "169.254.169.254",
    "100.64.1.1",
    "192.168.7.7",
    "172.16.3.3",
    "198.18.0.5",
    "fd00:1::5",
    "168.63.129.16",
];

/// Whether this is how a connection ends that was turned away; a denial tells it from a closed port.
pub(crate) fn turned_away(said: &str) -> bool {
    said == "ECONNREFUSED"
}

/// Whether this machine is supposed to have a feature, so that nothing that needs it may be skipped.
pub(crate) fn required(feature: &str) -> bool {
    let named = std::env::var("SANDCRATE_TEST_REQUIRE").unwrap_or_default();
    named.split(',').any(|name| name.trim() == feature)
}

static CAME: AtomicU64 = AtomicU64::new(0);

pub(crate) fn role() -> ExitCode {
    println!("{}", std::process::id());
    ip("link set lo up");
    while !std::path::Path::new("/proc/sys/net/ipv4/conf/down0").exists() {
        thread::sleep(Duration::from_millis(5));
    }
    for command in [
        "addr add 198.51.100.2/24 dev down0",
        "-6 addr add 2001:db8:a::2/64 dev down0 nodad",
        "link set down0 up",
        "addr add 203.0.113.10/32 dev lo",
        "addr add 203.0.113.11/32 dev lo",
        "-6 addr add 2001:db8:f::10/128 dev lo nodad",
        "route add blackhole 203.0.113.99/32",
    ] {
        ip(command);
    }
    for forbidden in FORBIDDEN {
        let (family, length) =
            if forbidden.contains(':') { ("-6 ", "128 dev lo nodad") } else { ("", "32 dev lo") };
        ip(&format!("{family}addr add {forbidden}/{length}"));
    }
    serve(ECHO, |mut stream| drop(std::io::copy(&mut stream.try_clone().unwrap(), &mut stream)));
    for port in [80, 8080, 2375] {
        serve(port, http);
    }
    serve(SERVER_FIRST, |mut stream| {
        let _ = stream.write_all(b"hello first\n");
        let _ = std::io::copy(&mut stream.try_clone().unwrap(), &mut stream);
    });
    serve(SOURCE, |mut stream| {
        let block = vec![b'x'; 1 << 17];
        while stream.write_all(&block).is_ok() {}
    });
    serve(SINK, |mut stream| {
        let mut block = vec![0; 1 << 20];
        let mut total = 0_u64;
        while let Ok(count @ 1..) = stream.read(&mut block) {
            total += count as u64;
        }
        let _ = stream.write_all(format!("{total}\n").as_bytes());
    });
    serve(ENDS_FIRST, |mut stream| {
        let _ = stream.shutdown(std::net::Shutdown::Write);
        thread::sleep(Duration::from_millis(700));
        let mut block = vec![0; 1 << 16];
        while let Ok(count @ 1..) = stream.read(&mut block) {
            CAME.fetch_add(count as u64, Ordering::Relaxed);
        }
    });
    serve(ENDS_FIRST_COUNT, |mut stream| drop(writeln!(stream, "{}", CAME.load(Ordering::Relaxed))));
    thread::spawn(|| udp_echo("203.0.113.10:7"));
    thread::spawn(|| udp_echo("[2001:db8:f::10]:7"));
    for server in ["198.51.100.2:53", "203.0.113.10:53"] {
        thread::spawn(move || names(server));
    }
    let mut tls = tls_server();
    println!("ready");
    let _ = std::io::stdin().read(&mut [0]);
    let _ = tls.kill();
    let _ = tls.wait();
    ExitCode::SUCCESS
}

fn serve(port: u16, handle: impl Fn(TcpStream) + Send + Copy + 'static) {
    let listener = TcpListener::bind(("::", port)).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let _ = stream.set_nodelay(true);
            thread::spawn(move || handle(stream));
        }
    });
}

/// Says which host it was asked for, and closes.
fn http(mut stream: TcpStream) {
    let mut lines = BufReader::new(stream.try_clone().unwrap());
    let mut host = String::new();
    let mut line = String::new();
    while lines.read_line(&mut line).is_ok_and(|count| count > 2) {
        if let Some(value) = line.to_lowercase().strip_prefix("host:") {
            host = value.trim().to_owned();
        }
        line.clear();
    }
    let body = format!("you asked {host}\n");
    let _ = write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
}

fn udp_echo(at: &str) {
    let socket = UdpSocket::bind(at).unwrap();
    let mut buffer = vec![0; 65536];
    while let Ok((count, from)) = socket.recv_from(&mut buffer) {
        let _ = socket.send_to(&buffer[..count], from);
    }
}

/// A name server with a small zone.
fn names(at: &str) {
    let socket = UdpSocket::bind(at.parse::<SocketAddr>().unwrap()).unwrap();
    let mut buffer = vec![0; 4096];
    while let Ok((count, from)) = socket.recv_from(&mut buffer) {
        let Ok(mut message) = Message::parse(&buffer[..count]) else { continue };
        message.response = true;
        let zone: &[(&str, &str)] = &[
            ("web.example", WEB),
            ("web.example", WEB6),
            ("other.example", OTHER),
            ("rebind.example", "10.9.9.9"),
            ("meta.example", "169.254.169.254"),
            ("loop.example", "127.0.0.1"),
            ("own.example", crate::world::HOST_IN_RANGE),
            ("six.example", WEB6),
        ];
        let question = message.question.clone();
        if question.name == "slow.example" {
            continue;
        }
        let mut owner = question.name.clone();
        if owner == "alias.example" {
            owner = "web.example".to_owned();
            message.answers.push(record(&question.name, Data::Alias(owner.clone())));
        }
        for (name, value) in zone {
            let value: IpAddr = address(value);
            if *name == owner && value.is_ipv4() == (question.kind == kind::A) {
                message.answers.push(record(name, Data::Address(value)));
            }
        }
        if !zone.iter().any(|(name, _)| *name == owner) {
            message.code = ResponseCode::NameError;
        }
        let _ = socket.send_to(&message.encode(4096), from);
    }
}

fn record(name: &str, data: Data) -> Record {
    Record { name: name.to_owned(), ttl_seconds: 30, data }
}

fn tls_server() -> std::process::Child {
    let made = Command::new("sh")
        .arg("-c")
        .arg("d=$(mktemp -d) && cd $d && openssl req -x509 -newkey rsa:2048 -nodes -keyout k -out c -days 2 -subj /CN=web.example 2>/dev/null && cat k c > both && echo $d")
        .output()
        .unwrap();
    let directory = String::from_utf8(made.stdout).unwrap().trim().to_owned();
    // Ends with us, however we end.
    let child = Command::new("setpriv")
        .args([
            "--pdeathsig",
            "KILL",
            "openssl",
            "s_server",
            "-quiet",
            "-www",
            "-accept",
            "443",
            "-cert",
            "both",
            "-key",
            "both",
        ])
        .current_dir(&directory)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    while TcpStream::connect((WEB, 443)).is_err() {
        thread::sleep(Duration::from_millis(20));
    }
    std::fs::remove_dir_all(directory).unwrap();
    child
}
