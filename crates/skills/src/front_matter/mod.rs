//! The head of a `SKILL.md`: YAML between two lines `---`, read with hard bounds and edited in place.
//!
//! Editing keeps every byte that it is not about: other keys, comments, line ends, the body. It replaces the
//! lines of a key, then reads the result back; whatever does not come back as meant is written anew, with all
//! keys. Aliases are refused rather than expanded, so no text can grow.

mod emit;
mod scalar;
mod yaml;

use sandcrate_protocol::python_trim;

use crate::SkillError;
use crate::limits::FRONT_MATTER_BYTES;
use yaml::{Mapping, Value};

/// A `SKILL.md`, split.
#[derive(Debug, Clone, PartialEq)]
pub struct FrontMatter<'a> {
    head: Option<Head<'a>>,
    /// What follows, without the line breaks that it starts with.
    body: &'a str,
}

#[derive(Debug, Clone, PartialEq)]
struct Head<'a> {
    /// The first line with its line end.
    open: &'a str,
    yaml: &'a str,
    /// The last line with its line end, and the blank lines behind it.
    close: &'a str,
    /// `None`: YAML, but no mapping.
    mapping: Option<Mapping>,
}

/// The keys that the store knows.
pub(crate) const NAME: &str = "name";
pub(crate) const DISPLAY_NAME: &str = "display_name";
pub(crate) const DESCRIPTION: &str = "description";

impl<'a> FrontMatter<'a> {
    /// Reads the text of an entry file. A head that is not closed is no head.
    ///
    /// # Errors
    /// When the YAML is not valid, uses aliases or foreign tags, or is too long, too deep or too rich.
    pub fn parse(text: &'a str) -> Result<Self, SkillError> {
        let Some((open, yaml, rest)) = split(text) else { return Ok(Self { head: None, body: text }) };
        if yaml.len() > FRONT_MATTER_BYTES {
            let limit = format!("{FRONT_MATTER_BYTES} bytes");
            return Err(SkillError::limit("the front matter of SKILL.md", limit));
        }
        let mapping = match yaml::parse(yaml)? {
            Some(Value::Map(mapping)) => Some(mapping),
            _ => None,
        };
        let after_line = rest.find('\n').map_or(rest.len(), |at| at + 1);
        let body = rest[after_line..].trim_start_matches(['\r', '\n']);
        let close = &rest[..rest.len() - body.len()];
        Ok(Self { head: Some(Head { open, yaml, close, mapping }), body })
    }

    /// The instructions.
    pub fn body(&self) -> &'a str {
        self.body
    }

    /// The value of a key as Python prints it, trimmed; nothing when it is absent, null or blank.
    pub fn field(&self, key: &str) -> Option<String> {
        let value = self.head.as_ref()?.mapping.as_ref()?.get(key)?;
        let text = value.python_text();
        Some(python_trim(&text).to_owned()).filter(|text| !text.is_empty())
    }

    /// The text with these keys set, or removed where the value is empty, and with another body if one is given.
    pub fn edit(&self, changes: &[(&str, &str)], body: Option<&str>) -> String {
        let line_end = match &self.head {
            Some(head) if head.open.ends_with("\r\n") => "\r\n",
            _ => "\n",
        };
        let yaml = match &self.head {
            Some(Head { yaml, mapping: Some(mapping), .. }) => edit_yaml(yaml, mapping, changes, line_end),
            // A list or a word says nothing, to the reference too.
            _ => emit::mapping(&changed(&Mapping::default(), changes), line_end),
        };
        if yaml.is_empty() {
            return body.unwrap_or(self.body).to_owned();
        }
        match (&self.head, body) {
            (Some(head), None) => format!("{}{yaml}{}{}", head.open, head.close, self.body),
            (Some(head), Some(body)) => {
                let close_line = &head.close[..head.close.find('\n').map_or(head.close.len(), |at| at + 1)];
                let end = if close_line.ends_with('\n') { "" } else { line_end };
                format!("{}{yaml}{close_line}{end}{line_end}{body}", head.open)
            }
            (None, body) => {
                let body = body.unwrap_or(self.body);
                format!("---{line_end}{yaml}---{line_end}{line_end}{body}")
            }
        }
    }
}

/// The opening line, the YAML, and the rest from the closing line on.
fn split(text: &str) -> Option<(&str, &str, &str)> {
    if !text.starts_with("---") {
        return None;
    }
    let open = text.find('\n')? + 1;
    if python_trim(&text[..open]) != "---" {
        return None;
    }
    let mut at = open;
    for line in text[open..].split_inclusive('\n') {
        if python_trim(line) == "---" {
            return Some((&text[..open], &text[open..at], &text[at..]));
        }
        at += line.len();
    }
    None
}

/// What the mapping is to say afterwards.
fn changed(mapping: &Mapping, changes: &[(&str, &str)]) -> Mapping {
    let mut wanted = mapping.clone();
    for (key, value) in changes {
        match *value {
            "" => wanted.remove(key),
            value => wanted.set(key, Value::Text(value.to_owned())),
        }
    }
    // The reference's order: ours first, when they are new.
    wanted
}

fn edit_yaml(yaml: &str, mapping: &Mapping, changes: &[(&str, &str)], line_end: &str) -> String {
    let wanted = changed(mapping, changes);
    if wanted.same(mapping) {
        return yaml.to_owned();
    }
    let edited = edit_lines(yaml, mapping, changes, line_end);
    let comes_back = match yaml::parse(&edited) {
        Ok(Some(Value::Map(read))) => read.same(&wanted),
        Ok(None) => wanted.is_empty(),
        _ => false,
    };
    if comes_back { edited } else { emit::mapping(&wanted, line_end) }
}

/// Replaces the lines of the keys; what does not stand on lines of its own comes out wrong, which is noticed.
fn edit_lines(yaml: &str, mapping: &Mapping, changes: &[(&str, &str)], line_end: &str) -> String {
    let lines: Vec<&str> = yaml.split_inclusive('\n').collect();
    let starts = mapping.key_lines();
    let mut edited = String::new();
    let mut done: Vec<&str> = Vec::new();
    // Comments before the first key.
    let first = starts.first().map_or(lines.len(), |(_, line)| *line).min(lines.len());
    edited.extend(lines[..first].iter().copied());
    for (index, (key, from)) in starts.iter().enumerate() {
        let to = starts.get(index + 1).map_or(lines.len(), |(_, line)| *line).min(lines.len());
        let entry = &lines[(*from).min(to)..to];
        let Some((key, value)) = changes.iter().find(|(changed, _)| changed == key) else {
            edited.extend(entry.iter().copied());
            continue;
        };
        // Comments and blank lines at the end of an entry belong to what follows.
        let own = entry.iter().rposition(|line| !is_remark(line)).map_or(0, |last| last + 1);
        if !value.is_empty() && !done.contains(key) {
            edited.push_str(&emit::entry(key, value, line_end));
            done.push(key);
        }
        edited.extend(entry[own..].iter().copied());
    }
    if !edited.is_empty() && !edited.ends_with('\n') {
        edited.push_str(line_end);
    }
    for (key, value) in changes {
        if !value.is_empty() && !done.contains(key) {
            edited.push_str(&emit::entry(key, value, line_end));
        }
    }
    edited
}

fn is_remark(line: &str) -> bool {
    let line = line.trim();
    line.is_empty() || line.starts_with('#')
}

/// A new entry file.
pub(crate) fn compose(name: &str, display_name: &str, description: &str, body: &str) -> String {
    let none = FrontMatter { head: None, body: "" };
    let changes = [(NAME, name), (DISPLAY_NAME, display_name), (DESCRIPTION, description)];
    none.edit(&changes, Some(body))
}

#[cfg(test)]
#[path = "front_matter_tests.rs"]
mod tests;
