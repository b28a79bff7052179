//! The targets of the project's performance document that concern the backend API, and how they came out.

use serde::Serialize;

use crate::catalog::Row;
use crate::measurements::Measurements;

/// Which side of the bound is good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Good {
    Below,
    Above,
}

/// One target, judged.
#[derive(Debug, Serialize)]
pub(crate) struct Verdict {
    pub(crate) what: &'static str,
    good: Good,
    bound: f64,
    unit: &'static str,
    /// Nothing when it could not be measured here.
    measured: Option<f64>,
    /// The same against a floor that runs a static `true`, for who takes the floor at its word.
    against_static: Option<f64>,
    /// A stretch target is a wish: missing it fails nothing.
    stretch: bool,
}

impl Verdict {
    pub(crate) fn passed(&self) -> bool {
        self.stretch || self.holds()
    }

    fn holds(&self) -> bool {
        self.measured.is_some_and(|measured| match self.good {
            Good::Below => measured <= self.bound,
            Good::Above => measured >= self.bound,
        })
    }

    /// The target, what was measured, and the verdict, as cells of a table.
    pub(crate) fn cells(&self) -> [String; 4] {
        let sign = if self.good == Good::Below { "<=" } else { ">=" };
        let figure = |value: f64| format!("{value:.2} {}", self.unit);
        let mut measured = self.measured.map_or_else(|| "not measured".to_owned(), figure);
        if let Some(strict) = self.against_static {
            measured.push_str(&format!(" ({strict:.2} of the static floor)"));
        }
        let verdict = match (self.holds(), self.stretch) {
            (true, _) => "PASS",
            (false, false) => "MISS",
            (false, true) => "not yet",
        };
        let what = if self.stretch { format!("  stretch: {}", self.what) } else { self.what.to_owned() };
        [what, format!("{sign} {}", figure(self.bound)), measured, verdict.to_owned()]
    }
}

pub(crate) fn judge(measured: &Measurements) -> Vec<Verdict> {
    let ratio = |row, basis| measured.ratio(row, basis);
    let verdict = |what, good, bound, unit, measured| Verdict {
        what,
        good,
        bound,
        unit,
        measured,
        against_static: None,
        stretch: false,
    };
    let below = |what, bound, unit, measured| verdict(what, Good::Below, bound, unit, measured);
    let above = |what, bound, unit, measured| verdict(what, Good::Above, bound, unit, measured);
    let stretch = |verdict: Verdict| Verdict { stretch: true, ..verdict };
    let warm = |bound| Verdict {
        against_static: ratio(Row::WarmShell, Row::FloorWarmStatic),
        ..below("warm exec, `sh -c true`", bound, "W", ratio(Row::WarmShell, Row::FloorWarm))
    };
    let cold = Verdict {
        against_static: ratio(Row::ColdNoPool, Row::FloorColdStatic),
        ..below("cold create + first exec, no pool", 2.2, "C", ratio(Row::ColdNoPool, Row::FloorCold))
    };
    let pooled = ratio(Row::ColdPoolFull, Row::FloorCold);
    let rate = ratio(Row::Rate32, Row::FloorRate32);
    let idle = measured.summary(Row::IdleCounted).map(|summary| summary.p50);
    let slower = ratio(Row::WarmManyIdle, Row::WarmFewIdle);
    let growth = measured.summary(Row::OutputGrowth).map(|summary| summary.p50);
    vec![
        warm(1.6),
        stretch(warm(1.3)),
        cold,
        stretch(below("cold create + first exec, full pool", 1.2, "C", pooled)),
        above("exec/s, 32 callers, of the floor's rate", 0.60, "floor", rate),
        stretch(above("exec/s, 32 callers, of the floor's rate", 0.75, "floor", rate)),
        below("memory of an idle session", 0.45, "MiB", idle),
        stretch(below("memory of an idle session", 0.30, "MiB", idle)),
        below("warm exec with many idle sessions", 1.2, "of that with 1", slower),
        below("RSS growth while output passes", 8.0, "MiB", growth),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_measured_is_missed() {
        let verdicts = judge(&Measurements::default());
        assert!(verdicts.iter().all(|verdict| verdict.stretch || !verdict.passed()));
    }

    #[test]
    fn bounds_hold_from_their_own_side() {
        let mut measured = Measurements::default();
        for (row, value) in
            [(Row::Rate32, 70.0), (Row::FloorRate32, 100.0), (Row::WarmShell, 2.0), (Row::FloorWarm, 1.0)]
        {
            measured.value(row, value);
        }
        measured.end_round();
        let verdicts = judge(&measured);
        assert!(verdicts.iter().find(|verdict| verdict.good == Good::Above).unwrap().passed());
        assert!(!verdicts[0].passed());
    }
}
