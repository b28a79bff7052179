//! Configuration by environment and by `box_init`, the choice of a backend, signals, a port in use.

use std::time::Duration;

use rustix::process::Signal;

use super::exchange;
use super::ledger::Ledger;
use super::peer::{Server, Socket};
use crate::skip::{Feature, skip_without};

#[test]
fn configuration_and_lifecycle_are_as_recorded() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let mut ledger = Ledger::open("config-lifecycle");
    let replay = |ledger: &mut Ledger, socket: &mut Socket, numbers: &[u32]| {
        for number in numbers {
            exchange(ledger, *number, socket, "/nowhere");
        }
    };

    let server = Server::start(&[]);
    replay(&mut ledger, &mut Socket::rpc(server.port), &[2, 3, 4]);
    ended(&mut ledger, 6, server, Signal::INT);

    let server = Server::start(&[("LANGBOT_BOX_CONFIG", r#"{"backend": "native"}"#)]);
    let mut socket = Socket::rpc(server.port);
    replay(&mut ledger, &mut socket, &[9]);
    // Another instance on the same machine leaves this one's boxes alone.
    let other = Server::start(&[]);
    replay(&mut ledger, &mut socket, &[12]);
    drop(other);
    ended(&mut ledger, 13, server, Signal::TERM);

    let server = Server::start(&[("LANGBOT_BOX_CONFIG", r#"{"backend": "bogus"}"#)]);
    ledger.compare(14, "listens", "listens");
    let numbers: Vec<u32> = (15..=21).chain(23..=44).collect();
    replay(&mut ledger, &mut Socket::rpc(server.port), &numbers);

    let server = Server::start(&[("LANGBOT_BOX_CONFIG", "{bad")]);
    ledger.compare(46, "listens", "listens");

    let mut second = Server::start_on(server.port, &[]);
    let mut ended = None;
    for _ in 0..100 {
        ended = ended.or_else(|| second.ended());
        std::thread::sleep(Duration::from_millis(if ended.is_some() { 0 } else { 50 }));
    }
    let ours = ended.map_or("runs without a port".to_owned(), |code| format!("exit {code}"));
    ledger.compare(47, "runs without a port", &ours);
    ledger.finish();
}

fn ended(ledger: &mut Ledger, number: u32, server: Server, signal: Signal) {
    let theirs = format!("exit {}", ledger.vector(number).at("rc").python());
    ledger.compare(number, &theirs, &format!("exit {}", server.signal(signal)));
}
