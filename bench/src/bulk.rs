//! Large output: how fast it passes through us, and whether it stays with us.

use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, ensure};
use sandcrate_backend::{Backend, ExecEvent, ExecRequest, SessionId};
use tokio::runtime::Runtime;

use crate::args::Options;
use crate::catalog::Row;
use crate::measurements::Measurements;
use crate::memory::resident_mib;
use crate::native::Native;

const OUTPUT: u64 = 96 << 20;
/// What the memory figure is taken over; by 1 GiB whatever is kept shows.
const FLOOD: u64 = 1 << 30;
const MEGABYTE: f64 = 1e6;

pub(crate) fn measure(
    options: &Options,
    runtime: &Runtime,
    measured: &mut Measurements,
) -> anyhow::Result<()> {
    let native = Native::open(runtime, 0)?;
    let session = native.session()?;
    for _ in 0..options.rounds() {
        measured.value(Row::SpawnOutput, spawned(OUTPUT)?);
        measured.value(Row::Output, boxed(&native, &session, OUTPUT)?);
        measured.end_round();
    }
    let before = resident_mib("self")?;
    boxed(&native, &session, FLOOD)?;
    measured.value(Row::OutputGrowth, resident_mib("self")? - before);
    measured.end_round();
    native.close();
    Ok(())
}

fn argv(bytes: u64) -> [String; 4] {
    ["head".to_owned(), "-c".to_owned(), bytes.to_string(), "/dev/zero".to_owned()]
}

/// Through a plain pipe, in chunks of what a pipe holds.
fn spawned(bytes: u64) -> anyhow::Result<f64> {
    let argv = argv(bytes);
    let started = Instant::now();
    let mut child =
        Command::new(&argv[0]).args(&argv[1..]).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let mut stdout = child.stdout.take().context("a child without its output")?;
    let (mut buffer, mut seen) = (vec![0; 64 << 10], 0);
    loop {
        match stdout.read(&mut buffer)? {
            0 => break,
            count => seen += count as u64,
        }
    }
    child.wait()?;
    ensure!(seen == bytes, "{seen} bytes of {bytes} came through a pipe");
    Ok(bytes as f64 / MEGABYTE / started.elapsed().as_secs_f64())
}

/// Through the backend, every event taken and thrown away.
fn boxed(native: &Native, session: &SessionId, bytes: u64) -> anyhow::Result<f64> {
    let (backend, session) = (Arc::clone(&native.backend), session.clone());
    native.run(async move {
        let started = Instant::now();
        let mut execution = backend.exec(&session, ExecRequest::argv(argv(bytes))).await?;
        let mut seen = 0;
        while let Some(event) = execution.next().await {
            match event {
                ExecEvent::Output(_, data) => seen += data.len() as u64,
                ExecEvent::Failed(error) => return Err(error.into()),
                _ => {}
            }
        }
        ensure!(seen == bytes, "{seen} bytes of {bytes} came through the box");
        Ok(bytes as f64 / MEGABYTE / started.elapsed().as_secs_f64())
    })
}
