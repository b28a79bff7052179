//! The faces of the runtime: action RPC over WebSocket and stdio, the process relay, REST, boxes for MCP clients,
//! sandboxes for E2B's SDKs, operations.
//!
//! Each face is thin: it admits a peer (`auth`), reads a request, asks the [`sandcrate_runtime::Runtime`], and
//! presents the answer. [`serve`] runs everything that is reached by HTTP, [`serve_stdio`] the action RPC of a
//! parent process. Nothing here names a concrete backend.

mod app;
mod auth;
mod box_mcp;
mod config;
mod e2b;
mod mcp;
mod operations;
mod placed;
mod refusal;
mod relay;
mod rest;
mod rpc;
mod serve;
mod tenancy;
mod tls;
mod tools;
mod uploads;
mod websocket;

pub use app::App;
pub use auth::{Cidr, Connection, Identity, Peer, Token};
pub use config::{ConfigError, Legacy, ServerConfig, ServerLimits};
pub use e2b::{E2bConfig, Template};
pub use refusal::Refusal;
pub use rpc::{StdioError, serve_stdio};
pub use sandcrate_mcp::config::McpConfig;
pub use serve::{Listener, ServeError, serve, serve_app};
pub use tenancy::InstanceId;
pub use tls::{TlsError, TlsIdentity};
pub use tools::ToolsConfig;
