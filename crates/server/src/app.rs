//! What every face shares, and the one router they are assembled into.

use std::sync::Arc;

use axum::Router;
use axum::http::{Method, StatusCode, Uri};
use axum::middleware::from_fn_with_state;
use sandcrate_host::HostError;
use sandcrate_mcp::box_server::HttpFace;
use sandcrate_runtime::Runtime;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower_http::timeout::RequestBodyTimeoutLayer;

use crate::auth::{Admission, Face, Guard, admit};
use crate::mcp::{self, Mcp};
use crate::tenancy::Tenancy;
use crate::tools::Tools;
use crate::{Refusal, ServerConfig, box_mcp, e2b, operations, relay, rest, rpc};

/// The state of the router. Clones share everything.
#[derive(Debug, Clone)]
pub struct App {
    pub runtime: Runtime,
    pub config: Arc<ServerConfig>,
    /// Cancelled when we are told to stop: nothing new is taken, what runs may end.
    pub shutdown: CancellationToken,
    /// Cancelled when the time for that is over.
    pub abort: CancellationToken,
    /// Owns the tasks of upgraded connections and of RPC requests; `serve` waits for them.
    pub tasks: TaskTracker,
    pub(crate) admission: Arc<Admission>,
    pub(crate) tenancy: Arc<Tenancy>,
    /// Or why there are none, to be told to whoever asks for one.
    pub(crate) tools: Arc<Result<Tools, HostError>>,
    /// Boxes for MCP clients; or as above.
    pub(crate) boxes: Arc<Result<HttpFace, HostError>>,
    /// MCP servers in boxes, and the gateway over them.
    pub(crate) mcp: Arc<Mcp>,
    /// Sandboxes of E2B's SDKs.
    pub(crate) e2b: Arc<e2b::Face>,
    /// One permit per RPC request under way; see `ServerLimits::in_flight_total`.
    pub(crate) in_flight: Arc<Semaphore>,
}

impl App {
    pub fn new(runtime: Runtime, config: ServerConfig, shutdown: CancellationToken) -> Self {
        let admission = Arc::new(Admission::new(&config));
        let tenancy = Arc::new(Tenancy::new(&config));
        let in_flight = Arc::new(Semaphore::new(config.limits.in_flight_total));
        let tools = Arc::new(Tools::new(runtime.clone(), config.tools.clone()));
        let mcp = Arc::new(Mcp::new(&runtime, &config.mcp, &shutdown));
        let e2b = Arc::new(e2b::Face::new(&runtime));
        let abort = CancellationToken::new();
        let tasks = TaskTracker::new();
        let boxes = Arc::new(box_mcp::face(&runtime, &config, &tasks, &shutdown));
        Self {
            runtime,
            config: Arc::new(config),
            shutdown,
            abort,
            tasks,
            admission,
            tenancy,
            tools,
            boxes,
            mcp,
            e2b,
            in_flight,
        }
    }

    /// Every route, behind authentication. Requests need a [`crate::Connection`] extension, which `serve` sets.
    pub fn router(&self) -> Router {
        let guarded = |routes: Router<Self>, face| {
            let guard = Guard { admission: self.admission.clone(), face };
            routes.method_not_allowed_fallback(method_not_allowed).layer(from_fn_with_state(guard, admit))
        };
        let api = Router::new()
            .merge(rest::routes())
            .merge(box_mcp::routes())
            .merge(mcp::routes())
            .merge(operations::metrics_route())
            .fallback(not_found);
        Router::new()
            .merge(guarded(rpc::routes(), Face::Rpc))
            .merge(guarded(relay::routes(), Face::Relay))
            .merge(guarded(api, Face::Api))
            .merge(operations::open_routes())
            .merge(rest::open_routes())
            .merge(e2b::routes(self))
            // Before any route: a sandbox has a `/health` and a `/metrics` of its own.
            .layer(from_fn_with_state(self.clone(), e2b::dispatch))
            .layer(RequestBodyTimeoutLayer::new(self.config.limits.body_timeout))
            .with_state(self.clone())
    }
}

async fn not_found(uri: Uri) -> Refusal {
    // A path is the peer's text; what we give back of it is cut.
    let path: String = uri.path().chars().take(200).collect();
    Refusal::new(StatusCode::NOT_FOUND, "not_found", format!("there is nothing at {path}"))
}

async fn method_not_allowed(method: Method) -> Refusal {
    let message = format!("{method} is not served here");
    Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
}
