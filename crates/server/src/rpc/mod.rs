//! LangBot's action RPC, first dialect: `/rpc/ws` and stdio.
//!
//! [`actions`] is the table of what can be called, [`desk`] runs the calls of one connection, [`ws`] and
//! [`stdio`] carry them, [`answer`] and [`output`] shape what goes back.

mod actions;
mod answer;
mod desk;
mod output;
mod stdio;
mod ws;

use axum::Router;
use axum::routing::get;

use crate::App;

pub(crate) use answer::chain;
pub use stdio::{StdioError, serve_stdio};
pub(crate) use ws::{no_upgrade, refuse_newer_dialects};

pub(crate) fn routes() -> Router<App> {
    Router::new().route("/rpc/ws", get(ws::upgrade))
}
