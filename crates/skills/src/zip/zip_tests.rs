//! Archives: what passes, and every way in which one is refused before anything is written.

use proptest::prelude::*;

use super::*;
use crate::{Limits, SkillError};

fn zip(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut writer = ZipWriter::default();
    for (name, content) in files {
        match name.strip_suffix('/') {
            Some(directory) => writer.directory(directory).unwrap(),
            None => writer.file(name, content, false).unwrap(),
        }
    }
    writer.finish().unwrap()
}

fn refusal(bytes: &[u8]) -> String {
    match ZipArchive::read(bytes, &Limits::default()) {
        Err(error) => error.to_string(),
        Ok(archive) => panic!("accepted: {:?}", archive.entries()),
    }
}

fn unpack(archive: &ZipArchive<'_>, path: &str) -> Result<Vec<u8>, SkillError> {
    let entry = archive.entries().iter().find(|entry| entry.path == path).unwrap();
    let mut out = Vec::new();
    archive.unpack(entry, &mut out).map(|()| out)
}

/// Where the central header of the entry with this index starts.
fn central(bytes: &[u8], index: usize) -> usize {
    let at = |from: usize| {
        let mark = CENTRAL_HEADER.to_le_bytes();
        bytes[from..].windows(4).position(|window| window == mark).map(|found| found + from).unwrap()
    };
    (0..index).fold(at(0), |found, _| at(found + 4))
}

#[test]
fn what_is_packed_is_unpacked() {
    let text = "text ".repeat(1000);
    let bytes = zip(&[("SKILL.md", text.as_bytes()), ("a/", b""), ("a/b.txt", b"1"), ("empty", b"")]);
    let archive = ZipArchive::read(&bytes, &Limits::default()).unwrap();
    assert_eq!(archive.entries().len(), 4);
    assert_eq!(unpack(&archive, "SKILL.md").unwrap(), text.as_bytes());
    assert_eq!(unpack(&archive, "a/b.txt").unwrap(), b"1");
    assert_eq!(unpack(&archive, "empty").unwrap(), b"");
    assert!(archive.entries()[1].is_dir && archive.entries()[1].path == "a");
}

#[test]
fn what_is_no_archive_is_told() {
    assert_eq!(refusal(b""), "Uploaded file is empty");
    assert_eq!(refusal(b"PKnope"), "Uploaded file must be a valid .zip archive");
    let bytes = zip(&[("a", b"1")]);
    assert_eq!(refusal(&bytes[..bytes.len() - 1]), "Uploaded file must be a valid .zip archive");
    let archive = zip(&[]);
    assert!(ZipArchive::read(&archive, &Limits::default()).unwrap().entries().is_empty());
}

#[test]
fn ap_20_names_that_leave_are_refused() {
    for name in [
        "../evil/SKILL.md",
        "a/../../x",
        "/abs/SKILL.md",
        "C:\\x",
        "C:/x",
        "a\\..\\..\\x",
        "a//b",
        "a/./b",
        "..",
        "../",
        "nul\0x",
        "line\nbreak",
    ] {
        let message = refusal(&zip(&[(name, b"x")]));
        assert!(message.starts_with("Archive contains an unsafe path: "), "{name}: {message}");
    }
    let deep = format!("{}x", "d/".repeat(40));
    assert!(refusal(&zip(&[(&deep, b"x")])).contains("depth"));
    for twice in [[("a", "x"), ("a", "y")], [("a", "x"), ("a/b", "y")], [("a/b", "x"), ("a", "y")]] {
        let files = twice.map(|(name, content)| (name, content.as_bytes()));
        assert!(refusal(&zip(&files)).contains("twice"), "{twice:?}");
    }
}

#[test]
fn ap_21_links_and_special_files_are_refused() {
    for (mode, part) in
        [(0o120_777_u32, "a symbolic link: l"), (0o010_644, "no file: l"), (0o060_644, "no file: l")]
    {
        let mut bytes = zip(&[("SKILL.md", b"x"), ("l", b"/etc/passwd")]);
        let at = central(&bytes, 1) + 38;
        bytes[at..at + 4].copy_from_slice(&(mode << 16).to_le_bytes());
        assert!(refusal(&bytes).contains(part), "{mode:o}");
    }
}

/// AP-22: the reference writes 512 MiB for a file of 509 KiB.
#[test]
fn ap_22_bombs_are_refused_before_a_byte_is_unpacked() {
    let zeroes = vec![0; 8 << 20];
    let bytes = zip(&[("SKILL.md", b"x"), ("zeroes", &zeroes)]);
    assert!(bytes.len() < 100_000);
    assert!(refusal(&bytes).contains("growth"), "one entry that grows");

    let small = Limits { package_bytes: 1000, ..Limits::default() };
    let bytes = zip(&[("a", &[1; 600]), ("b", &[2; 600])]);
    let error = ZipArchive::read(&bytes, &small).unwrap_err();
    assert!(error.to_string().contains("1000 bytes"), "{error}");

    let few = Limits { package_entries: 2, ..Limits::default() };
    let error = ZipArchive::read(&zip(&[("a", b""), ("b", b""), ("c", b"")]), &few).unwrap_err();
    assert!(error.to_string().contains("2 entries"), "{error}");
    let error = ZipArchive::read(&zip(&[("a/b/c", b"")]), &few).unwrap_err();
    assert!(error.to_string().contains("2 entries"), "directories count: {error}");

    // A directory that claims a million entries in few bytes: the count is a lie, or a Zip64 one.
    let mut bytes = zip(&[("a", b"1")]);
    let end = bytes.len() - 22;
    bytes[end + 8..end + 12].copy_from_slice(&[0xff; 4]);
    assert_eq!(refusal(&bytes), "Uploaded file must be a valid .zip archive");
    bytes[end + 8..end + 12].copy_from_slice(&[0x10, 0x27, 0x10, 0x27]);
    assert_eq!(refusal(&bytes), "Uploaded file must be a valid .zip archive");
}

#[test]
fn ap_22_entries_that_overlap_are_refused() {
    let mut bytes = zip(&[("a", b"1111"), ("b", b"1111")]);
    // The second entry's bytes are the first one's.
    let (first, second) = (central(&bytes, 0) + 42, central(&bytes, 1) + 42);
    let offset: [u8; 4] = bytes[first..first + 4].try_into().unwrap();
    bytes[second..second + 4].copy_from_slice(&offset);
    assert_eq!(refusal(&bytes), "Archive contains entries that overlap");
    // An entry whose bytes are the directory.
    let mut bytes = zip(&[("a", b"1111")]);
    let at = central(&bytes, 0);
    for offset in [20, 24] {
        bytes[at + offset..at + offset + 4].copy_from_slice(&20_u32.to_le_bytes());
    }
    assert_eq!(refusal(&bytes), "Archive contains entries that overlap");
}

#[test]
fn ap_22_a_file_that_is_longer_than_it_said_is_not_written() {
    let content = b"a line of text, again and again\n".repeat(100);
    let mut bytes = zip(&[("a", &content)]);
    let at = central(&bytes, 0) + 24;
    bytes[at..at + 4].copy_from_slice(&10_u32.to_le_bytes());
    let archive = ZipArchive::read(&bytes, &Limits::default()).unwrap();
    let mut out = Vec::new();
    assert!(archive.unpack(&archive.entries()[0], &mut out).is_err());
    assert!(out.len() <= 10);
    let mut bytes = zip(&[("a", &content)]);
    let at = central(&bytes, 0) + 16;
    bytes[at] ^= 1;
    let archive = ZipArchive::read(&bytes, &Limits::default()).unwrap();
    assert!(unpack(&archive, "a").unwrap_err().to_string().contains("damaged"));
}

#[test]
fn encryption_and_other_methods_are_refused() {
    for (offset, value, part) in [(8, 1_u16, "encrypted"), (10, 12, "not supported")] {
        let mut bytes = zip(&[("a", b"1")]);
        let at = central(&bytes, 0) + offset;
        bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
        assert!(refusal(&bytes).contains(part));
    }
}

#[test]
fn names_without_the_flag_are_those_of_python() {
    assert_eq!(names::decode(b"caf\x82", false), "café");
    assert_eq!(names::decode("技能".as_bytes(), false), "技能");
    assert_eq!(names::decode(b"\xff", false), "\u{a0}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_damaged_archive_never_gives_more_than_it_may(at in 0_usize..400, value: u8, cut in 0_usize..400) {
        let mut bytes = zip(&[("SKILL.md", b"some text some text some text"), ("a/b", &[7; 200])]);
        let end = bytes.len();
        bytes[at % end] = value;
        bytes.truncate(end - cut % 3);
        let limits = Limits { package_bytes: 1 << 16, ..Limits::default() };
        if let Ok(archive) = ZipArchive::read(&bytes, &limits) {
            for entry in archive.entries() {
                let mut out = Vec::new();
                let _ = archive.unpack(entry, &mut out);
                prop_assert!(out.len() as u64 <= entry.size);
            }
        }
    }
}
