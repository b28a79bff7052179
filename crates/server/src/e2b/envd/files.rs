//! `/files`: contents of files, in and out, as streams.

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Extension, Query, Request};
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::Response;
use bytes::Bytes;
use futures_util::{Stream, stream};
use jiff::Timestamp;
use sandcrate_e2b_wire::filesystem::WrittenFile;
use sandcrate_e2b_wire::header::METADATA_PREFIX;
use sandcrate_e2b_wire::signature::{Operation, Signed, sign};
use sandcrate_runtime::RuntimeError;
use serde::Deserialize;
use subtle::ConstantTimeEq;

use super::super::error::{Failed, Refused};
use super::super::sandbox::Sandbox;
use super::Here;
use super::gzip::unpacked;
use super::multipart::{Multipart, MultipartError, boundary};
use super::paths::{name, resolve, user_of};
use crate::rest::files::{download as reading, upload::Upload};

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct FileParams {
    path: Option<String>,
    username: Option<String>,
    signature: Option<String>,
    signature_expiration: Option<i64>,
}

type Params = Result<Query<FileParams>, QueryRejection>;

pub(super) async fn download(
    Extension(here): Extension<Here>,
    params: Params,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, Refused> {
    let params = here.admit(params, Operation::Read, &headers)?;
    let path = resolve(params.path.as_deref().unwrap_or_default());
    let (app, id) = (here.app.clone(), here.id().to_owned());
    Ok(reading::answer(app, id, path, &method, &headers).await?)
}

pub(super) async fn upload(
    Extension(here): Extension<Here>,
    params: Params,
    request: Request,
) -> Result<Json<Vec<WrittenFile>>, Refused> {
    let headers = request.headers();
    let params = here.admit(params, Operation::Write, headers)?;
    if headers.keys().any(|name| name.as_str().starts_with(METADATA_PREFIX)) {
        return Err(Refused::unsupported(
            "metadata of files is not kept here: upload without X-Metadata-* headers",
        ));
    }
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    let (kind, encoding) = (text(header::CONTENT_TYPE), text(header::CONTENT_ENCODING));
    let body = request.into_body().into_data_stream();
    let path = params.path;
    let receiving = {
        let here = here.clone();
        async move {
            match encoding.trim().to_ascii_lowercase().as_str() {
                "" | "identity" => receive(&here, &kind, path, body).await,
                "gzip" => receive(&here, &kind, path, Box::pin(unpacked(body))).await,
                _ => Err(Refused::invalid("Content-Encoding must be gzip, or absent")),
            }
        }
    };
    // In a task, so that a client that leaves does not leave a half-written file behind.
    let receiving = here.app.abort.clone().run_until_cancelled_owned(receiving);
    let received = here.app.tasks.spawn(receiving).await;
    let received = received
        .map_err(|_| Refused::new(StatusCode::INTERNAL_SERVER_ERROR, "the upload ended without a result"))?;
    received.ok_or(RuntimeError::ShuttingDown)?.map(Json)
}

async fn receive<S, E>(
    here: &Here,
    kind: &str,
    path: Option<String>,
    body: S,
) -> Result<Vec<WrittenFile>, Refused>
where
    S: Stream<Item = Result<Bytes, E>> + Unpin,
{
    let Some(boundary) = boundary(kind) else {
        let path = path.ok_or_else(|| Refused::invalid("path must say where the file goes"))?;
        return Ok(vec![here.store(&path, body).await?]);
    };
    let mut form = Multipart::new(body, &boundary?);
    let mut written: Vec<WrittenFile> = Vec::new();
    while let Some(part) = form.next_part().await? {
        if part.name != "file" {
            return Err(Refused::invalid("a form holds files alone: each part is named `file`"));
        }
        let target = match (&path, part.filename) {
            (Some(_), _) if !written.is_empty() => {
                return Err(Refused::invalid("path names one file, and the form holds several"));
            }
            (Some(path), _) => path.clone(),
            (None, Some(filename)) if !filename.is_empty() => filename,
            (None, _) => {
                return Err(Refused::invalid("path, or the part's filename, must say where the file goes"));
            }
        };
        let pieces = stream::unfold(&mut form, |form| async move {
            form.next_piece().await.transpose().map(|piece| (piece, form))
        });
        written.push(here.store(&target, Box::pin(pieces)).await?);
    }
    if written.is_empty() {
        return Err(Refused::invalid("the form holds no file"));
    }
    Ok(written)
}

/// What an address says of its file.
pub(super) fn signed_params(uri: &Uri) -> Option<FileParams> {
    Query::try_from_uri(uri).ok().map(|Query(params)| params)
}

impl FileParams {
    /// Whether the signature is the sandbox's own for this file and user.
    pub(super) fn is_signed_by(&self, sandbox: &Sandbox, operation: Operation) -> bool {
        let (Some(secret), Some(shown)) = (&sandbox.facts.access, &self.signature) else { return false };
        let signed = Signed {
            path: self.path.as_deref().unwrap_or_default(),
            operation,
            user: self.username.as_deref().unwrap_or_default(),
            expires: self.signature_expiration,
        };
        sign(&signed, secret.reveal()).as_bytes().ct_eq(shown.as_bytes()).into()
    }
}

impl Here {
    async fn store<S, E>(&self, path: &str, body: S) -> Result<WrittenFile, Refused>
    where
        S: Stream<Item = Result<Bytes, E>> + Unpin,
    {
        let path = resolve(path);
        Upload::new(self.app.runtime.clone(), self.id().to_owned(), path.clone()).run(body).await?;
        Ok(WrittenFile { name: name(&path).to_owned(), kind: "file".to_owned(), path })
    }

    /// The token was asked for where there is no signature; a signature vouches for this file and user alone.
    fn admit(
        &self,
        params: Params,
        operation: Operation,
        headers: &HeaderMap,
    ) -> Result<FileParams, Refused> {
        let Query(params) = params.map_err(|rejection| Refused::invalid(rejection.body_text()))?;
        if self.sandbox.facts.access.is_some() && params.signature.is_some() {
            let refused = |why: &str| Refused::new(StatusCode::UNAUTHORIZED, why);
            if !params.is_signed_by(&self.sandbox, operation) {
                return Err(refused("the signature is not for this file, user and operation"));
            }
            if params.signature_expiration.is_some_and(|end| end < Timestamp::now().as_second()) {
                return Err(refused("signature is already expired"));
            }
        }
        let user = params.username.clone().or_else(|| user_of(headers));
        self.check_user(user.as_deref()).map_err(|Failed(error)| Refused::invalid(error.message))?;
        Ok(params)
    }
}

impl From<MultipartError> for Refused {
    fn from(error: MultipartError) -> Self {
        Self::invalid(error.to_string())
    }
}
