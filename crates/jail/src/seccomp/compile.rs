//! From a policy to one seccomp filter.
//!
//! A filter is loaded by every command between clone and exec, and the kernel
//! then runs it in an emulator for every call number, to learn which it may skip
//! later (`seccomp_cache_prepare`, since 5.11), so a linear chain is slow to load.
//! We search over ranges of numbers with equal verdicts instead. Only
//! instructions that the emulator knows are used: absolute loads, `and`, jumps
//! with constants and constant returns.
//!
//! Code is built from its end. Jumps in BPF go forward only, so every target
//! exists before its jump is written: its distance is known, and one too far for
//! the 8 bits of a conditional jump gets an unconditional jump in between.

use std::collections::BTreeMap;

use sandcrate_sys::seccomp::Instruction;

use super::policy::{Action, Condition, Errno, Features, Policy, PolicyError, Test, Verdict, Width};
use super::table;

/// The kernel's `BPF_MAXINSNS`.
pub const MAX_INSTRUCTIONS: usize = 4096;

const LOAD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
const AND: u16 = 0x54; // BPF_ALU | BPF_AND | BPF_K
const JUMP: u16 = 0x05; // BPF_JMP | BPF_JA
const JUMP_EQ: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
const JUMP_GE: u16 = 0x35; // BPF_JMP | BPF_JGE | BPF_K
const JUMP_SET: u16 = 0x45; // BPF_JMP | BPF_JSET | BPF_K
const RETURN: u16 = 0x06; // BPF_RET | BPF_K

const RET_KILL_PROCESS: u32 = 0x8000_0000;
const RET_ERRNO: u32 = 0x0005_0000;
const RET_ALLOW: u32 = 0x7fff_0000;

// Offsets in `struct seccomp_data`; both architectures are little-endian.
const DATA_NUMBER: u32 = 0;
const DATA_ARCH: u32 = 4;
const DATA_ARGS: u32 = 16;

/// Compiles a policy for a box with these features.
pub fn compile(policy: &Policy, features: Features) -> Result<Vec<Instruction>, PolicyError> {
    assemble(policy, &ranges(|name| rule(policy, features, name)))
}

/// Compiles what is left to refuse where the filter of `below` holds already, which must allow whatever `policy` does:
/// both together then decide as `policy` alone, since of two filters the stricter counts, and of two errors that of
/// the filter loaded last. A fraction of the whole, and so is the time to load it.
pub fn compile_above(
    policy: &Policy,
    below: &Policy,
    features: Features,
) -> Result<Vec<Instruction>, PolicyError> {
    let settled = Verdict::always(Action::Allow);
    let left = |name: Option<&str>| {
        let wanted = rule(policy, features, name);
        if rule(below, features, name) == wanted { settled.clone() } else { wanted }
    };
    assemble(policy, &ranges(left))
}

/// What a policy says of a call; of no call: of numbers that are not in the table.
fn rule(policy: &Policy, features: Features, name: Option<&str>) -> Verdict {
    let refusal = if name.is_some() { policy.default } else { policy.unknown };
    name.and_then(|name| policy.verdict(features, name))
        .cloned()
        .unwrap_or_else(|| Verdict::always(Action::Refuse(refusal)))
}

fn assemble(policy: &Policy, ranges: &[Range]) -> Result<Vec<Instruction>, PolicyError> {
    let mut program = Program::default();
    let search = program.search(&spans(ranges));
    program.fall_into(search);
    let native = program.push(LOAD, DATA_NUMBER);
    let foreign = program.ret(RET_KILL_PROCESS);
    program.branch(JUMP_EQ, table::AUDIT_ARCH, native, foreign);
    program.push(LOAD, DATA_ARCH);
    let length = program.reversed.len();
    if length > MAX_INSTRUCTIONS {
        return Err(PolicyError::TooLong { policy: policy.name.clone(), length });
    }
    program.reversed.reverse();
    Ok(program.reversed)
}

/// The numbers from `start` up to the next range's.
struct Range {
    start: u32,
    verdict: Verdict,
}

/// All numbers, as the fewest ranges of equal verdicts.
fn ranges(verdict: impl Fn(Option<&str>) -> Verdict) -> Vec<Range> {
    let known: BTreeMap<u32, &str> =
        table::CALLS.iter().filter_map(|call| Some((call.number?, call.name))).collect();
    let mut ranges: Vec<Range> = Vec::new();
    let mut add = |start, verdict: Verdict| {
        if ranges.last().is_none_or(|last| last.verdict != verdict) {
            ranges.push(Range { start, verdict });
        }
    };
    let mut next = 0;
    for (number, name) in known {
        if number > next {
            add(next, verdict(None));
        }
        add(number, verdict(Some(name)));
        next = number + 1;
    }
    add(next, verdict(None));
    add(table::FOREIGN_ABI, Verdict::always(Action::Refuse(Errno::NOT_IMPLEMENTED)));
    ranges
}

/// Numbers that share a verdict, but for one at most.
struct Span<'a> {
    start: u32,
    verdict: &'a Verdict,
    except: Option<(u32, &'a Verdict)>,
}

/// Joins two ranges of equal verdicts across a lone number between them: one test
/// for equality is cheaper than two bounds. Joining more gains nothing measurable.
fn spans(ranges: &[Range]) -> Vec<Span<'_>> {
    let mut spans = Vec::new();
    let mut rest = ranges;
    while let Some((range, tail)) = rest.split_first() {
        let mut span = Span { start: range.start, verdict: &range.verdict, except: None };
        rest = tail;
        if let [lone, after, tail @ ..] = rest
            && after.start - lone.start == 1
            && after.verdict == range.verdict
        {
            span.except = Some((lone.start, &lone.verdict));
            rest = tail;
        }
        spans.push(span);
    }
    spans
}

/// Where an instruction stands, counted from the end of the program.
type Label = usize;

#[derive(Default)]
struct Program {
    reversed: Vec<Instruction>,
    returns: BTreeMap<u32, Label>,
    checks: BTreeMap<Verdict, Label>,
}

impl Program {
    fn push(&mut self, code: u16, k: u32) -> Label {
        self.reversed.push(Instruction { code, jt: 0, jf: 0, k });
        self.reversed.len() - 1
    }

    /// How many instructions a jump written next would skip to reach `label`.
    fn distance(&self, label: Label) -> usize {
        self.reversed.len() - label - 1
    }

    /// Whether a branch written soon reaches `label`: two further jumps may have
    /// to come before it.
    fn reaches(&self, label: Label) -> bool {
        self.distance(label) + 2 <= usize::from(u8::MAX)
    }

    /// A label near enough for a branch that leads to `label`.
    fn near(&mut self, label: Label) -> Label {
        if self.reaches(label) { label } else { self.jump(label) }
    }

    fn jump(&mut self, label: Label) -> Label {
        // A program has at most a few thousand instructions.
        let distance = self.distance(label) as u32;
        self.push(JUMP, distance)
    }

    /// Makes the instruction written next continue at `label`.
    fn fall_into(&mut self, label: Label) {
        if self.distance(label) > 0 {
            self.jump(label);
        }
    }

    fn branch(&mut self, code: u16, k: u32, then: Label, otherwise: Label) -> Label {
        let (then, otherwise) = (self.near(then), self.near(otherwise));
        // `near` keeps both within 8 bits.
        let (jt, jf) = (self.distance(then) as u8, self.distance(otherwise) as u8);
        self.reversed.push(Instruction { code, jt, jf, k });
        self.reversed.len() - 1
    }

    fn ret(&mut self, value: u32) -> Label {
        match self.returns.get(&value) {
            Some(&label) if self.reaches(label) => label,
            _ => {
                let label = self.push(RETURN, value);
                self.returns.insert(value, label);
                label
            }
        }
    }

    fn action(&mut self, action: Action) -> Label {
        self.ret(match action {
            Action::Allow => RET_ALLOW,
            Action::Refuse(errno) => RET_ERRNO | u32::from(errno.raw()),
        })
    }

    /// Finds what happens to the number in the accumulator.
    fn search(&mut self, spans: &[Span]) -> Label {
        match spans {
            [] => self.ret(RET_KILL_PROCESS),
            [span] => {
                let shared = self.verdict(span.verdict);
                let Some((number, verdict)) = span.except else {
                    return shared;
                };
                let excepted = self.verdict(verdict);
                self.branch(JUMP_EQ, number, excepted, shared)
            }
            _ => {
                let (low, high) = spans.split_at(spans.len() / 2);
                let above = self.search(high);
                let below = self.search(low);
                self.branch(JUMP_GE, high[0].start, above, below)
            }
        }
    }

    fn verdict(&mut self, verdict: &Verdict) -> Label {
        if verdict.cases.is_empty() {
            return self.action(verdict.otherwise);
        }
        let label = match self.checks.get(verdict) {
            Some(&label) => self.near(label),
            None => self.check(verdict),
        };
        self.checks.insert(verdict.clone(), label);
        label
    }

    fn check(&mut self, verdict: &Verdict) -> Label {
        let mut next = self.action(verdict.otherwise);
        for case in verdict.cases.iter().rev() {
            let mut entry = self.action(case.action);
            for condition in case.when.iter().rev() {
                entry = self.condition(condition, entry, next);
            }
            next = entry;
        }
        next
    }

    fn condition(&mut self, condition: &Condition, then: Label, otherwise: Label) -> Label {
        let (values, hit, miss) = match &condition.test {
            Test::AnyOf(values) => (values, then, otherwise),
            Test::NoneOf(values) => (values, otherwise, then),
        };
        let low = DATA_ARGS + 8 * u32::from(condition.arg);
        let mask = Halves::of(condition.mask);
        match condition.width {
            Width::Low32 if values[..] == [0] => {
                self.branch(JUMP_SET, mask.low, miss, hit);
                self.push(LOAD, low)
            }
            Width::Low32 => {
                let mut next = miss;
                for &value in values.iter().rev() {
                    next = self.branch(JUMP_EQ, Halves::of(value).low, hit, next);
                }
                self.masked(low, mask.low)
            }
            Width::Full64 => {
                let mut next = miss;
                for &value in values.iter().rev() {
                    let value = Halves::of(value);
                    self.branch(JUMP_EQ, value.low, hit, next);
                    let same_high = self.masked(low, mask.low);
                    self.branch(JUMP_EQ, value.high, same_high, next);
                    next = self.masked(low + 4, mask.high);
                }
                next
            }
        }
    }

    /// Loads a word of the call for the instruction written last.
    fn masked(&mut self, offset: u32, mask: u32) -> Label {
        if mask != u32::MAX {
            self.push(AND, mask);
        }
        self.push(LOAD, offset)
    }
}

struct Halves {
    low: u32,
    high: u32,
}

impl Halves {
    fn of(value: u64) -> Self {
        Self { low: value as u32, high: (value >> 32) as u32 }
    }
}
