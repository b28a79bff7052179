//! The report for people: something to paste into a ticket.

use std::fmt::Write;

use super::Report;
use super::attack::Tried;
use super::attack::Verdict;
use super::check::{Check, CheckState};
use crate::output::Paint;
use crate::units::show_size;

const GREEN: &str = "32";
const YELLOW: &str = "33";
const RED: &str = "31;1";
const BOLD: &str = "1";

pub(super) fn render(report: &Report, paint: Paint) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = head(&mut text, report, paint);
    let _ = checks(&mut text, &report.checks, paint);
    let _ = trial(&mut text, report);
    if let Some(attacks) = &report.attacks {
        let _ = tried(&mut text, attacks, paint);
    }
    let _ = fixes(&mut text, &report.checks, paint);
    let colour = if report.ok { GREEN } else { RED };
    let _ = writeln!(text, "\n{} {}", paint.paint(BOLD, "verdict:"), paint.paint(colour, &report.verdict));
    text
}

fn head(text: &mut String, report: &Report, paint: Paint) -> std::fmt::Result {
    let machine = &report.machine;
    let container =
        machine.container.as_ref().map_or_else(String::new, |kind| format!(", inside a container ({kind})"));
    writeln!(text, "{}", paint.paint(BOLD, &format!("sandcrate {}", report.version)))?;
    writeln!(text, "  kernel        Linux {} {}", machine.kernel, machine.arch)?;
    writeln!(text, "  distribution  {}", machine.distribution)?;
    writeln!(
        text,
        "  machine       {} CPUs, {} memory{container}",
        machine.cpus,
        show_size(machine.memory_bytes)
    )?;
    writeln!(text, "  user          {}, uid {}", machine.user, machine.uid)?;
    writeln!(text, "  cgroups       {}", report.cgroups)?;
    writeln!(text, "  state         {}\n", report.state_dir.display())
}

fn checks(text: &mut String, checks: &[Check], paint: Paint) -> std::fmt::Result {
    let width = checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    for check in checks {
        let colour = match check.state {
            CheckState::Ok => GREEN,
            CheckState::Weak => YELLOW,
            CheckState::Missing => RED,
        };
        // Padded before it is painted: escape codes have no width.
        let label = paint.paint(colour, &format!("{:<7}", check.state.label()));
        writeln!(text, "{label}  {:<width$}  {}", check.name, check.detail)?;
    }
    Ok(())
}

fn trial(text: &mut String, report: &Report) -> std::fmt::Result {
    match (&report.trial, &report.error) {
        (Some(trial), _) => writeln!(
            text,
            "\ntimes  first box {} ms from nothing; another with its first command {} ms; a command {} ms",
            trial.first_start_ms, trial.cold_ms, trial.warm_ms
        ),
        (None, Some(error)) => {
            writeln!(text, "\nno box could be started: {}", error.message)?;
            error.hint.iter().try_for_each(|hint| writeln!(text, "  hint: {hint}"))
        }
        (None, None) => Ok(()),
    }
}

fn tried(text: &mut String, attacks: &[Tried], paint: Paint) -> std::fmt::Result {
    writeln!(text, "\n{}", paint.paint(BOLD, "attempts to break out of a box"))?;
    let width = attacks.iter().map(|tried| tried.name.len()).max().unwrap_or(0);
    for tried in attacks {
        let colour = match tried.verdict {
            Verdict::Held => GREEN,
            Verdict::Broken => RED,
            Verdict::NotApplicable => YELLOW,
        };
        let label = paint.paint(colour, &format!("{:<7}", tried.verdict.label()));
        writeln!(text, "{label}  {:<5}  {:<width$}  {}", tried.id, tried.name, tried.detail)?;
    }
    let count = |verdict| attacks.iter().filter(|tried| tried.verdict == verdict).count();
    writeln!(
        text,
        "{} attempts: {} held, {} broken, {} not applicable",
        attacks.len(),
        count(Verdict::Held),
        count(Verdict::Broken),
        count(Verdict::NotApplicable)
    )
}

fn fixes(text: &mut String, checks: &[Check], paint: Paint) -> std::fmt::Result {
    let broken: Vec<_> = checks.iter().filter_map(|check| Some((check, check.fix.as_ref()?))).collect();
    if broken.is_empty() {
        return Ok(());
    }
    writeln!(text, "\n{}", paint.paint(BOLD, "fixes"))?;
    for (index, (check, fix)) in broken.iter().enumerate() {
        writeln!(text, "{:>2}. {} ({})", index + 1, check.name, check.state.label())?;
        for step in &fix.steps {
            writeln!(text, "      {step}")?;
        }
        writeln!(text, "    until then: {}", fix.until_then)?;
    }
    Ok(())
}
