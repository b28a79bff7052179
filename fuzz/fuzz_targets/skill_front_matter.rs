//! Any text is read or refused, quickly; what is read can be edited, and the edit comes back.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sandcrate_skills::FrontMatter;

fuzz_target!(|input: (&str, &str)| {
    let (text, value) = input;
    let Ok(read) = FrontMatter::parse(text) else { return };
    let edited = read.edit(&[("description", value)], None);
    // A long value may take the head over its limit; nothing else may keep it from being read.
    if let Ok(again) = FrontMatter::parse(&edited) {
        // A body behind a head starts with its first line that is not blank.
        let body = |text: &FrontMatter<'_>| text.body().trim_start_matches(['\r', '\n']).to_owned();
        assert_eq!(body(&again), body(&read));
        let said = again.field("description").unwrap_or_default();
        assert!(value.contains(said.as_str()), "{value:?} became {said:?}");
    } else {
        assert!(edited.len() > 60_000, "an edit that cannot be read: {edited:?}");
    }
});
