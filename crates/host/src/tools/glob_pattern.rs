//! Patterns over the components of a relative path: `*`, `?` and `[…]` within a name, `**` over directories.

use crate::{HostError, Result};

/// Longer ones are no patterns anybody writes, and matching costs their length.
const PATTERN_CHARS: usize = 1000;

/// A pattern that matches at any depth, as `**/` before it would.
#[derive(Debug, Clone)]
pub(crate) struct GlobPattern {
    parts: Vec<Part>,
}

#[derive(Debug, Clone)]
enum Part {
    AnyDepth,
    Name(Vec<Token>),
}

#[derive(Debug, Clone)]
enum Token {
    Star,
    One,
    Char(char),
    Class { negated: bool, ranges: Vec<(char, char)> },
}

impl GlobPattern {
    pub(crate) fn new(pattern: &str) -> Result<Self> {
        if pattern.starts_with('/') {
            return Err(HostError::invalid("Non-relative patterns are unsupported"));
        }
        if pattern.chars().count() > PATTERN_CHARS {
            return Err(HostError::invalid(format!("Pattern is longer than {PATTERN_CHARS} characters.")));
        }
        let mut parts = vec![Part::AnyDepth];
        for part in pattern.split('/') {
            match part {
                "" | "." => {}
                ".." => return Err(HostError::invalid("Pattern must not contain \"..\".")),
                "**" if matches!(parts.last(), Some(Part::AnyDepth)) && parts.len() > 1 => {}
                "**" => parts.push(Part::AnyDepth),
                name => parts.push(Part::Name(tokens(name))),
            }
        }
        if parts.len() == 1 {
            return Err(HostError::invalid("Pattern must not be empty."));
        }
        Ok(Self { parts })
    }

    /// Whether the components of a path below the base match.
    pub(crate) fn matches(&self, names: &[&str]) -> bool {
        if names.is_empty() {
            return false;
        }
        // reached[n]: the parts so far match the first n names.
        let mut reached = vec![false; names.len() + 1];
        reached[0] = true;
        for part in &self.parts {
            let mut next = vec![false; names.len() + 1];
            match part {
                Part::AnyDepth => {
                    let mut any = false;
                    for (slot, &before) in next.iter_mut().zip(&reached) {
                        any |= before;
                        *slot = any;
                    }
                }
                Part::Name(tokens) => {
                    for (n, name) in names.iter().enumerate() {
                        next[n + 1] = reached[n] && name_matches(tokens, name);
                    }
                }
            }
            reached = next;
        }
        reached[names.len()]
    }
}

fn tokens(name: &str) -> Vec<Token> {
    let chars: Vec<char> = name.chars().collect();
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(&c) = chars.get(at) {
        at += 1;
        match c {
            '*' if matches!(tokens.last(), Some(Token::Star)) => {}
            '*' => tokens.push(Token::Star),
            '?' => tokens.push(Token::One),
            '[' => match class(&chars[at..]) {
                Some((token, used)) => {
                    tokens.push(token);
                    at += used;
                }
                // Never closed: the bracket stands for itself.
                None => tokens.push(Token::Char('[')),
            },
            c => tokens.push(Token::Char(c)),
        }
    }
    tokens
}

/// What follows an opening bracket, and how many characters of it are the class.
fn class(chars: &[char]) -> Option<(Token, usize)> {
    let negated = chars.first() == Some(&'!');
    let start = usize::from(negated);
    // A bracket in first place is one of the characters.
    let end = start + 1 + chars.get(start + 1..)?.iter().position(|&c| c == ']')?;
    let inside = &chars[start..end];
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < inside.len() {
        if at + 2 < inside.len() && inside[at + 1] == '-' {
            ranges.push((inside[at], inside[at + 2]));
            at += 3;
        } else {
            ranges.push((inside[at], inside[at]));
            at += 1;
        }
    }
    Some((Token::Class { negated, ranges }, end + 1))
}

fn name_matches(tokens: &[Token], name: &str) -> bool {
    let chars: Vec<char> = name.chars().collect();
    let (mut token, mut at) = (0, 0);
    // Where the last star is, and how much of the name it takes.
    let mut star: Option<(usize, usize)> = None;
    while at < chars.len() {
        let fits = match tokens.get(token) {
            Some(Token::Star) => {
                star = Some((token, at));
                token += 1;
                continue;
            }
            Some(Token::One) => true,
            Some(Token::Char(c)) => *c == chars[at],
            Some(Token::Class { negated, ranges }) => {
                ranges.iter().any(|&(low, high)| (low..=high).contains(&chars[at])) != *negated
            }
            None => false,
        };
        if fits {
            token += 1;
            at += 1;
        } else if let Some((place, taken)) = star {
            star = Some((place, taken + 1));
            token = place + 1;
            at = taken + 1;
        } else {
            return false;
        }
    }
    tokens[token..].iter().all(|token| matches!(token, Token::Star))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, path: &str) -> bool {
        GlobPattern::new(pattern).unwrap().matches(&path.split('/').collect::<Vec<_>>())
    }

    #[test]
    fn patterns_match_at_any_depth_and_stars_stay_in_a_name() {
        for (pattern, path) in [
            ("*", "a"),
            ("*", "a/b"),
            ("*.py", "a.py"),
            ("*.py", "x/y/a.py"),
            ("**/*.py", "a.py"),
            ("src/*.rs", "src/a.rs"),
            ("src/*.rs", "crates/x/src/a.rs"),
            ("src/**/a", "src/a"),
            ("src/**/a", "src/x/y/a"),
            ("**", "x/y"),
            ("a?c", "abc"),
            ("[ab]*", "bx"),
            ("[!ab]*", "cx"),
            ("[a-c]1", "b1"),
            ("[]]x", "]x"),
            ("[x", "[x"),
            ("a**b", "axxb"),
            ("./a", "a"),
            ("*a*b*", "xxaYbZ"),
            ("ä?", "äö"),
            (".*", ".env"),
        ] {
            assert!(matches(pattern, path), "{pattern} must match {path}");
        }
        for (pattern, path) in [
            ("*.py", "a.pyc"),
            ("*.py", "a.py/x"),
            ("src/*.rs", "src/x/a.rs"),
            ("a?c", "ac"),
            ("[!ab]*", "ax"),
            ("A", "a"),
            ("a/b", "b"),
        ] {
            assert!(!matches(pattern, path), "{pattern} must not match {path}");
        }
    }

    // S2: a pattern cannot lead out of the directory it is applied to.
    #[test]
    fn absolute_patterns_and_parents_are_refused() {
        for (pattern, message) in [
            ("/etc/*", "Non-relative patterns are unsupported"),
            ("../secret", "Pattern must not contain \"..\"."),
            ("a/../../etc/passwd", "Pattern must not contain \"..\"."),
            ("", "Pattern must not be empty."),
            ("./", "Pattern must not be empty."),
        ] {
            assert_eq!(GlobPattern::new(pattern).unwrap_err().message, message, "{pattern}");
        }
        assert!(GlobPattern::new(&"x".repeat(2000)).is_err());
    }

    /// The meaning of a pattern, said once more without care for time.
    fn meant(parts: &[&str], names: &[&str]) -> bool {
        let Some((part, rest)) = parts.split_first() else { return names.is_empty() };
        if *part == "**" {
            return meant(rest, names) || names.split_first().is_some_and(|(_, names)| meant(parts, names));
        }
        let text = part.replace('*', ".*").replace('?', ".");
        let one = regex::Regex::new(&format!("^{text}$")).unwrap();
        names.split_first().is_some_and(|(name, names)| one.is_match(name) && meant(rest, names))
    }

    proptest::proptest! {
        #[test]
        fn a_pattern_means_what_a_plain_reading_of_it_means(
            pattern in proptest::collection::vec("[ab*?]{1,4}", 1..4),
            path in proptest::collection::vec("[ab]{1,4}", 1..5),
        ) {
            let parts: Vec<&str> = std::iter::once("**").chain(pattern.iter().map(String::as_str)).collect();
            let names: Vec<&str> = path.iter().map(String::as_str).collect();
            let found = GlobPattern::new(&pattern.join("/")).unwrap().matches(&names);
            proptest::prop_assert_eq!(found, meant(&parts, &names));
        }
    }

    #[test]
    fn many_stars_take_no_exponential_time() {
        let pattern = GlobPattern::new(&"*a".repeat(400)).unwrap();
        assert!(!pattern.matches(&[&"a".repeat(300)]));
    }
}
