//! MCP servers in boxes of our own runtime, and the gateway over them: `/mcp` for all, `/mcp/{server}` for each.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Path as Named, Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::any;
use sandcrate_host::EmbeddedClient;
use sandcrate_mcp::config::{McpConfig, Store};
use sandcrate_mcp::gateway::{Gateway, Scope};
use sandcrate_mcp::launch::{MountBy, Projects, index_settings};
use sandcrate_mcp::manager::Manager;
use sandcrate_mcp::{LaunchConfig, Launcher};
use sandcrate_runtime::Runtime;
use tokio_util::sync::CancellationToken;

use crate::{App, Refusal};

/// The servers and the gateway of one [`App`].
#[derive(Debug)]
pub(crate) struct Mcp {
    pub(crate) manager: Manager,
    pub(crate) gateway: Gateway,
    launcher: Arc<Launcher>,
}

impl Mcp {
    pub(crate) fn new(runtime: &Runtime, config: &McpConfig, shutdown: &CancellationToken) -> Self {
        let state_dir = &runtime.config().state_dir;
        let cache = state_dir.join("mcp").join("cache");
        let client = EmbeddedClient::new(runtime.clone()).keeping_sessions().with_own_root(&cache);
        let client = Arc::new(client);
        let mut launch = LaunchConfig::new(cache);
        launch.projects = Arc::new(MountRoots(runtime.clone()));
        launch.mount_by = MountBy::Setting;
        // Where packages come from is the operator's to say, by the variables that package managers know.
        let known =
            |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value.into_string().ok()?));
        launch.install_env = index_settings(std::env::vars_os().filter_map(known));
        let launcher = Arc::new(Launcher::new(client, launch));
        let store = Store::of_state_dir(state_dir);
        let stored = store.load();
        let stored = stored.unwrap_or_else(|error| {
            // Nothing is written over it: adding a server is refused until it is mended.
            let error = &error as &dyn std::error::Error;
            tracing::error!(error, "the stored MCP servers cannot be read; the operator's alone are started");
            BTreeMap::new()
        });
        let manager = Manager::new(launcher.clone(), config.clone(), Some(store), stored);
        let gateway = Gateway::new(manager.clone(), Arc::new(runtime.clone()), shutdown.child_token());
        Self { manager, gateway, launcher }
    }

    /// Ends every server and what was made for it. The runtime must still be there.
    pub(crate) async fn shutdown(&self) {
        self.gateway.close().await;
        self.manager.shutdown().await;
        self.launcher.close().await;
    }
}

/// Projects are mounts: below the operator's roots, and seen as they are.
#[derive(Debug)]
struct MountRoots(Runtime);

impl Projects for MountRoots {
    fn check(&self, directory: &Path, mode: &str) -> Result<(), String> {
        if mode == "copy" {
            // Made with our rights, of what somebody else may change meanwhile.
            return Err(
                "host_path_mode `copy` is for `sandcrate mcp run`; a server has ro, rw and none".to_owned()
            );
        }
        let path = directory.to_str().ok_or("the path of the project is not UTF-8")?;
        self.0.check_mount_source(path).map_err(|error| error.to_string())
    }
}

pub(crate) fn routes() -> Router<App> {
    Router::new().route("/mcp", any(all)).route("/mcp/{server}", any(one))
}

async fn all(State(app): State<App>, request: Request) -> Result<Response, Refusal> {
    answer(&app, Scope::All, request).await
}

async fn one(
    State(app): State<App>,
    Named(server): Named<String>,
    request: Request,
) -> Result<Response, Refusal> {
    answer(&app, Scope::One(server), request).await
}

async fn answer(app: &App, scope: Scope, request: Request) -> Result<Response, Refusal> {
    let name = match &scope {
        Scope::One(name) => name.chars().take(100).collect(),
        Scope::All => String::new(),
    };
    app.mcp.gateway.handle(scope, request).await.ok_or_else(|| {
        Refusal::new(StatusCode::NOT_FOUND, "mcp_server_not_found", format!("Server not found: {name}"))
    })
}
