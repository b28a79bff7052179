//! YAML by its events: no aliases, no foreign tags, a bound on values and depth.

use saphyr_parser::{Event, Parser, ScalarStyle, Tag};

use super::scalar;
use crate::SkillError;

/// Values of one front matter; the longest allowed text could have a few times as many.
const MAX_VALUES: usize = 10_000;
const MAX_DEPTH: usize = 32;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Null,
    Bool(bool),
    /// Any number of digits.
    Int(String),
    Float(f64),
    Text(String),
    List(Vec<Value>),
    Map(Mapping),
}

/// Entries in their order, each with the line its key stands on.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Mapping(Vec<(Value, Value, usize)>);

impl Mapping {
    pub(super) fn entries(&self) -> impl Iterator<Item = (&Value, &Value)> {
        self.0.iter().map(|(key, value, _)| (key, value))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The last of several counts.
    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        self.0.iter().rev().find(|(known, ..)| is_text(known, key)).map(|(_, value, _)| value)
    }

    pub(super) fn remove(&mut self, key: &str) {
        self.0.retain(|(known, ..)| !is_text(known, key));
    }

    pub(super) fn set(&mut self, key: &str, value: Value) {
        match self.0.iter().position(|(known, ..)| is_text(known, key)) {
            Some(at) => {
                let line = self.0[at].2;
                let mut later = at + 1;
                while later < self.0.len() {
                    if is_text(&self.0[later].0, key) {
                        self.0.remove(later);
                    } else {
                        later += 1;
                    }
                }
                self.0[at] = (Value::Text(key.to_owned()), value, line);
            }
            None => self.0.push((Value::Text(key.to_owned()), value, usize::MAX)),
        }
    }

    /// Whether both say the same, wherever they say it.
    pub(super) fn same(&self, other: &Self) -> bool {
        self.0.len() == other.0.len()
            && self.entries().zip(other.entries()).all(|(a, b)| a.0.same(b.0) && a.1.same(b.1))
    }

    /// Text keys with the lines they start on.
    pub(super) fn key_lines(&self) -> Vec<(&str, usize)> {
        self.0
            .iter()
            .map(|(key, _, line)| match key {
                Value::Text(text) => (text.as_str(), *line),
                _ => ("", *line),
            })
            .collect()
    }
}

fn is_text(value: &Value, text: &str) -> bool {
    matches!(value, Value::Text(known) if known == text)
}

impl Value {
    fn same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Map(a), Self::Map(b)) => a.same(b),
            (Self::List(a), Self::List(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.same(b)),
            (Self::Float(a), Self::Float(b)) => a.to_bits() == b.to_bits(),
            _ => self == other,
        }
    }
}

/// An open list or mapping.
enum Open {
    List(Vec<Value>),
    Map { entries: Vec<(Value, Value, usize)>, key: Option<(Value, usize)> },
}

/// The first document; nothing when there is none.
pub(super) fn parse(text: &str) -> Result<Option<Value>, SkillError> {
    let refuse = |problem: String| Err(SkillError::FrontMatter { problem });
    let mut open: Vec<Open> = Vec::new();
    let mut values = 0_usize;
    let mut root: Option<Value> = None;
    let mut documents = 0;
    let mut parser = Parser::new_from_str(text);
    while let Some(event) = parser.next_event() {
        let (event, span) = match event {
            Ok(event) => event,
            Err(error) => return refuse(format!("SKILL.md has front matter that is not YAML: {error}")),
        };
        // Lines count from one.
        let line = span.start.line().saturating_sub(1);
        let done = match event {
            Event::Alias(_) => {
                return refuse(
                    "SKILL.md uses a YAML alias in its front matter; write the value out".to_owned(),
                );
            }
            Event::DocumentStart(_) => {
                documents += 1;
                if documents > 1 {
                    return refuse("SKILL.md has several YAML documents in its front matter".to_owned());
                }
                continue;
            }
            Event::Scalar(value, style, _, tag) => {
                let plain = style == ScalarStyle::Plain;
                let text = match core_tag(tag.as_deref())? {
                    Some("str") => Value::Text(value.into_owned()),
                    Some(_) => scalar::resolve(&value),
                    None if plain => scalar::resolve(&value),
                    None => Value::Text(value.into_owned()),
                };
                Some((text, line))
            }
            Event::SequenceStart(_, tag) => {
                core_tag(tag.as_deref())?;
                open.push(Open::List(Vec::new()));
                None
            }
            Event::MappingStart(_, tag) => {
                core_tag(tag.as_deref())?;
                open.push(Open::Map { entries: Vec::new(), key: None });
                None
            }
            Event::SequenceEnd | Event::MappingEnd => match open.pop() {
                Some(Open::List(items)) => Some((Value::List(items), line)),
                Some(Open::Map { entries, .. }) => Some((Value::Map(Mapping(entries)), line)),
                None => None,
            },
            _ => continue,
        };
        values += 1;
        if values > MAX_VALUES || open.len() > MAX_DEPTH {
            let limit = format!("{MAX_VALUES} values, {MAX_DEPTH} deep");
            return Err(SkillError::limit("the front matter of SKILL.md", limit));
        }
        let Some((value, line)) = done else { continue };
        match open.last_mut() {
            None => root = Some(value),
            Some(Open::List(items)) => items.push(value),
            Some(Open::Map { entries, key }) => match key.take() {
                None => *key = Some((value, line)),
                Some((key, line)) => entries.push((key, value, line)),
            },
        }
    }
    Ok(root)
}

/// The name of a core tag; foreign ones make objects in other languages, and nothing here.
fn core_tag(tag: Option<&Tag>) -> Result<Option<&str>, SkillError> {
    match tag {
        None => Ok(None),
        Some(tag) if tag.is_yaml_core_schema() => match tag.suffix.as_str() {
            known @ ("str" | "int" | "float" | "bool" | "null" | "map" | "seq" | "timestamp") => {
                Ok(Some(known))
            }
            other => Err(foreign(other)),
        },
        Some(tag) => Err(foreign(&tag.suffix)),
    }
}

fn foreign(tag: &str) -> SkillError {
    let shown: String = tag.chars().take(50).collect();
    SkillError::FrontMatter { problem: format!("SKILL.md uses the YAML tag `{shown}` in its front matter") }
}
