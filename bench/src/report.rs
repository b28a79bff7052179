//! The table and the verdicts, for people on stdout and for programs in a file.

use std::fs;
use std::io::{self, Write};

use anyhow::Context;
use serde::Serialize;

use crate::args::Options;
use crate::catalog::Row;
use crate::measurements::{Measurements, Summary};
use crate::targets::Verdict;

/// One row in figures.
#[derive(Debug, Serialize)]
struct Line {
    row: Row,
    what: String,
    unit: &'static str,
    #[serde(flatten)]
    summary: Summary,
    ratio: Option<f64>,
    undisturbed_ratio: Option<f64>,
    ratio_to: Option<&'static str>,
}

#[derive(Debug, Serialize)]
struct Document<'a> {
    machine: String,
    rows: Vec<Line>,
    notes: &'a [String],
    targets: &'a [Verdict],
}

pub(crate) fn print(options: &Options, measured: &Measurements, verdicts: &[Verdict]) -> anyhow::Result<()> {
    let document = Document {
        machine: machine(options),
        rows: lines(measured),
        notes: measured.notes(),
        targets: verdicts,
    };
    if let Some(path) = &options.json {
        fs::write(path, serde_json::to_vec_pretty(&document)?)
            .with_context(|| format!("writing {}", path.display()))?;
    }
    let mut cells = vec![["what", "unit", "p50", "p10", "p95", "ratio", "of the p10s"].map(str::to_owned)];
    cells.extend(document.rows.iter().map(Line::cells));
    let mut out = io::stdout().lock();
    writeln!(out, "{}\n", document.machine)?;
    write_table(&mut out, &cells)?;
    for note in document.notes {
        writeln!(out, "\n{note}")?;
    }
    writeln!(out, "\ntargets\n")?;
    let mut cells = vec![["target", "bound", "measured", "verdict"].map(str::to_owned)];
    cells.extend(verdicts.iter().map(Verdict::cells));
    write_table(&mut out, &cells)?;
    Ok(())
}

fn lines(measured: &Measurements) -> Vec<Line> {
    let line = |row: Row| {
        let about = row.description();
        Some(Line {
            row,
            what: about.what,
            unit: about.unit,
            summary: measured.summary(row)?,
            ratio: about.basis.and_then(|(basis, _)| measured.ratio(row, basis)),
            undisturbed_ratio: about.basis.and_then(|(basis, _)| measured.undisturbed_ratio(row, basis)),
            ratio_to: about.basis.map(|(_, name)| name),
        })
    };
    measured.rows().filter_map(line).collect()
}

impl Line {
    fn cells(&self) -> [String; 7] {
        let figure = |value: f64| {
            // Four digits say enough, and more would claim more than a shared machine gives.
            let decimals = if value.abs() >= 100.0 {
                0
            } else if value.abs() >= 10.0 {
                1
            } else {
                2
            };
            format!("{value:.decimals$}")
        };
        let ratio = |ratio: Option<f64>| {
            ratio.zip(self.ratio_to).map_or(String::new(), |(ratio, to)| format!("{ratio:.2} {to}"))
        };
        let Summary { p50, p10, p95, .. } = self.summary;
        [
            self.what.clone(),
            self.unit.to_owned(),
            figure(p50),
            figure(p10),
            figure(p95),
            ratio(self.ratio),
            ratio(self.undisturbed_ratio),
        ]
    }
}

/// A Markdown table whose columns are aligned for the eye too: words to the left, figures to the right.
fn write_table<const N: usize>(out: &mut impl Write, rows: &[[String; N]]) -> io::Result<()> {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let is_figure = |column: usize| rows.iter().skip(1).all(|row| row[column].parse::<f64>().is_ok());
    let figures: [bool; N] = std::array::from_fn(is_figure);
    for (number, row) in rows.iter().enumerate() {
        for ((cell, width), figure) in row.iter().zip(widths).zip(figures) {
            if figure { write!(out, "| {cell:>width$} ")? } else { write!(out, "| {cell:<width$} ")? }
        }
        writeln!(out, "|")?;
        if number == 0 {
            for (width, figure) in widths.iter().zip(figures) {
                write!(out, "|{}{}", "-".repeat(width + 1), if figure { ":" } else { "-" })?;
            }
            writeln!(out, "|")?;
        }
    }
    Ok(())
}

/// Where and how it was measured: without it no figure means anything.
fn machine(options: &Options) -> String {
    let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split_whitespace().next().unwrap_or("?");
    let user = if rustix::process::geteuid().is_root() { "root" } else { "an ordinary user" };
    format!(
        "Linux {kernel}, {processors} CPUs, load {load}, as {user}; {} rounds, {} idle sessions, {} in the \
         server, {} made and deleted there, a flood of {:.1} GiB. \
         p50, p10, p95: medians of the rounds'. W and C: the floors.",
        options.rounds(),
        options.sessions(),
        options.crowd(),
        options.churn(),
        options.flood_bytes() as f64 / f64::from(1 << 30),
    )
}
