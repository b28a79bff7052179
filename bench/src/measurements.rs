//! Samples by row and round, and the figures drawn from them.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::catalog::Row;

/// Everything measured so far. Samples gather in the current round until it is ended.
#[derive(Debug, Default)]
pub(crate) struct Measurements {
    rounds: BTreeMap<Row, Vec<Vec<f64>>>,
    current: BTreeMap<Row, Vec<f64>>,
    notes: Vec<String>,
}

/// A row in figures: medians of the rounds' percentiles; of all samples where a round has one only.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Summary {
    pub(crate) p50: f64,
    pub(crate) p10: f64,
    pub(crate) p95: f64,
    pub(crate) samples: usize,
}

impl Measurements {
    /// Records a time, in milliseconds.
    pub(crate) fn time(&mut self, row: Row, time: Duration) {
        self.value(row, time.as_secs_f64() * 1000.0);
    }

    pub(crate) fn value(&mut self, row: Row, value: f64) {
        self.current.entry(row).or_default().push(value);
    }

    /// Says below the table what could not be measured, and why.
    pub(crate) fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    pub(crate) fn notes(&self) -> &[String] {
        &self.notes
    }

    pub(crate) fn end_round(&mut self) {
        for (row, samples) in std::mem::take(&mut self.current) {
            self.rounds.entry(row).or_default().push(samples);
        }
    }

    pub(crate) fn rows(&self) -> impl Iterator<Item = Row> {
        self.rounds.keys().copied()
    }

    pub(crate) fn summary(&self, row: Row) -> Option<Summary> {
        let rounds = self.rounds.get(&row)?;
        let single = rounds.iter().all(|samples| samples.len() == 1);
        let over_rounds = |part| match single {
            true => percentile(&rounds.concat(), part),
            false => median(&rounds.iter().map(|samples| percentile(samples, part)).collect::<Vec<_>>()),
        };
        Some(Summary {
            p50: over_rounds(0.5),
            p10: over_rounds(0.1),
            p95: over_rounds(0.95),
            samples: rounds.iter().map(Vec::len).sum(),
        })
    }

    /// How many times `basis` a row is, by the medians.
    pub(crate) fn ratio(&self, row: Row, basis: Row) -> Option<f64> {
        self.ratio_at(row, basis, 0.5)
    }

    /// The same by the fastest tenth: what is left of the ratio when nothing else runs on the machine.
    pub(crate) fn undisturbed_ratio(&self, row: Row, basis: Row) -> Option<f64> {
        self.ratio_at(row, basis, 0.1)
    }

    /// Taken round by round where both were measured in the same rounds, so that a load that comes and goes weighs
    /// on both sides alike.
    fn ratio_at(&self, row: Row, basis: Row, part: f64) -> Option<f64> {
        let (ours, theirs) = (self.rounds.get(&row)?, self.rounds.get(&basis)?);
        let over_rounds =
            |rounds: &[Vec<f64>]| rounds.iter().map(|samples| percentile(samples, part)).collect::<Vec<_>>();
        let (ours, theirs) = (over_rounds(ours), over_rounds(theirs));
        if ours.len() == theirs.len() {
            return Some(median(
                &ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect::<Vec<_>>(),
            ));
        }
        Some(median(&ours) / median(&theirs))
    }
}

pub(crate) fn median(values: &[f64]) -> f64 {
    percentile(values, 0.5)
}

/// The value below which `part` of the samples lie, by linear interpolation; not a number without samples.
pub(crate) fn percentile(samples: &[f64], part: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let place = part * last as f64;
    let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    below + (above - below) * place.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_interpolate() {
        assert!((percentile(&[3.0, 1.0, 2.0], 0.5) - 2.0).abs() < 1e-9);
        assert!((percentile(&[1.0, 2.0], 0.5) - 1.5).abs() < 1e-9);
        assert!(percentile(&[], 0.5).is_nan());
    }

    #[test]
    fn a_ratio_is_the_median_of_the_rounds_ratios() {
        let mut measured = Measurements::default();
        for (ours, theirs) in [(2.0, 1.0), (40.0, 10.0), (3.0, 1.0)] {
            measured.value(Row::WarmTrue, ours);
            measured.value(Row::FloorWarm, theirs);
            measured.end_round();
        }
        assert_eq!(measured.ratio(Row::WarmTrue, Row::FloorWarm), Some(3.0));
    }
}
