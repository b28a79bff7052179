//! The conformance suite two hops deep: our client at the E2B face of a Sandcrate with native boxes, in this process.
//!
//! With `SANDCRATE_TEST_E2B_URL` and `E2B_API_KEY` it runs at another endpoint instead.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use sandcrate_backend::Backend;
use sandcrate_backend::conformance::{self, Harness};
use sandcrate_backend_e2b::{E2bBackend, E2bConfig, E2bSettings};
use sandcrate_backend_native::{NativeBackend, NativeConfig};
use sandcrate_protocol::Control;
use sandcrate_runtime::{Runtime, RuntimeConfig};
use sandcrate_server::{App, Listener, ServeError, ServerConfig, serve_app};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub(crate) const KEY: &str = "e2b-0123456789abcdef0123456789abcdef";
/// Nothing here takes so long, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(60);

const LINK: &str = "the place is a link into the home, which `pwd -P` tells";

/// What E2B's protocol, or a copy of a directory, cannot give; the reason is printed with the case.
const DEVIATIONS: [(&str, &str); 9] = [
    ("commands::commands_start_in_workspace", LINK),
    ("commands::a_missing_workdir_is_made", LINK),
    ("mounts::a_mount_on_workspace_replaces_the_private_one", LINK),
    ("environment::the_base_has_path_home_and_lang_only", "the base of an environment is the template's"),
    (
        "environment::session_and_command_variables_are_set_and_the_later_wins",
        "the base of an environment is the template's, and the case counts its variables",
    ),
    (
        "keeping::a_quota_on_a_shared_directory_ends_the_command_and_stops_the_next",
        "a shared directory is a copy: it is counted when the command has ended",
    ),
    ("keeping::kept_storage_of_any_depth_is_removed", "a path of 3000 bytes is more than a copy takes"),
    (
        "file_errors::a_read_only_place_is_not_written",
        "whether the root can be written is the template's to say, and here it can",
    ),
    (
        "mounts::a_read_only_mount_refuses_every_write",
        "a read-only directory is a copy, whose owner can change its mode; the host's is never written",
    ),
];

/// A Sandcrate that serves E2B's API.
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    native: Arc<NativeBackend>,
    shutdown: CancellationToken,
    serving: JoinHandle<Result<(), ServeError>>,
}

impl Peer {
    /// Boxes have a root that can be written, so that places can be made in it as in E2B's own templates.
    pub(crate) async fn start(scratch: &Path) -> Self {
        Self::behind(scratch, Listener::Tcp).await
    }

    /// The same, served by a listener of another kind.
    pub(crate) async fn behind(
        scratch: &Path,
        door: impl FnOnce(tokio::net::TcpListener) -> Listener,
    ) -> Self {
        let config =
            NativeConfig { state_dir: scratch.join("native"), pool: 4, ..NativeConfig::for_this_user() };
        let native = Arc::new(NativeBackend::open(config).await.expect("native boxes"));
        let mut settings = RuntimeConfig::new(scratch.join("peer"));
        settings.limits.commands = 256;
        let runtime = Runtime::open(settings, vec![native.clone()]).await.expect("a runtime");
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let token = Some(KEY.parse().expect("a token"));
        let mut server =
            ServerConfig { token, shutdown_grace: Duration::from_secs(1), ..ServerConfig::default() };
        let writable = serde_json::json!({"read_only_rootfs": false, "disk_mb": 1024});
        server.e2b.templates.insert("base".to_owned(), serde_json::from_value(writable).expect("a template"));
        let shutdown = CancellationToken::new();
        let app = App::new(runtime, server, shutdown.clone());
        let serving = tokio::spawn(serve_app(vec![door(listener)], app));
        Self { address, native, shutdown, serving }
    }

    pub(crate) async fn stop(self) -> Result<(), String> {
        self.shutdown.cancel();
        let ended = tokio::time::timeout(PATIENCE, self.serving).await;
        ended
            .map_err(|_| "the peer did not end")?
            .map_err(|error| error.to_string())?
            .map_err(|error| error.to_string())?;
        self.native.shutdown().await;
        Ok(())
    }
}

/// The client at its peer.
pub(crate) struct Far {
    pub(crate) backend: Arc<E2bBackend>,
    peer: std::sync::Mutex<Option<Peer>>,
    scratch: tempfile::TempDir,
}

impl Far {
    pub(crate) async fn new() -> Self {
        let scratch = tempfile::Builder::new()
            .prefix("sandcrate-e2b-")
            .tempdir_in("/var/tmp")
            .expect("a scratch directory");
        let elsewhere = std::env::var("SANDCRATE_TEST_E2B_URL").ok();
        let peer = match elsewhere {
            Some(_) => None,
            None => Some(Peer::start(scratch.path()).await),
        };
        let operator = match &peer {
            Some(peer) => E2bSettings {
                api_key: Some(KEY.to_owned()),
                api_url: Some(format!("http://{}", peer.address)),
                ..E2bSettings::default()
            },
            None => E2bSettings {
                api_key: std::env::var("E2B_API_KEY").ok(),
                api_url: elsewhere,
                ..E2bSettings::default()
            },
        };
        let config = E2bConfig {
            environment: E2bSettings::default(),
            operator,
            ..E2bConfig::new(scratch.path().join("state"))
        };
        let backend = Arc::new(E2bBackend::open(config).await.expect("a client"));
        Self { backend, peer: std::sync::Mutex::new(peer), scratch }
    }

    /// Ends both ends; what is left is a failure.
    pub(crate) async fn close(&self) -> Result<(), String> {
        self.backend.shutdown().await;
        let peer = self.peer.lock().expect("nobody panics here").take();
        match peer {
            Some(peer) => peer.stop().await,
            None => Ok(()),
        }
    }
}

impl Harness for Far {
    fn backend(&self) -> Arc<dyn Backend> {
        Arc::clone(&self.backend) as Arc<dyn Backend>
    }

    /// As the record says of every box: limits and confinement are the template's.
    fn enforces(&self, control: Control) -> bool {
        matches!(control, Control::Network | Control::CommandKill | Control::Cleanup)
    }

    fn keeps_root(&self) -> bool {
        false
    }

    fn host_dir(&self) -> Result<PathBuf, String> {
        let made = tempfile::Builder::new().prefix("host-").tempdir_in(self.scratch.path());
        made.map(tempfile::TempDir::keep).map_err(|error| error.to_string())
    }
}

pub(crate) fn trials(far: &Arc<Far>, handle: &Handle) -> Vec<Trial> {
    let shared: Arc<dyn Harness> = Arc::clone(far) as Arc<dyn Harness>;
    let cases = conformance::cases();
    for (name, _) in DEVIATIONS {
        assert!(cases.iter().any(|case| case.name == name), "no case {name}");
    }
    let trials = cases.into_iter().map(|case| {
        let (harness, handle) = (Arc::clone(&shared), handle.clone());
        let deviation =
            DEVIATIONS.iter().find(|(name, _)| *name == case.name).map(|(_, why)| (*why).to_owned());
        let missing = case.missing(&*harness).or(deviation);
        if let Some(why) = &missing {
            eprintln!("SKIP: {}: {why}", case.name);
        }
        let run = move || handle.block_on((case.run)(harness)).map_err(Failed::from);
        Trial::test(format!("far::{}", case.name), run).with_ignored_flag(missing.is_some())
    });
    trials.collect()
}
