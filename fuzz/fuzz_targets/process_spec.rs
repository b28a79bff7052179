//! Any JSON is a spec, which is then accepted again unchanged, or is refused with reasons.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sandcrate_protocol::ProcessSpec;

fuzz_target!(|text: &str| {
    let Ok(value) = serde_json::from_str(text) else { return };
    match ProcessSpec::from_json(&value) {
        Ok(spec) => {
            let again = serde_json::to_value(&spec).expect("a spec is JSON");
            assert_eq!(ProcessSpec::from_json(&again).as_ref(), Ok(&spec));
        }
        Err(refused) => assert!(!refused.issues().is_empty() && !refused.to_string().is_empty()),
    }
});
