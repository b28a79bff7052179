//! Any bytes are an archive within its limits, or are refused; no entry gives more than it said.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sandcrate_skills::{Limits, ZipArchive};

fuzz_target!(|bytes: &[u8]| {
    let limits = Limits { package_bytes: 1 << 20, package_entries: 100, ..Limits::default() };
    let Ok(archive) = ZipArchive::read(bytes, &limits) else { return };
    assert!(archive.entries().len() <= limits.package_entries);
    for entry in archive.entries() {
        assert!(!entry.path.starts_with('/') && !entry.path.split('/').any(|part| part == ".."));
        let mut out = Vec::new();
        let _ = archive.unpack(entry, &mut out);
        assert!(out.len() as u64 <= entry.size);
    }
});
