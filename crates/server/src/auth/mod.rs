//! Who is asking, and whether they may: every request passes here before a face sees it.
//!
//! The rules are in [`admission`] and pure; what they need to know of a peer is looked up in [`peer`]. A request
//! that passes carries an [`Identity`].

mod admission;
mod cidr;
mod origin;
mod peer;
mod proc_net;
mod sock_diag;
mod token;

use std::path::PathBuf;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::Response;

use crate::Refusal;

pub(crate) use admission::{Admission, Face};
pub use cidr::Cidr;
pub use peer::{Connection, Peer};
pub use token::Token;

/// Who was admitted.
#[derive(Debug, Clone)]
pub struct Identity {
    /// Known by token or by uid, so it may set what the operator left open.
    pub known: bool,
    /// `None` for our parent over stdio.
    connection: Option<Arc<Connection>>,
}

impl Identity {
    /// The process that started us and holds our stdio.
    pub fn parent() -> Self {
        Self { known: true, connection: None }
    }

    /// Where relative paths of this peer start: its working directory if it runs on this machine and we may
    /// look, else ours.
    pub async fn base_dir(&self) -> PathBuf {
        let theirs = match &self.connection {
            Some(connection) => connection.working_directory().await,
            None => None,
        };
        theirs.or_else(|| std::env::current_dir().ok()).unwrap_or_else(|| PathBuf::from("/"))
    }
}

/// What the middleware of one face knows.
#[derive(Debug, Clone)]
pub(crate) struct Guard {
    pub(crate) admission: Arc<Admission>,
    pub(crate) face: Face,
}

/// Middleware: answers 401 or 403, or lets the request through with its [`Identity`].
pub(crate) async fn admit(
    State(guard): State<Guard>,
    mut request: Request,
    next: Next,
) -> Result<Response, Refusal> {
    guard.pass(&mut request).await?;
    Ok(next.run(request).await)
}

/// The rule for requests that change state, also where the method does not say that one does.
pub(crate) fn check_origin(headers: &axum::http::HeaderMap) -> Result<(), Refusal> {
    origin::check(&axum::http::Method::POST, headers)
}

impl Guard {
    /// Refuses the request, or gives it its [`Identity`].
    pub(crate) async fn pass(&self, request: &mut Request) -> Result<(), Refusal> {
        let Some(connection) = request.extensions().get::<Arc<Connection>>().cloned() else {
            let message = "the connection's peer is not known to the server";
            return Err(Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", message));
        };
        origin::check(request.method(), request.headers())?;
        let identity = self.identify(&connection, request.headers()).await.inspect_err(|refusal| {
            tracing::info!(peer = %connection.peer, code = %refusal.code, "request refused");
        })?;
        request.extensions_mut().insert(identity);
        Ok(())
    }

    async fn identify(
        &self,
        connection: &Arc<Connection>,
        headers: &axum::http::HeaderMap,
    ) -> Result<Identity, Refusal> {
        let face = self.face.spoken(headers);
        let presented = self.admission.presented(headers);
        let known = match self.admission.by_token(face, presented)? {
            Some(known) => known,
            // Only now is it worth asking the kernel whose socket it is.
            None => self.admission.by_peer(face, &connection.standing().await, headers)?,
        };
        Ok(Identity { known, connection: Some(connection.clone()) })
    }
}
