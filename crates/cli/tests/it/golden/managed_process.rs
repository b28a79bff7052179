//! Managed processes and their relay, which were recorded together: one session, two files of vectors.

use std::fmt::Write;
use std::time::Duration;

use super::json::Json;
use super::ledger::Ledger;
use super::peer::{Came, PATIENCE, Server, Socket};
use super::{exchange, exchange_until, normalise};
use crate::skip::{Feature, skip_without};

/// Long enough for a line that should not come to show itself.
const QUIET: Duration = Duration::from_millis(300);

struct Replay {
    server: Server,
    rpc: Socket,
    processes: Ledger,
    relay: Ledger,
}

#[test]
fn processes_and_their_relay_are_as_recorded() {
    if skip_without(&[Feature::Box, Feature::Program("python3")]) {
        return;
    }
    let server = Server::start(&[]);
    let rpc = Socket::rpc(server.port);
    let processes = Ledger::open("managed-process");
    let mut replay = Replay { server, rpc, processes, relay: Ledger::open("relay") };
    replay.calls(1..=19);
    replay.attach_and_attach_again();
    replay.calls(22..=22);
    replay.settled(23);
    replay.lines_of(5, "err", 1);
    for (start, get) in [(24, 25), (26, 27), (28, 29), (30, 31)] {
        replay.calls(start..=start);
        replay.settled(get);
    }
    replay.exited();
    replay.calls(32..=33);
    replay.plain_requests();
    replay.calls(34..=34);
    replay.lines_of(17, "ex2", 4);
    replay.settled(35);
    replay.calls(36..=36);
    replay.large_lines();
    replay.calls(37..=37);
    replay.line_over_64_kib();
    replay.calls(38..=38);
    replay.lines_of(22, "bin", 3);
    replay.calls(39..=44);
    replay.ended_while_attached(23, "default", 46);
    replay.calls(47..=47);
    replay.settled(48);
    replay.settled(49);
    replay.ended_while_attached(24, "rs", 51);
    let findings = replay.processes.findings() + &replay.relay.findings();
    assert!(findings.is_empty(), "{findings}");
}

impl Replay {
    fn calls(&mut self, numbers: std::ops::RangeInclusive<u32>) {
        for number in numbers {
            exchange(&mut self.processes, number, &mut self.rpc, "/nowhere");
        }
    }

    fn settled(&mut self, number: u32) {
        exchange_until(&mut self.processes, number, &mut self.rpc, "/nowhere");
    }

    fn open(&self, process: &str) -> Result<Socket, (u16, String)> {
        Socket::open(self.server.port, &format!("/v1/sessions/mp/managed-process/{process}/ws"), None)
    }

    /// Attaches as soon as whoever was attached before has left.
    fn free(&self, process: &str, protocol: Option<&str>) -> Socket {
        let path = format!("/v1/sessions/mp/managed-process/{process}/ws");
        crate::driver::until("the process to be free", || {
            match Socket::open(self.server.port, &path, protocol) {
                Ok(socket) => Some(socket),
                Err((409, _)) => None,
                Err((status, body)) => {
                    let seen = self.server.http("GET", &format!("/v1/sessions/mp/processes/{process}"));
                    panic!("{process} is refused for another reason: {status} {body} {seen:?}")
                }
            }
        })
    }

    fn attach_and_attach_again(&mut self) {
        let legacy = "/v1/sessions/mp/managed-process/ws";
        let mut first = Socket::open(self.server.port, legacy, None).expect("the legacy route");
        let vector = self.relay.vector(1);
        let (mut theirs, mut ours) = (String::new(), String::new());
        for step in vector.at("steps").list() {
            let expected: Vec<String> = step.at("recv").list().iter().map(frame).collect();
            match step.get("send") {
                Some(text) => first.send(text.text()),
                None => first.send_binary(b"bin\n"),
            };
            // A line that should not come has its time to come.
            let limit = if expected == ["nothing"] { QUIET } else { PATIENCE };
            let got: Vec<String> = expected.iter().map(|_| came(&first.next_within(limit))).collect();
            writeln!(theirs, "{expected:?}").unwrap();
            writeln!(ours, "{got:?}").unwrap();
        }
        self.relay.compare(1, &theirs, &ours);
        self.settled(20);

        let second = self.open("default");
        let (mut second, ours) = match second {
            Ok(mut second) => {
                second.send("from-second");
                let got = came(&second.next_within(QUIET));
                (Some(second), got)
            }
            Err((status, body)) => (None, format!("refused with {status} {body}")),
        };
        self.relay.compare(3, "nothing", &ours);

        first.send("first");
        let mut ours = came(&first.next());
        first.close();
        if second.is_none() {
            let mut again = self.free("default", None);
            again.send("from-second");
            second = Some(again);
        }
        write!(ours, " {}", second.map_or_else(String::new, |mut second| came(&second.next()))).unwrap();
        let vector = self.relay.vector(4);
        let theirs = format!(
            "{} {}",
            frame(&vector.at("first_recv").list()[0]),
            frame(vector.at("second_recv_after"))
        );
        self.relay.compare(4, &theirs, &ours);

        self.settled(21);
        let protocol = self.free("default", Some("mcp")).protocol;
        self.relay.compare(2, "mcp", protocol.as_deref().unwrap_or("none"));
    }

    /// Attaches and reads as many messages as were recorded.
    fn lines_of(&mut self, number: u32, process: &str, count: usize) {
        let vector = self.relay.vector(number);
        let expected: Vec<String> = vector.at("recv").list().iter().map(frame).collect();
        assert_eq!(expected.len(), count);
        let mut socket = self.open(process).expect("a running process");
        let got: Vec<String> = expected.iter().map(|_| came(&socket.next())).collect();
        self.relay.compare(number, &format!("{expected:?}"), &format!("{got:?}"));
        socket.close();
    }

    fn exited(&mut self) {
        let vector = self.relay.vector(6);
        let (status, kind, body) = self.server.http("GET", "/v1/sessions/mp/managed-process/ex/ws");
        let (their_status, their_kind) = (vector.at("status").python(), vector.at("ctype").text());
        let theirs = normalise::answer(&their_status, their_kind, vector.at("body").text());
        self.relay.compare(6, &theirs, &normalise::answer(&status.to_string(), &kind, &body));
        let ours = match self.open("ex") {
            Ok(mut socket) => format!("{:?}", [came(&socket.next()), came(&socket.next())]),
            Err((status, _)) => format!("refused with {status}"),
        };
        self.relay.compare(7, "refused with 400", &ours);
    }

    fn plain_requests(&mut self) {
        for number in 8..=16 {
            let vector = self.relay.vector(number);
            let case = vector.at("case").text();
            let (method, path) = case.trim_start_matches("http-").split_once(' ').unwrap();
            let (status, kind, body) = self.server.http(&method.to_uppercase(), path);
            let their_kind = vector.get("ctype").unwrap_or_else(|| vector.at("allow")).text();
            let their_status = vector.at("status").python();
            let theirs = normalise::answer(&their_status, their_kind, vector.at("body").text());
            self.relay.compare(number, &theirs, &normalise::answer(&status.to_string(), &kind, &body));
        }
    }

    fn large_lines(&mut self) {
        let vector = self.relay.vector(18);
        let mut socket = self.open("big").expect("a running process");
        let first = came(&socket.next());
        let mut ours = vec![if first == "x".repeat(60_000) { "60000 x".to_owned() } else { first }];
        for length in [100_000, 1_000_000] {
            socket.send(&"y".repeat(length));
            ours.push(came(&socket.next()));
        }
        let theirs: Vec<String> =
            vector.at("recv").list().iter().map(|frames| frame(&frames.list()[0])).collect();
        let theirs: Vec<String> = theirs
            .iter()
            .map(|text| if text.ends_with("(len 60000)") { "60000 x".to_owned() } else { text.clone() })
            .collect();
        self.relay.compare(18, &format!("{theirs:?}"), &format!("{ours:?}"));

        socket.send(&"z".repeat(4 * 1024 * 1024 + 100));
        let ours = came(&socket.next());
        self.relay.compare(21, "connection lost", &ours);
        socket.close();
    }

    fn line_over_64_kib(&mut self) {
        let read = |socket: &mut Socket| {
            let mut got = Vec::new();
            while got.len() < 3 {
                match socket.next_within(Duration::from_secs(2)) {
                    Came::Nothing => break,
                    Came::Text(text) if text.len() > 1000 => got.push(format!("{} characters", text.len())),
                    other => got.push(came(&other)),
                }
            }
            format!("{got:?}")
        };
        let expected = |vector: &Json| {
            let frames: Vec<String> =
                vector.at("recv").list().iter().map(frame).filter(|text| text != "nothing").collect();
            format!("{frames:?}")
        };
        for number in [19, 20] {
            let mut socket = self.free("big2", None);
            let ours = read(&mut socket);
            socket.close();
            self.relay.compare(number, &expected(&self.relay.vector(number)), &ours);
        }
    }

    /// The action that ends the process, with a relay on it.
    fn ended_while_attached(&mut self, number: u32, process: &str, action: u32) {
        let mut socket = self.free(process, None);
        self.calls(action..=action);
        let expected: Vec<String> = self.relay.vector(number).at("recv").list().iter().map(frame).collect();
        self.relay.compare(number, &format!("{expected:?}"), &format!("{:?}", [came(&socket.next())]));
    }
}

/// A recorded message.
fn frame(message: &Json) -> String {
    match message.get("type").map(Json::text) {
        Some("TEXT") => message.at("data").text().to_owned(),
        Some("CLOSE") => format!("closed with {} ", message.at("data").python()),
        _ => "nothing".to_owned(),
    }
}

fn came(message: &Came) -> String {
    match message {
        Came::Text(text) => text.clone(),
        Came::Binary(length) => format!("{length} bytes"),
        Came::Close(code, reason) => format!("closed with {code} {reason}"),
        Came::Lost => "connection lost".to_owned(),
        Came::Nothing => "nothing".to_owned(),
    }
}
