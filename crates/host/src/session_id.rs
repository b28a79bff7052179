//! Which session a caller gets: a small template language, and what its names stand for.
//!
//! Literal text, `{name}`, `{{` and `}}`; nothing else. A template is configuration, and one that could look into
//! objects or pad to any width would be a program.

use sandcrate_protocol::python_trim;
use serde_json::Value;

use crate::{HostError, Query, Result};

/// What a pipeline without a template has.
pub const DEFAULT_TEMPLATE: &str = "{launcher_type}_{launcher_id}";

const UNKNOWN: &str = "unknown";

/// A template that was read.
///
/// ```
/// use sandcrate_host::{Query, SessionTemplate};
///
/// let template = SessionTemplate::parse("{launcher_type}_{launcher_id}")?;
/// let query = Query { query_id: Some(7.into()), ..Query::default() };
/// assert_eq!(template.render(&query), "query_7");
/// # Ok::<(), sandcrate_host::HostError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionTemplate(Vec<Part>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Name(String),
}

impl SessionTemplate {
    /// # Errors
    /// When it has anything but text, names in braces and doubled braces; the message names the template.
    pub fn parse(template: &str) -> Result<Self> {
        let wrong = |problem: &str| {
            HostError::invalid(format!("session id template \"{template}\" is not valid: {problem}"))
        };
        let mut parts = Vec::new();
        let mut text = String::new();
        let mut rest = template;
        while let Some(at) = rest.find(['{', '}']) {
            text.push_str(&rest[..at]);
            let brace = &rest[at..at + 1];
            rest = &rest[at + 1..];
            if let Some(after) = rest.strip_prefix(brace) {
                text.push_str(brace);
                rest = after;
                continue;
            }
            if brace == "}" {
                return Err(wrong("a single `}`; write `}}` for the character"));
            }
            let Some((name, after)) = rest.split_once('}') else {
                return Err(wrong("a single `{`; write `{{` for the character"));
            };
            let known = |c: char| c == '_' || c.is_alphanumeric();
            if name.is_empty() || name.starts_with(|c: char| c.is_numeric()) || !name.chars().all(known) {
                return Err(wrong("braces hold one name of letters, digits and underscores"));
            }
            if !text.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut text)));
            }
            parts.push(Part::Name(name.to_owned()));
            rest = after;
        }
        text.push_str(rest);
        if !text.is_empty() {
            parts.push(Part::Text(text));
        }
        Ok(Self(parts))
    }

    /// The id, before it is trimmed and checked as one.
    pub fn render(&self, query: &Query) -> String {
        let parts = self.0.iter().map(|part| match part {
            Part::Text(text) => text.clone(),
            Part::Name(name) => variable(query, name),
        });
        parts.collect()
    }
}

/// The session of a query. The forced template wins over the pipeline's, even over one that is empty.
pub(crate) fn session_id(query: &Query, forced: Option<&SessionTemplate>) -> Result<String> {
    let template = match (forced, &query.session_template) {
        (Some(forced), _) => forced.clone(),
        (None, Some(own)) => SessionTemplate::parse(own)?,
        (None, None) => SessionTemplate::parse(DEFAULT_TEMPLATE)?,
    };
    let id = template.render(query);
    match python_trim(&id) {
        "" => Err(HostError::invalid("Value error, session_id must not be empty")),
        id => Ok(id.to_owned()),
    }
}

/// A variable of the query that is there wins; null is not there, or all new conversations would share a session.
fn variable(query: &Query, name: &str) -> String {
    if let Some(value) = query.variables.get(name).filter(|value| !value.is_null()) {
        return shown(value);
    }
    let query_id = query.query_id.as_ref();
    let launcher_id = query.launcher_id.as_ref();
    let chain: &[Option<&Value>] = match name {
        "global" => return "global".to_owned(),
        "launcher_type" => {
            let known = query.launcher_type.as_deref().filter(|kind| !kind.is_empty());
            return known.unwrap_or("query").to_owned();
        }
        "query_id" => &[query_id],
        "launcher_id" => &[launcher_id, query_id],
        "sender_id" => &[query.sender_id.as_ref(), launcher_id, query_id],
        _ => &[],
    };
    let found = chain.iter().flatten().find(|value| is_truthy(value));
    found.map_or_else(|| UNKNOWN.to_owned(), |value| shown(value))
}

fn is_truthy(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(truth) => *truth,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
    }
}

/// A value as text.
pub(crate) fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn id(template: Option<&str>, query: Query) -> Result<String> {
        session_id(&Query { session_template: template.map(str::to_owned), ..query }, None)
    }

    fn query(query_id: Option<Value>) -> Query {
        Query { query_id, ..Query::default() }
    }

    #[test]
    fn names_fall_back_as_documented() {
        assert_eq!(id(None, query(Some(json!(7)))).unwrap(), "query_7");
        assert_eq!(id(None, query(Some(json!(0)))).unwrap(), "query_unknown");
        assert_eq!(id(Some("{sender_id}"), query(None)).unwrap(), "unknown");
        assert_eq!(id(Some("{query_id}-{nothing}"), query(Some(json!("q")))).unwrap(), "q-unknown");
        let group = Query {
            launcher_type: Some("group".to_owned()),
            launcher_id: Some(json!("room-1")),
            sender_id: Some(json!("")),
            ..Query::default()
        };
        assert_eq!(id(None, group.clone()).unwrap(), "group_room-1");
        assert_eq!(id(Some("{sender_id}"), group.clone()).unwrap(), "room-1");
        let mut person = group;
        person.variables = [("launcher_type", json!("person")), ("launcher_id", json!("test_user"))]
            .map(|(name, value)| (name.to_owned(), value))
            .into();
        assert_eq!(id(None, person).unwrap(), "person_test_user");
    }

    #[test]
    fn b11_a_null_variable_is_no_variable() {
        let mut asked = query(Some(json!(3)));
        asked.variables.insert("conversation_id".to_owned(), Value::Null);
        asked.variables.insert("launcher_id".to_owned(), Value::Null);
        assert_eq!(id(Some("{launcher_id}_{conversation_id}"), asked).unwrap(), "3_unknown");
    }

    #[test]
    fn braces_are_doubled_and_text_is_itself() {
        assert_eq!(id(Some(" {{{global}}} "), query(None)).unwrap(), "{global}");
        assert_eq!(id(Some("x"), query(None)).unwrap(), "x");
        for blank in ["", "  "] {
            let error = id(Some(blank), query(None)).unwrap_err();
            assert_eq!(error.message, "Value error, session_id must not be empty");
        }
    }

    #[test]
    fn s6_nothing_but_names_is_evaluated() {
        for template in
            ["{", "}", "a}b", "{}", "{0}", "{x!r}", "{x:>8}", "{x[0]}", "{x.attr}", "{x y}", "{{x}"]
        {
            let error = SessionTemplate::parse(template).unwrap_err();
            assert_eq!(error.class(), "BoxValidationError");
            assert!(error.message.contains(&format!("\"{template}\"")), "{error}");
        }
    }
}
