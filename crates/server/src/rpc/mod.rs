//! LangBot's action RPC, in all its dialects: `/rpc/ws` and stdio.
//!
//! [`dialect`] tells who speaks which, [`actions`] is the table of what can be called, [`desk`] runs the calls of one connection, [`ws`] and
//! [`stdio`] carry them, [`answer`] and [`output`] shape what goes back.

mod actions;
mod admission_actions;
mod answer;
mod desk;
mod dialect;
mod file_actions;
mod skill_actions;
mod stdio;
mod tenant_actions;
mod ws;

use axum::Router;
use axum::routing::get;

use crate::App;

pub use stdio::{StdioError, serve_stdio};
pub(crate) use ws::no_upgrade;

pub(crate) fn routes() -> Router<App> {
    Router::new().route("/rpc/ws", get(ws::upgrade))
}
