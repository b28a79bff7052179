//! Much at once: output of commands, lines of processes, sessions; and what stays in the server.

use std::fs;
use std::time::Instant;

use anyhow::{Context, ensure};

use super::{Caller, Subject, bare_containers};
use crate::args::Options;
use crate::catalog::{Figure, Row, Server};
use crate::measurements::Measurements;
use crate::memory::{kib, resident_mib};

const OUTPUT: u64 = 96 << 20;
const MEGABYTE: f64 = 1e6;
const AT_ONCE: usize = 100;
/// Short lines count messages, long ones bytes. The reference takes no line over 64 KiB.
const SHORT_LINE: usize = 64;
const LONG_LINE: usize = 8 << 10;
const RELAYED: u64 = 64 << 20;

pub(super) fn measure(
    options: &Options,
    subjects: &[Subject],
    measured: &mut Measurements,
) -> anyhow::Result<()> {
    for round in 0..rounds(options) {
        for subject in with_boxes(subjects) {
            let of = |figure| Row::Rpc(figure, subject.server);
            let mut caller = subject.caller()?;
            // The reference needs half a minute for these on docker: once is enough.
            if subject.server == Server::Sandcrate || round == 0 {
                let sessions: Vec<_> = (0..AT_ONCE).map(|_| subject.next_id()).collect();
                let time = subject.run(caller.create_at_once(&sessions))?;
                measured.value(of(Figure::AtOnce), time.as_secs_f64());
                subject.delete(&mut caller, &sessions)?;
            }
            if subject.server == Server::SandcrateDocker
                && round == 0
                && let Some(image) = &subject.image
            {
                measured.value(Row::BareContainers, bare_containers::at_once(image, AT_ONCE)?);
            }
            let session = subject.session(&mut caller)?;
            measured.value(of(Figure::Output), output(subject, &mut caller, &session, OUTPUT)?);
            measure_lines(subject, &mut caller, &session, measured)?;
            subject.delete(&mut caller, &[session])?;
        }
        measured.end_round();
    }
    if let Some(subject) = with_boxes(subjects).find(|subject| subject.server == Server::Sandcrate) {
        flood(options, subject, measured)?;
    }
    Ok(())
}

/// What processes write, without anything else between.
pub(super) fn measure_relay(
    options: &Options,
    subjects: &[Subject],
    measured: &mut Measurements,
) -> anyhow::Result<()> {
    for _ in 0..rounds(options) {
        for subject in with_boxes(subjects) {
            let mut caller = subject.caller()?;
            let session = subject.session(&mut caller)?;
            measure_lines(subject, &mut caller, &session, measured)?;
            subject.delete(&mut caller, &[session])?;
        }
        measured.end_round();
    }
    Ok(())
}

fn rounds(options: &Options) -> u32 {
    if options.quick { 1 } else { 3 }
}

fn with_boxes(subjects: &[Subject]) -> impl Iterator<Item = &Subject> {
    subjects.iter().filter(|subject| subject.server.is_shipped() && subject.server.has_boxes())
}

fn measure_lines(
    subject: &Subject,
    caller: &mut Caller,
    session: &str,
    measured: &mut Measurements,
) -> anyhow::Result<()> {
    let of = |figure| Row::Rpc(figure, subject.server);
    let (lines, _) = relayed(subject, caller, session, SHORT_LINE, RELAYED / 16)?;
    measured.value(of(Figure::RelayLines), lines);
    let (_, bytes) = relayed(subject, caller, session, LONG_LINE, RELAYED)?;
    measured.value(of(Figure::RelayOutput), bytes / MEGABYTE);
    Ok(())
}

/// Far more output than the server keeps.
fn flood(options: &Options, subject: &Subject, measured: &mut Measurements) -> anyhow::Result<()> {
    let of = |figure| Row::Rpc(figure, subject.server);
    let mut caller = subject.caller()?;
    let session = subject.session(&mut caller)?;
    let pid = subject.pid().to_string();
    let before = resident_mib(&pid)?;
    // Forgets the highest resident size so far (proc_pid_clear_refs(5)).
    fs::write(format!("/proc/{pid}/clear_refs"), "5")?;
    let rate = output(subject, &mut caller, &session, options.flood_bytes())?;
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let peak = kib(&status, "VmHWM:").context("a status without VmHWM")? / 1024.0;
    measured.value(of(Figure::Flood), rate);
    measured.value(of(Figure::FloodBefore), before);
    measured.value(of(Figure::FloodPeak), peak);
    measured.value(of(Figure::FloodGrowth), peak - before);
    measured.end_round();
    subject.delete(&mut caller, &[session])
}

/// Text of lines of this length, the newline included.
fn text(line: usize, bytes: u64) -> String {
    format!("yes \"$(printf '%0{}d' 0)\" | head -c {bytes}", line - 1)
}

fn output(subject: &Subject, caller: &mut Caller, session: &str, bytes: u64) -> anyhow::Result<f64> {
    let time = subject.run(caller.exec(session, &text(LONG_LINE, bytes)))?;
    Ok(bytes as f64 / MEGABYTE / time.as_secs_f64())
}

/// Lines and bytes a second that a process writes through the relay, from the moment it is told to begin.
fn relayed(
    subject: &Subject,
    caller: &mut Caller,
    session: &str,
    line: usize,
    bytes: u64,
) -> anyhow::Result<(f64, f64)> {
    let script = format!("read begin; {}", text(line, bytes));
    let mut relay = subject.attach(caller, session, &script)?;
    subject.run(async {
        let started = Instant::now();
        relay.send("begin").await?;
        let (mut lines, mut seen) = (0_u32, 0_u64);
        while let Some(length) = relay.line().await? {
            lines += 1;
            seen += length as u64 + 1;
        }
        let seconds = started.elapsed().as_secs_f64();
        ensure!(seen == bytes, "{seen} bytes of {bytes} came through the relay");
        Ok((f64::from(lines) / seconds, seen as f64 / seconds))
    })
}
