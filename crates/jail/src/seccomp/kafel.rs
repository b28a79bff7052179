//! A policy in the words of kafel, the language in which nsjail takes its seccomp filter.
//!
//! Calls are written by number: kafel's own table is older than ours and would not know every name. Rules of one
//! call are tried in the order of the text, which is that of its cases.

use std::collections::BTreeMap;

use super::policy::{Action, Case, Condition, Features, Policy, Test};
use super::table;

/// Arguments get names of our own by their place; kafel then takes them as 64 bits wide, and the masks say how much
/// of them counts.
const ARGUMENTS: [&str; 6] = ["a0", "a1", "a2", "a3", "a4", "a5"];

/// What `policy` means with these features, for nsjail's `seccomp_string`.
///
/// Calls without conditions come in one list per action: nsjail compiles the text for every command, and lists are
/// twice as quick to compile as a rule for each.
pub fn kafel(policy: &Policy, features: Features) -> String {
    let mut plain: BTreeMap<Action, Vec<String>> = BTreeMap::new();
    let mut rules = Vec::new();
    for call in table::CALLS {
        let Some(number) = call.number else { continue };
        match policy.verdict(features, call.name) {
            Some(verdict) if !verdict.cases.is_empty() => {
                rules.extend(verdict.cases.iter().map(|case| conditional(number, case)));
                rules.push(unconditional(verdict.otherwise, &[bare(number)]));
            }
            verdict => {
                let what = verdict.map_or(Action::Refuse(policy.default), |verdict| verdict.otherwise);
                plain.entry(what).or_default().push(bare(number));
            }
        }
    }
    let lists = plain.iter().map(|(what, calls)| unconditional(*what, calls));
    let rules: Vec<String> = lists.chain(rules).collect();
    // Numbers that the table does not have, those of other ABIs among them.
    let unknown = action(Action::Refuse(policy.unknown));
    format!("POLICY sandcrate {{\n{}\n}}\nUSE sandcrate DEFAULT {unknown}\n", rules.join(",\n"))
}

fn bare(number: u32) -> String {
    format!("SYSCALL[{number}]")
}

fn unconditional(what: Action, calls: &[String]) -> String {
    format!("  {} {{ {} }}", action(what), calls.join(", "))
}

fn conditional(number: u32, case: &Case) -> String {
    let all: Vec<String> = case.when.iter().map(condition).collect();
    let (names, when) = (ARGUMENTS.join(", "), all.join(" && "));
    format!("  {} {{ {}({names}) {{ {when} }} }}", action(case.action), bare(number))
}

fn action(action: Action) -> String {
    match action {
        Action::Allow => "ALLOW".to_owned(),
        Action::Refuse(errno) => format!("ERRNO({})", errno.raw()),
    }
}

fn condition(condition: &Condition) -> String {
    let argument = ARGUMENTS[usize::from(condition.arg)];
    let (values, sign, between) = match &condition.test {
        Test::AnyOf(values) => (values, "==", " || "),
        Test::NoneOf(values) => (values, "!=", " && "),
    };
    let tests: Vec<String> = values
        .iter()
        .map(|value| format!("({argument} & {:#x}) {sign} {value:#x}", condition.mask))
        .collect();
    format!("({})", tests.join(between))
}

#[cfg(test)]
mod tests {
    use super::super::{Network, command_policy};
    use super::*;

    /// The rules of a call, in order: of a list only what it does.
    fn rules(policy: &Policy, network: Network, call: &str) -> Vec<String> {
        let number = table::find(call).unwrap().number.unwrap();
        let text = kafel(policy, Features { network });
        let lines = text.lines().filter(|line| line.contains(&bare(number)));
        let short = |line: &str| match line.contains('&') {
            true => line.trim().trim_end_matches(',').to_owned(),
            false => line.trim().split(' ').next().unwrap_or_default().to_owned(),
        };
        lines.map(short).collect()
    }

    #[test]
    fn every_call_of_the_table_has_one_last_rule_without_a_condition() {
        let policy = command_policy().unwrap();
        for call in table::CALLS.iter().filter(|call| call.number.is_some()) {
            let rules = rules(&policy, Network::Off, call.name);
            let bare = rules.iter().filter(|rule| !rule.contains('&')).count();
            assert_eq!(bare, 1, "{}: {rules:?}", call.name);
            assert!(!rules.last().unwrap().contains('&'), "{}: {rules:?}", call.name);
        }
    }

    #[test]
    fn errors_conditions_and_order_are_those_of_the_policy() {
        let policy = command_policy().unwrap();
        let number = |call: &str| table::find(call).unwrap().number.unwrap();
        let of = |call: &str| rules(&policy, Network::Off, call);
        assert_eq!(
            (of("read"), of("clone3"), of("ptrace")),
            (vec!["ALLOW".to_owned()], vec!["ERRNO(38)".to_owned()], vec!["ERRNO(1)".to_owned()],)
        );
        let clone = number("clone");
        assert_eq!(
            of("clone"),
            [
                format!(
                    "ALLOW {{ SYSCALL[{clone}](a0, a1, a2, a3, a4, a5) {{ ((a0 & 0x7e020000) == 0x0) }} }}"
                ),
                "ERRNO(1)".to_owned(),
            ]
        );
        let kill = of("kill").remove(0);
        assert!(kill.contains("((a0 & 0xffffffff) != 0x1)"), "{kill}");
        let socket = of("socket");
        assert!(socket.len() == 5 && socket[1].contains("||") && socket[1].contains("&&"), "{socket:?}");
        assert!(socket[4].starts_with("ERRNO(97)"), "{socket:?}");
        let open = rules(&policy, Network::On, "socket");
        assert!(open.iter().any(|line| line.contains("0x10)")), "netlink with a network: {open:?}");
        assert!(
            kafel(&policy, Features { network: Network::Off }).ends_with("USE sandcrate DEFAULT ERRNO(38)\n")
        );
    }
}
