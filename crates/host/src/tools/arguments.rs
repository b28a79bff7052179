//! The arguments of a call, read with errors that name the field.

use std::collections::BTreeMap;

use sandcrate_protocol::lax_integer;
use serde_json::{Map, Value};

use crate::{HostError, Result};

#[derive(Debug)]
pub(crate) struct Arguments<'a> {
    tool: &'static str,
    fields: &'a Map<String, Value>,
}

impl<'a> Arguments<'a> {
    /// Takes only an object with no other fields than the `known`.
    pub(crate) fn new(tool: &'static str, value: &'a Value, known: &[&str]) -> Result<Self> {
        let Some(fields) = value.as_object() else {
            return Err(HostError::invalid(format!("the arguments of `{tool}` must be an object")));
        };
        if let Some(unknown) = fields.keys().find(|key| !known.contains(&key.as_str())) {
            return Err(HostError::invalid(format!("`{tool}` has no argument `{unknown}`")));
        }
        Ok(Self { tool, fields })
    }

    fn wrong(&self, field: &str, problem: &str) -> HostError {
        HostError::invalid(format!("argument `{field}` of `{}` {problem}", self.tool))
    }

    /// A field that is there; null is as good as absent, which is how models leave out what is optional.
    fn given(&self, field: &str) -> Option<&'a Value> {
        self.fields.get(field).filter(|value| !value.is_null())
    }

    pub(crate) fn text(&self, field: &str) -> Result<&'a str> {
        self.optional_text(field)?.ok_or_else(|| self.wrong(field, "is required"))
    }

    pub(crate) fn optional_text(&self, field: &str) -> Result<Option<&'a str>> {
        let Some(value) = self.given(field) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.wrong(field, "must be a string"))
    }

    /// A whole number of at least 1.
    pub(crate) fn optional_count(&self, field: &str) -> Result<Option<i64>> {
        let Some(value) = self.given(field) else { return Ok(None) };
        let number = lax_integer(value).ok_or_else(|| self.wrong(field, "must be an integer"))?;
        if number < 1 {
            return Err(self.wrong(field, "must be at least 1"));
        }
        // Whatever does not fit is clamped by the profile anyway.
        Ok(Some(i64::try_from(number).unwrap_or(i64::MAX)))
    }

    pub(crate) fn optional_texts(&self, field: &str) -> Result<Option<BTreeMap<&'a str, &'a str>>> {
        let Some(value) = self.given(field) else { return Ok(None) };
        let map = value.as_object().ok_or_else(|| self.wrong(field, "must be an object"))?;
        let entry = |(key, value): (&'a String, &'a Value)| {
            let text =
                value.as_str().ok_or_else(|| self.wrong(&format!("{field}.{key}"), "must be a string"));
            Ok((key.as_str(), text?))
        };
        map.iter().map(entry).collect::<Result<_>>().map(Some)
    }

    pub(crate) fn flag(&self, field: &str) -> Result<bool> {
        let Some(value) = self.given(field) else { return Ok(false) };
        value.as_bool().ok_or_else(|| self.wrong(field, "must be true or false"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn errors_name_the_tool_and_the_field() {
        let value = json!({"a": 1, "n": 0, "e": {"K": 2}, "f": "yes", "none": null});
        let known = ["a", "n", "e", "f", "none"];
        let arguments = Arguments::new("t", &value, &known).unwrap();
        for (outcome, message) in [
            (arguments.text("a").map(drop), "argument `a` of `t` must be a string"),
            (arguments.text("none").map(drop), "argument `none` of `t` is required"),
            (arguments.optional_count("n").map(drop), "argument `n` of `t` must be at least 1"),
            (arguments.optional_count("e").map(drop), "argument `e` of `t` must be an integer"),
            (arguments.optional_texts("e").map(drop), "argument `e.K` of `t` must be a string"),
            (arguments.optional_texts("a").map(drop), "argument `a` of `t` must be an object"),
            (arguments.flag("f").map(drop), "argument `f` of `t` must be true or false"),
            (Arguments::new("t", &value, &["a"]).map(drop), "`t` has no argument `e`"),
            (Arguments::new("t", &json!([]), &[]).map(drop), "the arguments of `t` must be an object"),
        ] {
            assert_eq!(outcome.unwrap_err().message, message);
        }
    }

    #[test]
    fn numbers_are_taken_in_the_forms_models_write() {
        let value = json!({"a": "30", "b": 45.0});
        let arguments = Arguments::new("t", &value, &["a", "b"]).unwrap();
        assert_eq!(arguments.optional_count("a").unwrap(), Some(30));
        assert_eq!(arguments.optional_count("b").unwrap(), Some(45));
    }
}
