//! How many commands a second, with callers on boxes of their own, beside what the floor manages.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sandcrate_backend::{ExecRequest, SessionId};
use tokio::runtime::Runtime;

use crate::args::Options;
use crate::catalog::{Figure, Row};
use crate::floor::{Floor, Payload, WarmInit};
use crate::measurements::Measurements;
use crate::native::{Native, exec};
use crate::server::{Caller, Subject};

/// Callers, the floor's row, ours, and what a server shows.
const STEPS: [(usize, Row, Row, Figure); 3] = [
    (1, Row::FloorRate1, Row::Rate1, Figure::Rate1),
    (8, Row::FloorRate8, Row::Rate8, Figure::Rate8),
    (32, Row::FloorRate32, Row::Rate32, Figure::Rate32),
];
const MOST: usize = 32;
/// Where 32 callers wait more than a second for each reply, a short window would count one each.
const SLOW_WINDOW: Duration = Duration::from_secs(3);

pub(crate) fn measure(
    options: &Options,
    runtime: &Runtime,
    floor: &Floor,
    subjects: &[Subject],
    measured: &mut Measurements,
) -> anyhow::Result<()> {
    let native = Native::open(runtime, 0)?;
    let inits: Vec<WarmInit> = (0..MOST).map(|_| floor.warm_init()).collect::<Result<_, _>>()?;
    let sessions: Vec<SessionId> = (0..MOST).map(|_| native.session()).collect::<Result<_, _>>()?;
    let (program, shell) = (ExecRequest::argv(["true"]), ExecRequest::shell("true"));
    let mut served = subjects
        .iter()
        .filter(|subject| subject.server.is_shipped() && subject.server.has_boxes())
        .map(Served::open)
        .collect::<anyhow::Result<Vec<_>>>()?;
    let window = options.window();
    for _ in 0..options.rounds() {
        for (callers, floor_row, our_row, figure) in STEPS {
            measured.value(floor_row, floor_rate(&inits[..callers], window)?);
            measured.value(our_row, our_rate(&native, &sessions[..callers], &program, window)?);
            for Served { subject, callers: clients, sessions } in &mut served {
                let window = if subject.server.is_ours() { window } else { window.max(SLOW_WINDOW) };
                let rate = subject.rate(&mut clients[..callers], &sessions[..callers], window)?;
                measured.value(Row::Rpc(figure, subject.server), rate);
            }
        }
        measured.value(Row::RateShell32, our_rate(&native, &sessions, &shell, window)?);
        measured.end_round();
    }
    native.close();
    served.into_iter().try_for_each(Served::close)
}

/// A server with clients, each with a session of its own.
struct Served<'a> {
    subject: &'a Subject,
    callers: Vec<Caller>,
    sessions: Vec<String>,
}

impl<'a> Served<'a> {
    fn open(subject: &'a Subject) -> anyhow::Result<Self> {
        let mut callers = subject.callers(MOST)?;
        let sessions = subject.sessions(&mut callers)?;
        Ok(Self { subject, callers, sessions })
    }

    fn close(self) -> anyhow::Result<()> {
        self.subject.delete(&mut self.subject.caller()?, &self.sessions)
    }
}

/// One thread for each init.
fn floor_rate(inits: &[WarmInit], window: Duration) -> anyhow::Result<f64> {
    let started = Instant::now();
    let done = std::thread::scope(|scope| {
        let callers: Vec<_> = inits
            .iter()
            .map(|init| {
                scope.spawn(move || {
                    let mut done = 0_u32;
                    while started.elapsed() < window {
                        init.run(Payload::True)?;
                        done += 1;
                    }
                    Ok::<_, std::io::Error>(done)
                })
            })
            .collect();
        callers.into_iter().map(|caller| caller.join().unwrap_or(Ok(0))).sum::<Result<u32, _>>()
    })?;
    Ok(f64::from(done) / started.elapsed().as_secs_f64())
}

/// One task for each session.
fn our_rate(
    native: &Native,
    sessions: &[SessionId],
    request: &ExecRequest,
    window: Duration,
) -> anyhow::Result<f64> {
    let started = Instant::now();
    let callers: Vec<_> = sessions
        .iter()
        .map(|session| {
            let (backend, session, request) = (Arc::clone(&native.backend), session.clone(), request.clone());
            native.runtime.spawn(async move {
                let mut done = 0_u32;
                while started.elapsed() < window {
                    exec(&*backend, &session, request.clone()).await?;
                    done += 1;
                }
                anyhow::Ok(done)
            })
        })
        .collect();
    let mut done = 0;
    for caller in callers {
        done += native.runtime.block_on(caller)??;
    }
    Ok(f64::from(done) / started.elapsed().as_secs_f64())
}
