//! The server as a client meets it, and LangBot's own runtime beside it: one Rust client speaks to both.

mod bare_containers;
mod churn;
mod client;
mod crowd;
mod daemon;
mod output;
pub(crate) mod reference;
mod startup;

use std::cell::Cell;
use std::ffi::OsString;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use futures_util::future::try_join_all;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::args::Options;
use crate::catalog::Server;
use crate::floor::Floor;
use crate::measurements::Measurements;

use client::Client;
pub(crate) use client::Relay;
use daemon::{Daemon, Recipe};
use reference::Reference;

/// How long the reference may take to remove its boxes.
const SHUTDOWN: Duration = Duration::from_secs(60);
/// Long enough that no measured command meets it.
const TIMEOUT_SEC: u32 = 3600;

/// Servers that can be started here, and the one thread on which their client runs.
#[derive(Debug)]
pub(crate) struct Servers {
    entries: Vec<Entry>,
    runtime: Rc<Runtime>,
}

#[derive(Debug)]
struct Entry {
    server: Server,
    recipe: Recipe,
    image: Option<String>,
}

/// A running server to be measured.
#[derive(Debug)]
pub(crate) struct Subject {
    pub(crate) server: Server,
    daemon: Daemon,
    runtime: Rc<Runtime>,
    image: Option<String>,
    next: Cell<u64>,
}

/// A connection to a subject, for one caller at a time.
#[derive(Debug)]
pub(crate) struct Caller {
    client: Client,
    image: Option<String>,
}

/// The times of one session.
pub(crate) struct Life {
    /// From the start of the creation.
    pub(crate) first_exec: Duration,
    pub(crate) delete: Duration,
}

impl Servers {
    /// Finds out what can be started; what cannot is noted, with the reason.
    pub(crate) fn find(options: &Options, measured: &mut Measurements) -> anyhow::Result<Self> {
        let mut servers = Self::find_ours(options, measured)?;
        if let Err(error) = servers.add_references(measured) {
            measured.note(format!("LangBot's runtime: absent, {error:#}"));
        }
        Ok(servers)
    }

    /// Our own alone, with pools of all sizes.
    pub(crate) fn find_ours(options: &Options, measured: &mut Measurements) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let mut entries = Vec::new();
        match options.sandcrate() {
            Some(program) => {
                let ours = |server, pool: &str| Entry {
                    server,
                    recipe: Recipe {
                        program: program.clone(),
                        arguments: vec!["serve", "--listen", "127.0.0.1:{port}", "--state-dir", "{state}"],
                        environment: vec![("SANDCRATE__NATIVE__POOL", OsString::from(pool))],
                    },
                    image: None,
                };
                entries.push(ours(Server::Sandcrate, "4"));
                entries.push(ours(Server::SandcrateNoPool, "0"));
                entries.push(ours(Server::SandcratePool64, "64"));
            }
            None => {
                measured.note("sandcrate serve: absent, the program is not built; see --sandcrate".to_owned())
            }
        }
        Ok(Self { entries, runtime: Rc::new(runtime) })
    }

    /// LangBot's runtime on each backend on which a first session works, else on none.
    fn add_references(&mut self, measured: &mut Measurements) -> anyhow::Result<()> {
        let (found, absent) = reference::find()?;
        absent.into_iter().for_each(|why| measured.note(why));
        // Ours on the same daemon, of the same image.
        let docker = found.iter().find(|reference| reference.server == Server::ReferenceDocker);
        if let (Some(ours), Some(docker)) = (self.ours(), docker) {
            let mut recipe = ours.recipe.clone();
            recipe.environment.push(("SANDCRATE__RUNTIME__BACKEND", OsString::from("docker")));
            let entry = Entry { server: Server::SandcrateDocker, recipe, image: docker.image.clone() };
            match self.try_out(&entry) {
                Ok(()) => self.entries.push(entry),
                Err(error) => measured.note(format!("{}: absent, {error:#}", Server::SandcrateDocker)),
            }
        }
        let alone = self.entries.len();
        for Reference { server, recipe, image } in found {
            let entry = Entry { server, recipe, image };
            match self.try_out(&entry) {
                Ok(()) => self.entries.push(entry),
                Err(error) => measured.note(format!("{server}: absent, {error:#}")),
            }
        }
        if self.entries.len() == alone {
            let Reference { server, recipe, image } = reference::without_backend()?;
            self.entries.push(Entry { server, recipe, image });
            measured.note(
                "LangBot's runtime has no backend here: only its start, ping and memory are measured"
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// As their users have them, without our pools of other sizes.
    pub(crate) fn shipped(mut self) -> Self {
        self.entries.retain(|entry| entry.server.is_shipped());
        self
    }

    fn try_out(&self, entry: &Entry) -> anyhow::Result<()> {
        let (subject, _) = self.start(entry)?;
        let mut caller = subject.caller()?;
        subject.run(caller.life(&subject.next_id())).map(drop)
    }

    pub(crate) fn start_all(&self) -> anyhow::Result<Vec<Subject>> {
        self.entries.iter().map(|entry| Ok(self.start(entry)?.0)).collect()
    }

    fn start(&self, entry: &Entry) -> anyhow::Result<(Subject, Duration)> {
        let (daemon, time) = Daemon::start(&entry.recipe, &self.runtime)
            .with_context(|| format!("starting {}", entry.server))?;
        let subject = Subject {
            server: entry.server,
            daemon,
            runtime: Rc::clone(&self.runtime),
            image: entry.image.clone(),
            next: Cell::new(0),
        };
        Ok((subject, time))
    }

    /// Our own, as it is shipped.
    fn ours(&self) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.server == Server::Sandcrate)
    }

    /// Everything that wants a server of its own.
    pub(crate) fn measure(
        &self,
        options: &Options,
        floor: &Floor,
        measured: &mut Measurements,
    ) -> anyhow::Result<()> {
        startup::measure(options, self, measured)?;
        if let Some(ours) = self.ours() {
            crowd::measure(options, self, ours, floor, measured)?;
            churn::measure(options, self, ours, measured)?;
        }
        Ok(())
    }
}

/// What passes through a running server in bulk: output, lines, sessions.
pub(crate) fn measure_bulk(
    options: &Options,
    subjects: &[Subject],
    measured: &mut Measurements,
) -> anyhow::Result<()> {
    output::measure(options, subjects, measured)
}

/// Lines and bytes of processes alone.
pub(crate) fn measure_relay(
    options: &Options,
    subjects: &[Subject],
    measured: &mut Measurements,
) -> anyhow::Result<()> {
    output::measure_relay(options, subjects, measured)
}

impl Subject {
    pub(crate) fn run<T>(&self, work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
        self.runtime.block_on(work).with_context(|| format!("measuring {}", self.server))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.daemon.pid()
    }

    pub(crate) fn next_id(&self) -> String {
        self.next.set(self.next.get() + 1);
        format!("bench-{}", self.next.get())
    }

    /// A connection of its own. One that rests for a minute is closed by the server.
    pub(crate) fn caller(&self) -> anyhow::Result<Caller> {
        let client = self.run(Client::connect(self.daemon.port))?;
        Ok(Caller { client, image: self.image.clone() })
    }

    pub(crate) fn callers(&self, count: usize) -> anyhow::Result<Vec<Caller>> {
        (0..count).map(|_| self.caller()).collect()
    }

    /// A live session.
    pub(crate) fn session(&self, caller: &mut Caller) -> anyhow::Result<String> {
        let id = self.next_id();
        self.run(caller.create(&id))?;
        Ok(id)
    }

    /// A session for each caller, made one after the other.
    pub(crate) fn sessions(&self, callers: &mut [Caller]) -> anyhow::Result<Vec<String>> {
        callers.iter_mut().map(|caller| self.session(caller)).collect()
    }

    pub(crate) fn delete(&self, caller: &mut Caller, sessions: &[String]) -> anyhow::Result<()> {
        sessions.iter().try_for_each(|session| self.run(caller.delete(session)))
    }

    /// A process that gives every line back, attached, in a session of its own.
    pub(crate) fn echo(&self, caller: &mut Caller) -> anyhow::Result<(String, Relay)> {
        let session = self.session(caller)?;
        let relay = self.attach(caller, &session, "exec cat")?;
        Ok((session, relay))
    }

    fn attach(&self, caller: &mut Caller, session: &str, script: &str) -> anyhow::Result<Relay> {
        let process = json!({"process_id": "default", "command": "sh", "args": ["-c", script]});
        self.run(async {
            caller
                .client
                .call("box_start_managed_process", json!({"session_id": session, "spec": process}))
                .await?;
            Relay::attach(self.daemon.port, session).await
        })
    }

    /// Sessions made, used once and deleted by all callers at once, one after the other by each.
    pub(crate) fn lives_at_once(&self, callers: &mut [Caller], each: usize) -> anyhow::Result<()> {
        let lives = callers.iter_mut().map(|caller| async move {
            for _ in 0..each {
                caller.life(&self.next_id()).await?;
            }
            anyhow::Ok(())
        });
        self.run(try_join_all(lives)).map(drop)
    }

    /// How long each caller waits for the first result in a new session when all want one at the same moment.
    pub(crate) fn burst(&self, callers: &mut [Caller]) -> anyhow::Result<Vec<Duration>> {
        let sessions: Vec<_> = callers.iter().map(|_| self.next_id()).collect();
        let first = callers.iter_mut().zip(&sessions).map(|(caller, session)| async move {
            let started = Instant::now();
            caller.create(session).await?;
            caller.exec(session, "true").await?;
            anyhow::Ok(started.elapsed())
        });
        let times = self.run(try_join_all(first))?;
        self.delete(&mut callers[0], &sessions)?;
        Ok(times)
    }

    /// Commands a second while every caller uses a session of its own: the sum of what each gets in its own time, so
    /// that one late reply is not taken for rest of the others.
    pub(crate) fn rate(
        &self,
        callers: &mut [Caller],
        sessions: &[String],
        window: Duration,
    ) -> anyhow::Result<f64> {
        let started = Instant::now();
        let calls = callers.iter_mut().zip(sessions).map(|(caller, session)| async move {
            let mut done = 0_u32;
            while started.elapsed() < window {
                caller.exec(session, "true").await?;
                done += 1;
            }
            anyhow::Ok(f64::from(done) / started.elapsed().as_secs_f64())
        });
        Ok(self.run(try_join_all(calls))?.into_iter().sum())
    }
}

impl Subject {
    /// Where it listens on loopback.
    pub(crate) fn port(&self) -> u16 {
        self.daemon.port
    }
}

impl Drop for Subject {
    /// The reference leaves its boxes behind unless it is told to remove them.
    fn drop(&mut self) {
        if self.server.is_ours() || !self.server.has_boxes() {
            return;
        }
        let Ok(mut caller) = self.caller() else { return };
        let shutdown =
            async { tokio::time::timeout(SHUTDOWN, caller.client.call("box_shutdown", json!({}))).await };
        let _ = self.runtime.block_on(shutdown);
    }
}

impl Caller {
    pub(crate) async fn ping(&mut self) -> anyhow::Result<Duration> {
        let started = Instant::now();
        self.client.call("__ping", json!({})).await?;
        Ok(started.elapsed())
    }

    pub(crate) async fn create(&mut self, session: &str) -> anyhow::Result<()> {
        let spec = self.spec(session, "");
        self.client.call("box_create_session", spec).await.map(drop)
    }

    /// A command by the box's shell; one that fails is no measurement.
    pub(crate) async fn exec(&mut self, session: &str, command: &str) -> anyhow::Result<Duration> {
        let spec = self.spec(session, command);
        let started = Instant::now();
        let done = self.client.call("box_exec", spec).await?;
        let time = started.elapsed();
        ensure!(
            done["exit_code"] == 0,
            "a measured command ended with {}: {}",
            done["exit_code"],
            done["stderr"]
        );
        Ok(time)
    }

    pub(crate) async fn delete(&mut self, session: &str) -> anyhow::Result<()> {
        self.client.call("box_delete_session", json!({"session_id": session})).await.map(drop)
    }

    /// A session from nothing to its first result, and its end.
    pub(crate) async fn life(&mut self, session: &str) -> anyhow::Result<Life> {
        let started = Instant::now();
        self.create(session).await?;
        self.exec(session, "true").await?;
        let first_exec = started.elapsed();
        let deleting = Instant::now();
        self.delete(session).await?;
        Ok(Life { first_exec, delete: deleting.elapsed() })
    }

    /// Sessions asked for all at once on this connection.
    pub(crate) async fn create_at_once(&mut self, sessions: &[String]) -> anyhow::Result<Duration> {
        let started = Instant::now();
        for session in sessions {
            let spec = self.spec(session, "");
            self.client.send("box_create_session", spec).await?;
        }
        for _ in sessions {
            self.client.receive().await?;
        }
        Ok(started.elapsed())
    }

    fn spec(&self, session: &str, command: &str) -> Value {
        let mut spec = json!({"session_id": session, "cmd": command, "timeout_sec": TIMEOUT_SEC});
        if let Some(image) = &self.image {
            spec["image"] = json!(image);
        }
        spec
    }
}
