//! The comparison: every vector either agrees, or is listed as a deviation and differs as listed.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::json::Json;
use super::shorten;

/// A difference from the reference that is meant.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Deviation {
    /// File, number and name of the case.
    vector: String,
    /// Why ours is better; starts with the number of the reference's defect where it has one.
    reason: String,
    /// Our whole outcome, normalised; `<any>` stands for what varies.
    ours: String,
}

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Deviations {
    #[serde(default)]
    deviation: Vec<Deviation>,
}

macro_rules! fixtures {
    ($($name:literal),+) => {
        [$(($name, include_str!(concat!("../../fixtures/golden/", $name)))),+]
    };
}

/// Built in: an ordinary user who runs the tests may not see the repository.
const FIXTURES: [(&str, &str); 15] = fixtures!(
    "deviations.toml",
    "rpc-ws-core.jsonl",
    "rpc-ws-framing.jsonl",
    "rpc-stdio.jsonl",
    "managed-process.jsonl",
    "relay.jsonl",
    "config-lifecycle.jsonl",
    "seed-scenarios.jsonl",
    "ttl-races.jsonl",
    "spec-coercion.jsonl",
    "skills.jsonl",
    "skills-security.jsonl",
    "current-ws.jsonl",
    "current-host.jsonl",
    "current-admission.jsonl"
);

fn fixture(name: &str) -> &'static str {
    let found = FIXTURES.iter().find(|(known, _)| *known == name);
    found.unwrap_or_else(|| panic!("no fixture {name}")).1
}

/// One file of vectors while it is replayed.
pub(super) struct Ledger {
    file: &'static str,
    vectors: BTreeMap<u32, Json>,
    deviations: BTreeMap<String, Deviation>,
    replayed: Vec<u32>,
    problems: Vec<String>,
}

impl Ledger {
    pub(super) fn open(file: &'static str) -> Self {
        let text = fixture(&format!("{file}.jsonl"));
        let lines = text.lines().filter(|line| !line.trim().is_empty()).map(Json::parse);
        // The file without numbers is numbered by its lines.
        let number =
            |line: &Json, at: usize| line.get("n").map_or(at as u32 + 1, |n| n.python().parse().unwrap());
        let vectors = lines.enumerate().map(|(at, line)| (number(&line, at), line)).collect();
        let listed = toml::from_str(fixture("deviations.toml"));
        let listed: Deviations = listed.unwrap_or_else(|error| panic!("deviations.toml: {error}"));
        let mut deviations = BTreeMap::new();
        for deviation in listed.deviation {
            assert!(!deviation.reason.trim().is_empty(), "{} has no reason", deviation.vector);
            if deviation.vector.split('/').next() == Some(file) {
                let again = deviations.insert(deviation.vector.clone(), deviation);
                assert!(again.is_none(), "{again:?} is listed twice");
            }
        }
        Self { file, vectors, deviations, replayed: Vec::new(), problems: Vec::new() }
    }

    /// # Panics
    /// If the file has no such vector.
    #[track_caller]
    pub(super) fn vector(&self, number: u32) -> Json {
        let found = self.vectors.get(&number);
        found.unwrap_or_else(|| panic!("{} has no vector {number}", self.file)).clone()
    }

    /// The numbers of all vectors, in order.
    pub(super) fn numbers(&self) -> Vec<u32> {
        self.vectors.keys().copied().collect()
    }

    pub(super) fn name(&self, number: u32) -> String {
        let case = self.vector(number).get("case").map(|case| case.text().to_owned());
        format!("{}/{number} {}", self.file, case.unwrap_or_default()).trim_end().to_owned()
    }

    /// Whether an outcome is the one that is wanted, the reference's or the listed one.
    pub(super) fn agrees(&self, number: u32, theirs: &str, ours: &str) -> bool {
        match self.deviations.get(&self.name(number)) {
            Some(deviation) => matches(&deviation.ours, ours),
            None => theirs == ours,
        }
    }

    /// Records the outcome of one vector. Both sides are normalised texts.
    pub(super) fn compare(&mut self, number: u32, theirs: &str, ours: &str) {
        let name = self.name(number);
        self.replayed.push(number);
        let problem = match self.deviations.get(&name) {
            None if theirs == ours => return,
            None => "differs and is not listed",
            Some(_) if theirs == ours => "is listed as a deviation and no longer differs",
            Some(deviation) if matches(&deviation.ours, ours) => return,
            Some(_) => "differs otherwise than listed",
        };
        let mut report =
            format!("{name} {problem}\n  theirs: {}\n  ours:   {}", shorten(theirs), shorten(ours));
        let (vector, ours) = (quoted(&name), quoted(ours));
        let _ = write!(report, "\n[[deviation]]\nvector = {vector}\nreason = \"\"\nours = {ours}");
        self.problems.push(report);
    }

    /// Fails with everything that was found.
    #[track_caller]
    pub(super) fn finish(self) {
        let findings = self.findings();
        assert!(findings.is_empty(), "{findings}");
    }

    /// What is wrong, or nothing.
    pub(super) fn findings(self) -> String {
        let names: Vec<String> = self.numbers().iter().map(|number| self.name(*number)).collect();
        let unknown = self.deviations.keys().filter(|name| !names.contains(name));
        let missing = self.numbers().into_iter().filter(|number| !self.replayed.contains(number));
        let mut problems: Vec<String> =
            unknown.map(|name| format!("{name} is listed and no vector")).collect();
        problems.extend(missing.map(|number| format!("{} was not replayed", self.name(number))));
        problems.extend(self.problems);
        match problems.len() {
            0 => String::new(),
            count => format!("{}: {count} of {}\n{}\n", self.file, names.len(), problems.join("\n\n")),
        }
    }
}

/// A text as TOML has it, for copying into the list.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for char in text.chars() {
        match char {
            '"' | '\\' => out.extend(['\\', char]),
            '\n' => out.push_str("\\n"),
            char if char.is_control() => out.push_str(&format!("\\u{:04x}", u32::from(char))),
            char => out.push(char),
        }
    }
    out + "\""
}

/// Equality, with `<any>` for any text.
fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split("<any>");
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let mut last = None;
    for part in parts {
        if let Some(before) = last.replace(part) {
            let Some((_, after)) = rest.split_once(before) else { return false };
            rest = after;
        }
    }
    last.map_or(rest.is_empty(), |end| rest.ends_with(end))
}

#[test]
fn any_matches_any_text_and_nothing_else_does() {
    assert!(matches("a<any>c<any>e", "abcde") && matches("a<any>", "a") && matches("abc", "abc"));
    assert!(!matches("a<any>c", "abcd") && !matches("abc", "abcd") && !matches("b<any>", "abc"));
}
