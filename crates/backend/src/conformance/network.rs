//! Isolated networks: what a policy allows works, the rest is refused at once and told. Needs a test Internet that
//! no packet can leave.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use sandcrate_protocol::network::{Denial, DenialKind, Policy};
use sandcrate_protocol::{Control, ErrorKind, State};

use super::bench::{Bench, TestBox, chain};
use super::{Case, Check, Need};
use crate::{ExecEvent, ExecRequest, Isolation, Network, SessionSpec};

/// The servers of a test Internet, reachable by a granted policy from the namespace that the backend runs in, and
/// from nowhere else.
#[derive(Debug, Clone)]
pub struct Internet {
    /// What the operator has to grant for its addresses, which are reserved ones.
    pub grants: sandcrate_protocol::network::Grants,
    /// Resolves to both addresses.
    pub name: String,
    /// HTTP at 80, answering with the Host it was asked for.
    pub v4: IpAddr,
    pub v6: IpAddr,
    /// A port of both that sends back what it gets, by TCP and UDP.
    pub echo: u16,
    /// Nobody listens.
    pub closed: u16,
    /// Has the same servers, and is not granted.
    pub forbidden: IpAddr,
}

pub(super) fn cases() -> Vec<Case> {
    use Need::{HostNetwork, Internet, IsolatedNetwork};
    family!("network" {
        [] boxes_without_a_network_have_an_empty_one_each;
        [HostNetwork] the_hosts_network_is_only_for_who_asks;
        [IsolatedNetwork]
            a_policy_beyond_the_grants_is_refused, a_session_without_a_network_has_no_report;
        [IsolatedNetwork, Internet]
            allowed_connections_work, names_are_resolved, datagrams_pass, the_record_says_who_holds_the_policy,
            what_is_not_allowed_is_refused_at_once, refusals_are_told_in_events_and_result,
            a_peer_that_refuses_is_no_denial, what_a_command_used_is_counted, a_new_policy_holds_at_once,
            a_port_of_the_box_can_be_reached, a_restarted_box_has_its_network;
    })
}

fn internet(bench: &Bench) -> Result<Internet, String> {
    bench.harness.internet().ok_or_else(|| "no test Internet".to_owned())
}

fn isolation(bench: &Bench, policy: &str) -> Result<Isolation, String> {
    let policy: Policy = policy.parse().map_err(|error| format!("{policy}: {error}"))?;
    Ok(Isolation { policy, grants: internet(bench)?.grants, ..Isolation::default() })
}

async fn open(bench: &Bench, policy: &str) -> Result<TestBox, String> {
    let mut spec = bench.spec()?;
    spec.network = Network::Isolated(Box::new(isolation(bench, policy)?));
    bench.start_spec(spec).await
}

/// Sends a line to a port and prints what comes back, or the error's name.
fn talk(kind: &str, address: IpAddr, port: u16) -> String {
    format!(
        "/usr/bin/python3 - <<'END'\nimport socket,errno,time\nt=time.time()\ns=socket.socket(socket.AF_INET6 if ':' in '{address}' else socket.AF_INET, socket.SOCK_{kind})\ns.settimeout(5)\ntry:\n s.connect(('{address}',{port}))\n s.send(b'hello')\n r=s.recv(99).decode()\nexcept OSError as e: r=errno.errorcode.get(e.errno, str(e))\nassert time.time()-t<3, time.time()-t\nprint(r)\nEND"
    )
}

const NAMESPACE: &str = "readlink /proc/self/ns/net";

/// Enough of them for a backend that keeps some ready to run out.
async fn boxes_without_a_network_have_an_empty_one_each(bench: &Bench) -> Check {
    let mut seen = Vec::new();
    let mut sessions = Vec::new();
    for _ in 0..6 {
        let session = bench.start().await?;
        seen.push(session.text(NAMESPACE).await?);
        // With nothing but a shell: images may have no more.
        let devices = "while read -r name _; do case $name in *:) echo ${name%:};; esac; done </proc/net/dev";
        ensure_eq!(session.text(devices).await?, "lo", "the devices of a box without a network");
        let loopback = "while read -r line; do case $line in *127.0.0.1) echo up; break;; esac; done </proc/net/fib_trie";
        ensure_eq!(session.text(loopback).await?, "up", "loopback");
        sessions.push(session);
    }
    let all = seen.len();
    seen.sort();
    seen.dedup();
    ensure_eq!(seen.len(), all, "different network namespaces");
    Ok(())
}

async fn the_hosts_network_is_only_for_who_asks(bench: &Bench) -> Check {
    let hosts = std::fs::read_link("/proc/self/ns/net").map_err(|error| error.to_string())?;
    let hosts = hosts.display().to_string();
    for _ in 0..4 {
        let without = bench.start().await?;
        ensure!(without.text(NAMESPACE).await? != hosts, "a box without a network has the host's");
        let spec = SessionSpec { network: Network::Host, ..bench.spec()? };
        let with = bench.start_spec(spec).await?;
        ensure_eq!(with.text(NAMESPACE).await?, hosts, "the network of a box that has the host's");
    }
    Ok(())
}

async fn a_policy_beyond_the_grants_is_refused(bench: &Bench) -> Check {
    let mut spec = bench.spec()?;
    let policy = "allow 10.0.0.0/8:5432".parse().map_err(|error| format!("{error}"))?;
    spec.network = Network::Isolated(Box::new(Isolation { policy, ..Isolation::default() }));
    match bench.backend.start(spec.clone()).await {
        Err(error) => {
            ensure_eq!(error.kind(), ErrorKind::Denied, "the kind of the error");
            let text = chain(&error);
            ensure!(
                text.contains("10.0.0.0/8:5432") && text.contains("network.allow"),
                "the error says {text}"
            );
        }
        Ok(_) => return Err("the session started".to_owned()),
    }
    ensure!(!bench.backend.is_alive(&spec.id).await, "a box is left");
    Ok(())
}

async fn a_session_without_a_network_has_no_report(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let id = &session.info.id;
    for outcome in
        [bench.backend.network(id).await.map(drop), bench.backend.set_network(id, Isolation::default()).await]
    {
        match outcome {
            Err(error) => ensure_eq!(error.kind(), ErrorKind::Unsupported, "the kind of the error"),
            Ok(()) => return Err("a session with network off has a network".to_owned()),
        }
    }
    Ok(())
}

async fn allowed_connections_work(bench: &Bench) -> Check {
    let internet = internet(bench)?;
    let session = open(bench, &format!("allow {}, allow [{}]", internet.v4, internet.v6)).await?;
    for address in [internet.v4, internet.v6] {
        let said = session.sh(&talk("STREAM", address, internet.echo)).await?;
        ensure_eq!(said.exit.denials, Vec::<Denial>::new(), "denials");
        ensure_eq!(said.stdout.as_ref(), b"hello\n", format!("an echo of {address}"));
    }
    Ok(())
}

async fn names_are_resolved(bench: &Bench) -> Check {
    let internet = internet(bench)?;
    let name = &internet.name;
    let session = open(bench, &format!("allow {name}")).await?;
    let script = format!(
        "/usr/bin/python3 -c \"import socket;print(*sorted({{a[4][0] for a in socket.getaddrinfo('{name}',80)}}))\""
    );
    let said = session.sh(&script).await?;
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    let (v4, v6) = (internet.v4.to_string(), internet.v6.to_string());
    ensure!(text.contains(&v4) && text.contains(&v6), "{name} is {text}");
    Ok(())
}

async fn datagrams_pass(bench: &Bench) -> Check {
    let internet = internet(bench)?;
    let session = open(bench, "public").await?;
    for address in [internet.v4, internet.v6] {
        let said = session.sh(&talk("DGRAM", address, internet.echo)).await?;
        ensure_eq!(said.stdout.as_ref(), b"hello\n", format!("an echo of {address}"));
    }
    Ok(())
}

async fn the_record_says_who_holds_the_policy(bench: &Bench) -> Check {
    let session = open(bench, "public").await?;
    let finding = session.info.enforcement.get(Control::Network).ok_or("no record of the network")?;
    ensure_eq!(finding.state, State::Enforced, "the network's state");
    ensure!(finding.by.contains("public"), "the record names no policy: {}", finding.by);
    Ok(())
}

/// A connection by a reset, a datagram by the reason; never by waiting.
fn turned_away(said: &[u8]) -> bool {
    [&b"EHOSTUNREACH\n"[..], b"EACCES\n", b"ECONNREFUSED\n"].contains(&said)
}

async fn what_is_not_allowed_is_refused_at_once(bench: &Bench) -> Check {
    let internet = internet(bench)?;
    let session = open(bench, "public").await?;
    for kind in ["STREAM", "DGRAM"] {
        let said = session.sh(&talk(kind, internet.forbidden, internet.echo)).await?;
        ensure!(turned_away(&said.stdout), "a {kind} to a private address: {said:?}");
        ensure!(!said.exit.denials.is_empty(), "nobody told of it");
    }
    Ok(())
}

async fn refusals_are_told_in_events_and_result(bench: &Bench) -> Check {
    let internet = internet(bench)?;
    let session = open(bench, "public").await?;
    let target = format!("tcp {}:{}", internet.forbidden, internet.echo);
    let one = talk("STREAM", internet.forbidden, internet.echo);
    let request = ExecRequest::shell(format!("{one}\n{one}"));
    let mut execution = bench.backend.exec(&session.info.id, request).await.map_err(|error| chain(&error))?;
    let mut events = Vec::new();
    let exit = loop {
        match execution.next().await {
            Some(ExecEvent::Denied(denial)) => events.push(denial),
            Some(ExecEvent::Exit(exit)) => break exit,
            Some(ExecEvent::Failed(error)) => return Err(chain(&error)),
            Some(_) => {}
            None => return Err("the events ended without an exit".to_owned()),
        }
    };
    ensure_eq!(events.len(), 1, format!("events of one refusal, {events:?}"));
    ensure!(events[0].target.starts_with(&target), "the event names {}", events[0].target);
    ensure_eq!(exit.denials.len(), 1, format!("denials of one refusal, {:?}", exit.denials));
    ensure_eq!((exit.denials[0].kind, exit.denials[0].count), (DenialKind::Connect, 2), "the denial");
    ensure!(!exit.denials[0].rule.is_empty() && !exit.denials[0].hint.is_empty(), "{:?}", exit.denials);
    let report = bench.backend.network(&session.info.id).await.map_err(|error| chain(&error))?;
    ensure_eq!(report.denials, exit.denials, "the session's denials");
    ensure_eq!(report.counters.denied, 2, "the session's count of denials");
    // The next command is not told of what the last was refused.
    let said = session.sh("true").await?;
    ensure_eq!(said.exit.denials, Vec::<Denial>::new(), "denials of a command that did nothing");
    Ok(())
}

async fn a_peer_that_refuses_is_no_denial(bench: &Bench) -> Check {
    let internet = internet(bench)?;
    let session = open(bench, "public").await?;
    let said = session.sh(&talk("STREAM", internet.v4, internet.closed)).await?;
    ensure_eq!(said.stdout.as_ref(), b"ECONNREFUSED\n", "a closed port");
    ensure_eq!(said.exit.denials, Vec::<Denial>::new(), "denials");
    Ok(())
}

async fn what_a_command_used_is_counted(bench: &Bench) -> Check {
    let internet = internet(bench)?;
    let session = open(bench, "public").await?;
    let once = talk("STREAM", internet.v4, internet.echo);
    for _ in 0..2 {
        let said = session.sh(&once).await?;
        let used = said.exit.network.ok_or("no counters in the result")?;
        ensure_eq!(
            (used.connections_opened, used.bytes_sent, used.bytes_received),
            (1, 5, 5),
            format!("one connection, five bytes each way: {used:?}")
        );
    }
    let report = bench.backend.network(&session.info.id).await.map_err(|error| chain(&error))?;
    ensure_eq!(report.counters.connections_opened, 2, "connections of the session");
    let off = bench.start().await?;
    ensure_eq!(off.sh("true").await?.exit.network, None, "counters of a box with network off");
    Ok(())
}

async fn a_new_policy_holds_at_once(bench: &Bench) -> Check {
    let internet = internet(bench)?;
    let session = open(bench, "public").await?;
    let script = format!(
        "/usr/bin/python3 -u -c \"import socket\ns=socket.create_connection(('{}',{}))\nprint('up')\ntry: s.recv(1);print('end')\nexcept OSError as e: print(type(e).__name__)\"",
        internet.v4, internet.echo
    );
    let mut live = session.live(ExecRequest::shell(script)).await?;
    live.until("up").await?;
    let narrower = isolation(bench, &format!("public, deny {}", internet.v4))?;
    bench.backend.set_network(&session.info.id, narrower).await.map_err(|error| chain(&error))?;
    live.until("ConnectionResetError").await?;
    let said = session.sh(&talk("STREAM", internet.v4, internet.echo)).await?;
    ensure!(turned_away(&said.stdout), "what is denied now: {said:?}");
    bench
        .backend
        .set_network(&session.info.id, isolation(bench, "public")?)
        .await
        .map_err(|error| chain(&error))?;
    let said = session.sh(&talk("STREAM", internet.v4, internet.echo)).await?;
    ensure_eq!(said.stdout.as_ref(), b"hello\n", "what is allowed again");
    let beyond = Isolation { grants: Default::default(), ..isolation(bench, "allow 10.0.0.0/8")? };
    match bench.backend.set_network(&session.info.id, beyond).await {
        Err(error) => ensure_eq!(error.kind(), ErrorKind::Denied, "the kind of the error"),
        Ok(()) => return Err("a policy beyond the grants is taken".to_owned()),
    }
    Ok(())
}

async fn a_port_of_the_box_can_be_reached(bench: &Bench) -> Check {
    let session = open(bench, "off").await?;
    let server = "import socket\ns=socket.create_server(('0.0.0.0',8080))\nprint('listens')\nc,_=s.accept()\nc.sendall(b'from the box: '+c.recv(99))";
    let mut live = session.live(ExecRequest::shell(format!("/usr/bin/python3 -u -c \"{server}\""))).await?;
    live.until("listens").await?;
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(|error| error.to_string())?;
    bench
        .backend
        .forward(&session.info.id, 8080, OwnedFd::from(theirs))
        .await
        .map_err(|error| chain(&error))?;
    let talked = tokio::task::spawn_blocking(move || -> std::io::Result<String> {
        use std::io::{Read, Write};
        let mut ours = ours;
        ours.set_read_timeout(Some(Duration::from_secs(10)))?;
        ours.write_all(b"hello")?;
        let mut text = String::new();
        ours.read_to_string(&mut text)?;
        Ok(text)
    });
    let text = talked.await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
    ensure_eq!(text, "from the box: hello", "what the box's server said");
    Ok(())
}

async fn a_restarted_box_has_its_network(bench: &Bench) -> Check {
    let internet = internet(bench)?;
    let session = open(bench, "public").await?;
    session.sh("echo kept > file").await?;
    let mut spec = crate::SessionSpec::new(session.info.id.clone());
    spec.network = Network::Isolated(Box::new(isolation(bench, &format!("allow {}", internet.v4))?));
    bench.backend.restart(spec).await.map_err(|error| chain(&error))?;
    let said = session.sh(&format!("cat file; {}", talk("STREAM", internet.v4, internet.echo))).await?;
    ensure_eq!(said.stdout.as_ref(), b"kept\nhello\n", "files and network after a restart");
    Ok(())
}
