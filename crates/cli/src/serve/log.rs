//! The log of a server, on stderr: lines for people, or one JSON object per line.
//!
//! What must be seen whatever the filter says (where we listen, what is unsafe) is announced in the same form.

use std::io::{self, Write};

use sandcrate_protocol::Timestamp;
use serde_json::{Map, Value, json};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry};

use crate::config::LogFormat;

/// Speaks past the filter.
#[derive(Debug, Clone, Copy)]
pub(super) struct Voice(LogFormat);

/// Starts the log. The filter has been checked with the rest of the configuration.
pub(super) fn start(format: LogFormat, filter: &str) -> Voice {
    let filter = filter.parse().unwrap_or_else(|_| EnvFilter::new("info"));
    match format {
        LogFormat::Text => {
            let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
            lines.with_ansi(false).init();
        }
        LogFormat::Json => Registry::default().with(filter).with(JsonLines).init(),
    }
    Voice(format)
}

impl Voice {
    /// A line as it is.
    pub(super) fn say(self, text: &str) {
        self.write("INFO", text, text);
    }

    pub(super) fn warn(self, text: &str) {
        self.write("WARN", &format!("sandcrate: warning: {text}"), text);
    }

    fn write(self, level: &str, line: &str, message: &str) {
        match self.0 {
            LogFormat::Text => write_line(line),
            LogFormat::Json => write_line(&record(level, "sandcrate", message.into(), Map::new())),
        }
    }
}

/// Nobody is left to tell when stderr itself is gone.
fn write_line(line: &str) {
    let mut stderr = io::stderr().lock();
    let _ = stderr.write_all(format!("{line}\n").as_bytes());
}

fn record(level: &str, target: &str, message: Value, fields: Map<String, Value>) -> String {
    let mut record = Map::new();
    record.insert("timestamp".to_owned(), json!(Timestamp::now()));
    record.insert("level".to_owned(), level.into());
    record.insert("target".to_owned(), target.into());
    record.insert("message".to_owned(), message);
    // Ours come first, and a field cannot pretend to be one of them.
    for (key, value) in fields {
        record.entry(key).or_insert(value);
    }
    Value::Object(record).to_string()
}

/// Events with their own fields and those of the spans around them.
struct JsonLines;

#[derive(Debug, Default)]
struct Fields(Map<String, Value>);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for JsonLines {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        span.extensions_mut().insert(fields);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if let Some(fields) = span.extensions_mut().get_mut::<Fields>() {
            values.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Fields::default();
        for span in context.event_scope(event).into_iter().flat_map(|scope| scope.from_root()) {
            if let Some(around) = span.extensions().get::<Fields>() {
                fields.0.extend(around.0.clone());
            }
        }
        event.record(&mut fields);
        let message = fields.0.remove("message").unwrap_or_default();
        let metadata = event.metadata();
        write_line(&record(metadata.level().as_str(), metadata.target(), message, fields.0));
    }
}

impl Fields {
    fn put(&mut self, field: &Field, value: impl Into<Value>) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.put(field, format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value);
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        let mut text = value.to_string();
        let mut cause = value.source();
        while let Some(error) = cause {
            text.push_str(&format!(": {error}"));
            cause = error.source();
        }
        self.put(field, text);
    }
}
