//! Any bytes, cut anywhere, give the same events; what is written is read back.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sandcrate_protocol::framing::stdio::{Decoder, Event, encode};

fn decode<'a>(parts: impl Iterator<Item = &'a [u8]>) -> Vec<Event> {
    let (mut decoder, mut events) = (Decoder::new(), Vec::new());
    for mut part in parts {
        while let Some(event) = decoder.next_event(&mut part) {
            events.push(event);
        }
    }
    events.extend(decoder.finish());
    events
}

fuzz_target!(|input: (u8, &[u8])| {
    let (step, bytes) = input;
    let events = decode(std::iter::once(bytes));
    assert_eq!(decode(bytes.chunks(usize::from(step) + 1)), events);
    let braced = |text: &String| text.starts_with('{') && text.ends_with('}') && !text.contains("\"type\"");
    for event in events {
        if let Event::Message(text) = event
            && braced(&text)
            && serde_json::from_str::<serde_json::Value>(&text).is_ok_and(|value| value.get("type").is_none())
        {
            let mut line = Vec::new();
            encode(&text, &mut line);
            assert_eq!(decode(std::iter::once(&line[..])), [Event::Message(text)]);
        }
    }
});
