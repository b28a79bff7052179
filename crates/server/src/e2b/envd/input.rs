//! `process.Process`: what programs read.

use std::time::Duration;

use axum::Json;
use axum::extract::{Extension, Request};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use sandcrate_e2b_wire::connect::{self, Code, Decoder, Envelope, STREAM};
use sandcrate_e2b_wire::process::{Empty, Input, SelectRequest, SendInputRequest, StreamInputRequest};
use sandcrate_protocol::ErrorKind;

use super::super::error::Failed;
use super::call::{self, Unary};
use super::processes::{Known, command};
use super::{Here, MAX_MESSAGE_BYTES};

/// A program that does not read for so long is not waited for by a client that does not say otherwise.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) async fn send_input(
    Extension(here): Extension<Here>,
    headers: axum::http::HeaderMap,
    Unary(request): Unary<SendInputRequest>,
) -> Result<Json<Empty>, Failed> {
    let (pid, known) = here.sandbox.processes.select(&here.app.runtime, here.id(), &request.process)?;
    let patience = call::deadline(&headers)?.unwrap_or(PATIENCE);
    here.write(pid, &known, request.input, patience).await?;
    Ok(Json(Empty {}))
}

pub(super) async fn close_stdin(
    Extension(here): Extension<Here>,
    Unary(SelectRequest { process }): Unary<SelectRequest>,
) -> Result<Json<Empty>, Failed> {
    let (pid, known) = here.sandbox.processes.select(&here.app.runtime, here.id(), &process)?;
    if known.pty {
        let message = "a terminal's input is not closed: send it the byte 4 (Ctrl-D)";
        return Err(Failed::new(Code::FailedPrecondition, message));
    }
    here.app.runtime.close_command_stdin(here.id(), &command(pid))?;
    Ok(Json(Empty {}))
}

/// Input as a stream: first which process it is for, then its pieces, each taken when the one before was read.
pub(super) async fn stream_input(Extension(here): Extension<Here>, request: Request) -> Response {
    match take(&here, request).await {
        Ok(()) => {
            let mut frames = BytesMut::from(&connect::message(&Empty {}).unwrap_or_default()[..]);
            frames.extend_from_slice(&connect::end(None));
            ([(header::CONTENT_TYPE, STREAM)], frames.freeze()).into_response()
        }
        Err(failed) => failed.into_stream(),
    }
}

async fn take(here: &Here, request: Request) -> Result<(), Failed> {
    call::expect(request.headers(), STREAM)?;
    let limit = call::deadline(request.headers())?;
    let taking = async {
        let mut body = request.into_body().into_data_stream();
        let mut decoder = Decoder::new(MAX_MESSAGE_BYTES);
        let mut process = None;
        while let Some(piece) = body.next().await {
            let piece: Bytes = piece.map_err(|_| Failed::new(Code::Canceled, "the input broke off"))?;
            decoder.push(&piece);
            loop {
                match decoder.next_envelope().map_err(|error| Failed::invalid(error.to_string()))? {
                    Some(Envelope::Message(json)) => {
                        here.take_message(&mut process, call::read(&json)?).await?
                    }
                    Some(Envelope::End(_)) => return Ok(()),
                    None => break,
                }
            }
        }
        if decoder.is_partial() { Err(Failed::invalid("the input broke off in a message")) } else { Ok(()) }
    };
    match limit {
        None => taking.await,
        Some(limit) => tokio::time::timeout(limit, taking)
            .await
            .unwrap_or_else(|_| Err(Failed::new(Code::DeadlineExceeded, "the time for this input is over"))),
    }
}

impl Here {
    async fn take_message(
        &self,
        process: &mut Option<(u32, Known)>,
        message: StreamInputRequest,
    ) -> Result<(), Failed> {
        match (message, &process) {
            (StreamInputRequest::Start(start), None) => {
                *process =
                    Some(self.sandbox.processes.select(&self.app.runtime, self.id(), &start.process)?);
                Ok(())
            }
            (StreamInputRequest::Start(_), Some(_)) => Err(Failed::invalid("start comes first, and once")),
            (StreamInputRequest::Data(_), None) => {
                Err(Failed::invalid("start comes first: whose input is it?"))
            }
            (StreamInputRequest::Data(data), Some((pid, known))) => {
                self.write(*pid, known, data.input, PATIENCE).await
            }
            (StreamInputRequest::Keepalive(_), _) => Ok(()),
        }
    }

    async fn write(&self, pid: u32, known: &Known, input: Input, patience: Duration) -> Result<(), Failed> {
        let data = match input {
            Input::Stdin(data) if !known.pty && known.stdin => data.0,
            Input::Pty(data) if known.pty => data.0,
            Input::Stdin(_) if known.pty => {
                return Err(Failed::invalid(format!("process {pid} has a terminal: send `pty` input")));
            }
            Input::Stdin(_) => {
                let message = format!("process {pid} has no standard input: start it with `stdin`");
                return Err(Failed::new(Code::FailedPrecondition, message));
            }
            Input::Pty(_) => return Err(Failed::invalid(format!("process {pid} has no terminal"))),
        };
        let command = command(pid);
        let written = self.app.runtime.write_command(self.id(), &command, data);
        match tokio::time::timeout(patience, written).await {
            Ok(Err(error)) if error.kind() == ErrorKind::ProcessConflict => {
                let message =
                    format!("process {pid} takes no input any more: it has ended, or its input was closed");
                Err(Failed::new(Code::FailedPrecondition, message))
            }
            Ok(written) => Ok(written?),
            Err(_) => {
                Err(Failed::new(Code::DeadlineExceeded, format!("process {pid} does not read its input")))
            }
        }
    }
}
