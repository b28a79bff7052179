//! What happens to a box's question, and to the answer from upstream.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::bindings::{Bindings, MAX_LIFETIME};
use super::message::{Data, Message, Question, Record, ResponseCode, kind};
use crate::enforcer::Enforcer;
use sandcrate_protocol::network::HostName;
use sandcrate_protocol::network::{Denial, DenialKind};

/// Without EDNS a client takes no more (RFC 1035).
const PLAIN_BYTES: usize = 512;
/// No answer of ours is longer: the device carries it whole.
const MAX_BYTES: usize = 4096;
/// What we tell an upstream that we take (the flag-day size).
const UPSTREAM_BYTES: u16 = 1232;
/// Chains of aliases beyond this are a mistake or an attack.
const MAX_ALIASES: usize = 16;

/// Decides; holds no state but the bindings that it makes.
#[derive(Debug, Default)]
pub struct Forwarder {
    pub bindings: Bindings,
}

/// What to do with a question.
#[derive(Debug)]
pub enum Step {
    /// Ask upstream with these bytes; the answer goes to [`Forwarder::answer`].
    Ask { query: Message, upstream: Vec<u8> },
    /// Answer the box now.
    Reply(Reply),
    /// Not a question at all.
    Ignore,
}

/// Bytes for the box, and what to record.
#[derive(Debug)]
pub struct Reply {
    pub bytes: Vec<u8>,
    pub denial: Option<Denial>,
}

impl Forwarder {
    /// Looks at a datagram that the box sent to its resolver. `id` is for the upstream query.
    pub fn question(&self, enforcer: &Enforcer, bytes: &[u8], id: u16) -> Step {
        let query = match Message::parse(bytes) {
            Ok(query) if !query.response => query,
            Ok(_) => return Step::Ignore,
            Err(_) => return malformed(bytes),
        };
        let Ok(name) = query.question.name.parse::<HostName>() else {
            // The root, reverse names and such: nobody's host.
            return Step::Reply(self.reply(&query, ResponseCode::NameError, Vec::new(), None));
        };
        if let Err(refusal) = enforcer.judge_name(&name) {
            let denial = Denial::new(DenialKind::Resolve, name.as_str(), refusal.rule, refusal.hint);
            // Not "refused": programs would ask again and again, and report a temporary failure.
            return Step::Reply(self.reply(&query, ResponseCode::NameError, Vec::new(), Some(denial)));
        }
        match query.question.kind {
            kind::A | kind::AAAA | kind::CNAME | kind::MX | kind::TXT | kind::SRV | kind::NS => {
                let question = query.question.clone();
                let mut ask = Message::query(id, question);
                ask.udp_size = Some(UPSTREAM_BYTES);
                Step::Ask { query, upstream: ask.encode(512) }
            }
            // Service bindings carry addresses and keys that hide the name; everything else nobody needs.
            _ => Step::Reply(self.reply(&query, ResponseCode::NoError, Vec::new(), None)),
        }
    }

    /// Makes the box's answer from an upstream's. `None` when it is not an answer to this question.
    pub fn answer(
        &mut self,
        enforcer: &Enforcer,
        query: &Message,
        id: u16,
        bytes: &[u8],
        is_own: &mut dyn FnMut(IpAddr) -> bool,
        now: Instant,
    ) -> Option<Reply> {
        let answer = Message::parse(bytes).ok()?;
        if !answer.response || answer.id != id || answer.question != query.question {
            return None;
        }
        let name = query.question.name.parse::<HostName>().ok()?;
        // The policy may have changed since the question.
        if let Err(refusal) = enforcer.judge_name(&name) {
            let denial = Denial::new(DenialKind::Resolve, name.as_str(), refusal.rule, refusal.hint);
            return Some(self.reply(query, ResponseCode::NameError, Vec::new(), Some(denial)));
        }
        let (records, refusal) =
            self.judged(enforcer, &name, query.question.kind, &answer.answers, is_own, now);
        let denial = refusal
            .map(|(target, refusal)| Denial::new(DenialKind::Resolve, target, refusal.rule, refusal.hint));
        let code = match answer.code {
            ResponseCode::NoError | ResponseCode::NameError => answer.code,
            _ => ResponseCode::ServerFailure,
        };
        Some(self.reply(query, code, records, denial))
    }

    /// The answer when no upstream gave one.
    pub fn failure(&self, query: &Message) -> Reply {
        self.reply(query, ResponseCode::ServerFailure, Vec::new(), None)
    }

    fn judged(
        &mut self,
        enforcer: &Enforcer,
        name: &HostName,
        wanted: u16,
        answers: &[Record],
        is_own: &mut dyn FnMut(IpAddr) -> bool,
        now: Instant,
    ) -> (Vec<Record>, Option<(String, crate::enforcer::Refusal)>) {
        let mut kept = Vec::new();
        let mut refused = None;
        let mut owner = name.as_str().to_owned();
        let mut shortest = u32::MAX;
        for _ in 0..MAX_ALIASES {
            let alias = answers.iter().find_map(|record| match &record.data {
                Data::Alias(target) if record.name == owner => Some((record, target.clone())),
                _ => None,
            });
            let Some((record, target)) = alias else { break };
            match target.parse::<HostName>().ok().map(|alias| enforcer.judge_alias(&alias)) {
                Some(Ok(())) => {}
                Some(Err(refusal)) => {
                    return (Vec::new(), Some((format!("{name} (alias {target})"), refusal)));
                }
                None => return (Vec::new(), None),
            }
            shortest = shortest.min(record.ttl_seconds);
            kept.push(bounded(record));
            owner = target;
        }
        for record in answers.iter().filter(|record| record.name == owner) {
            match &record.data {
                Data::Alias(_) => {}
                Data::Address(address) => {
                    if (wanted == kind::A) != address.is_ipv4() || !matches!(wanted, kind::A | kind::AAAA) {
                        continue;
                    }
                    match enforcer.judge_answer(name, *address, is_own(*address)) {
                        Ok(()) => {
                            let ttl = shortest.min(record.ttl_seconds);
                            self.bindings.bind(name, *address, Duration::from_secs(ttl.into()), now);
                            kept.push(bounded(record));
                        }
                        Err(refusal) => refused = Some((format!("{name} ({address})"), refusal)),
                    }
                }
                _ => kept.push(bounded(record)),
            }
        }
        (kept, refused)
    }

    fn reply(
        &self,
        query: &Message,
        code: ResponseCode,
        answers: Vec<Record>,
        denial: Option<Denial>,
    ) -> Reply {
        let limit =
            query.udp_size.map_or(PLAIN_BYTES, |size| usize::from(size).clamp(PLAIN_BYTES, MAX_BYTES));
        let question = Question { ..query.question.clone() };
        let message = Message {
            id: query.id,
            response: true,
            truncated: false,
            code,
            question,
            answers,
            udp_size: query.udp_size.map(|_| UPSTREAM_BYTES),
        };
        Reply { bytes: message.encode(limit), denial }
    }
}

/// A record with a life that its binding has too.
fn bounded(record: &Record) -> Record {
    let ttl_seconds = record.ttl_seconds.min(MAX_LIFETIME.as_secs() as u32);
    Record { ttl_seconds, ..record.clone() }
}

/// A header alone says what is wrong, so that the program does not wait.
fn malformed(bytes: &[u8]) -> Step {
    match bytes {
        [a, b, flags, _, ..] if bytes.len() >= 12 && flags & 0x80 == 0 => {
            let code = ResponseCode::FormatError as u8;
            let bytes = vec![*a, *b, 0x80 | (flags & 1), 0x80 | code, 0, 0, 0, 0, 0, 0, 0, 0];
            Step::Reply(Reply { bytes, denial: None })
        }
        _ => Step::Ignore,
    }
}

#[cfg(test)]
#[path = "forwarder_tests.rs"]
mod tests;
