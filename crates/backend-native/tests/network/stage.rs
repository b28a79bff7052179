//! The daemon of these tests, and boxes on it.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sandcrate_backend::conformance::{Harness, Internet};
use sandcrate_backend::{
    Backend, Collected, Command, ExecRequest, Isolation, Network, NetworkReport, SessionId, SessionInfo,
    SessionSpec,
};
use sandcrate_backend_native::{NativeBackend, NativeConfig};
use sandcrate_protocol::network::{Denial, Grants};

use crate::internet::{CLOSED, ECHO, FORBIDDEN, WEB, WEB6};

pub(crate) type Test = (&'static str, fn(Arc<Stage>) -> Pin<Box<dyn Future<Output = ()>>>);

/// A test from an async function of the stage.
macro_rules! test {
    ($name:ident) => {
        (stringify!($name), |stage| Box::pin($name(stage)))
    };
}
pub(crate) use test;

/// The servers of the test Internet stand at reserved addresses, so the operator grants them.
pub(crate) const GRANTED: [&str; 2] = ["203.0.113.0/24", "2001:db8:f::/48"];

#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) backend: Arc<NativeBackend>,
    scratch: tempfile::TempDir,
}

impl Stage {
    pub(crate) async fn open() -> Self {
        let scratch = tempfile::Builder::new().prefix("sandcrate-netit-").tempdir_in("/var/tmp").unwrap();
        let config = NativeConfig {
            state_dir: scratch.path().join("state"),
            pool: 2,
            ..NativeConfig::for_this_user()
        };
        let backend = Arc::new(NativeBackend::open(config).await.expect("the backend opens"));
        Self { backend, scratch }
    }

    pub(crate) async fn close(&self) {
        self.backend.shutdown().await;
    }

    /// A box with this policy.
    pub(crate) async fn open_box(&self, policy: &str) -> TestBox {
        self.open_with(isolation(policy), |_| {}).await
    }

    pub(crate) async fn open_with(
        &self,
        isolation: Isolation,
        change: impl FnOnce(&mut SessionSpec),
    ) -> TestBox {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let id = SessionId::new(format!("net-{}", COUNT.fetch_add(1, Ordering::Relaxed))).unwrap();
        let mut spec = SessionSpec::new(id.clone());
        spec.network = Network::Isolated(Box::new(isolation));
        change(&mut spec);
        let info = self.backend.start(spec).await.unwrap_or_else(|error| panic!("{}", chain(&error)));
        TestBox { backend: Arc::clone(&self.backend), id, info }
    }
}

impl Harness for Stage {
    fn backend(&self) -> Arc<dyn Backend> {
        Arc::clone(&self.backend) as Arc<dyn Backend>
    }

    fn host_dir(&self) -> Result<PathBuf, String> {
        let made = tempfile::Builder::new().prefix("host-").tempdir_in(self.scratch.path());
        made.map(tempfile::TempDir::keep).map_err(|error| error.to_string())
    }

    fn internet(&self) -> Option<Internet> {
        Some(Internet {
            grants: grants(&GRANTED),
            name: "web.example".to_owned(),
            v4: WEB.parse().unwrap(),
            v6: WEB6.parse().unwrap(),
            echo: ECHO,
            closed: CLOSED,
            forbidden: FORBIDDEN[0].parse().unwrap(),
        })
    }
}

pub(crate) fn grants(allow: &[&str]) -> Grants {
    Grants { allow: allow.iter().map(|rule| rule.parse().unwrap()).collect(), deny: Vec::new() }
}

pub(crate) fn isolation(policy: &str) -> Isolation {
    Isolation { policy: policy.parse().unwrap(), grants: grants(&GRANTED), ..Isolation::default() }
}

pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text = format!("{text}: {next}");
        cause = next.source();
    }
    text
}

pub(crate) struct TestBox {
    pub(crate) backend: Arc<NativeBackend>,
    pub(crate) id: SessionId,
    pub(crate) info: SessionInfo,
}

/// What a command came to.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) ok: bool,
    /// Both streams.
    pub(crate) text: String,
    pub(crate) denials: Vec<Denial>,
    pub(crate) full: Collected,
}

impl TestBox {
    pub(crate) async fn stop(self) {
        self.backend.stop(&self.id).await.unwrap();
    }

    pub(crate) async fn run(&self, script: &str) -> Ran {
        let mut request = ExecRequest::new(Command::Shell(script.to_owned()));
        request.timeout = Some(Duration::from_secs(30));
        let execution = self.backend.exec(&self.id, request).await.unwrap();
        let full = execution.collect(1 << 20).await.unwrap_or_else(|error| panic!("{}", chain(&error)));
        let text = [full.stdout.as_ref(), full.stderr.as_ref()].concat();
        Ran {
            ok: full.exit.status.shell_code() == 0,
            text: String::from_utf8_lossy(&text).trim().to_owned(),
            denials: full.exit.denials.clone(),
            full,
        }
    }

    /// Runs a command that must succeed without a denial, and returns what it printed.
    pub(crate) async fn must(&self, script: &str) -> String {
        let ran = self.run(script).await;
        assert!(ran.ok && ran.denials.is_empty(), "{script}\n{ran:?}");
        ran.text
    }

    pub(crate) async fn python(&self, script: &str) -> Ran {
        self.run(&format!("/usr/bin/python3 - <<'END'\n{script}\nEND")).await
    }

    /// How a TCP connection from the box ends: `ok` or the error's name; and what was refused.
    pub(crate) async fn connect(&self, address: &str, port: u16) -> (String, Ran) {
        let ran = self
            .python(&format!(
                "import socket,errno,time\nf=socket.AF_INET6 if ':' in '{address}' else socket.AF_INET\ns=socket.socket(f)\ns.settimeout(8)\nt=time.time()\ntry:\n s.connect(('{address}',{port}));r='ok'\nexcept OSError as e: r=errno.errorcode.get(e.errno, str(e))\nassert time.time()-t<2, time.time()-t\nprint(r)"
            ))
            .await;
        assert!(ran.ok, "{address}:{port}: {ran:?}");
        (ran.text.clone(), ran)
    }

    pub(crate) async fn report(&self) -> NetworkReport {
        self.backend.network(&self.id).await.unwrap()
    }
}

/// Waits until `check` holds.
pub(crate) async fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !check() {
        assert!(Instant::now() < end, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Processes of this program that are network helpers.
pub(crate) fn helpers() -> Vec<i32> {
    let me = std::process::id();
    let is_helper = |pid: &i32| {
        let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let parent = read("status").lines().any(|line| line == format!("PPid:\t{me}"));
        parent && read("comm").trim() == "sandcrate-net"
    };
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_helper).collect()
}
