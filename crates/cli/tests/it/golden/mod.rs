//! Replays what the reference was recorded to answer, and compares whole replies.
//!
//! The vectors are in `tests/fixtures/golden`, with a README that says where they come from and which were left out.
//! `normalise` lists what may vary; `deviations.toml` lists where ours differs on purpose, and how. A difference that
//! is not listed fails, and so does a listed one that is gone.

mod config_lifecycle;
mod current;
mod json;
mod ledger;
mod managed_process;
mod normalise;
pub(crate) mod peer;
mod rpc_stdio;
mod rpc_ws;
mod sessions;
mod skills;
mod spec_coercion;

use std::time::{Duration, Instant};

use self::json::Json;
use self::ledger::Ledger;
use self::normalise::THEIR_ROOT;
use self::peer::Socket;

/// For messages: both ends of a long text.
fn shorten(text: &str) -> String {
    const SHOWN: usize = 1500;
    let chars: Vec<char> = text.chars().collect();
    if chars.len() <= SHOWN {
        return text.to_owned();
    }
    let (head, tail) = (&chars[..SHOWN / 2], &chars[chars.len() - SHOWN / 2..]);
    let text = |part: &[char]| part.iter().collect::<String>();
    format!("{} ...({} chars)... {}", text(head), chars.len(), text(tail))
}

/// A request as it is sent to us: their backend is ours, their shared directory a temporary one.
fn request(vector: &Json, root: &str) -> String {
    fn backend(value: &mut Json) {
        if let Json::Object(pairs) = value {
            for (key, value) in pairs {
                match value {
                    Json::Text(text) if key == "backend" => *text = text.replace("docker", "native"),
                    other => backend(other),
                }
            }
        }
    }
    let mut request = vector.at("request").clone();
    backend(&mut request);
    request.python().replace(THEIR_ROOT, root)
}

/// Sends the request of a vector and compares the reply.
fn exchange(ledger: &mut Ledger, number: u32, socket: &mut Socket, root: &str) {
    let vector = ledger.vector(number);
    let ours = normalise::reply(&socket.call(&request(&vector, root)), root);
    ledger.compare(number, &theirs(&vector, root), &ours);
}

/// The same for what takes a moment to become so: asks again until the answer is the one that is wanted.
fn exchange_until(ledger: &mut Ledger, number: u32, socket: &mut Socket, root: &str) {
    const MOMENT: Duration = Duration::from_secs(5);
    let vector = ledger.vector(number);
    let theirs = theirs(&vector, root);
    let began = Instant::now();
    loop {
        let ours = normalise::reply(&socket.call(&request(&vector, root)), root);
        if ledger.agrees(number, &theirs, &ours) || began.elapsed() > MOMENT {
            return ledger.compare(number, &theirs, &ours);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn theirs(vector: &Json, root: &str) -> String {
    normalise::document(vector.at("response").clone(), root).python()
}
