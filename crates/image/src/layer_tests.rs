use std::path::Path;

use super::*;
use crate::limits::{Allowance, ImportLimits, Progress};
use crate::testing::{Archive, root_at};

fn unpacked(layers: &[Vec<u8>], check: impl FnOnce(&Path)) -> Result<(), ImageError> {
    let directory = tempfile::tempdir().unwrap();
    let mut report = |_: Progress| {};
    let mut root = root_at(directory.path(), ImportLimits::default(), &mut report);
    for (at, archive) in layers.iter().enumerate() {
        if at > 0 {
            apply_whiteouts(&mut root, &archive[..])?;
        }
        apply(&mut root, &archive[..], Role::Layer)?;
    }
    check(directory.path());
    Ok(())
}

fn refusal(archive: Archive) -> String {
    match unpacked(&[archive.end()], |_| {}) {
        Err(ImageError::Refused { rule, .. }) => rule,
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn a_layer_hides_what_is_below_it_and_nothing_of_its_own() {
    let lower =
        Archive::default().file("etc/gone", "").file("etc/kept", "").file("var/a/b", "").file("var/c", "");
    let lower = lower.file("bin/x", "lower").symlink("link", "etc").end();
    // The opaque mark last, which is allowed: it is about the layers below.
    let upper = Archive::default()
        .file("etc/.wh.gone", "")
        .file("var/new", "")
        .file("var/.wh..wh..opq", "")
        .file("link/.wh.kept", "")
        .file(".wh..wh.plnk", "")
        .file("missing/.wh.x", "")
        .dir("bin/x/")
        .file("bin/x/in", "upper")
        .end();
    unpacked(&[lower, upper], |at| {
        let has = |path: &str| at.join(path).symlink_metadata().is_ok();
        assert!(!has("etc/gone") && !has("var/a") && !has("var/c"));
        assert!(has("var/new"), "a layer's own files stay");
        assert!(!has("etc/kept"), "through a link of the root");
        assert!(has("bin/x/in"), "a directory in the place of a file");
        assert!(!has(".wh..wh.plnk") && !has("etc/.wh.gone") && !has("missing"));
    })
    .unwrap();
}

#[test]
fn whiteouts_and_opaque_directories_in_every_order() {
    let lower =
        Archive::default().file("etc/gone", "").file("var/a/b", "").file("tree/x/y", "").dir("d").end();
    let middle = Archive::default()
        .file("var/new", "1")
        .file("var/.wh..wh..opq", "")
        .file(".wh.tree", "")
        .file("tree", "now a file")
        .end();
    let upper = Archive::default().file("etc/.wh.gone", "").file("etc/back", "").file(".wh.d", "").end();
    unpacked(&[lower, middle, upper], |at| {
        let has = |path: &str| at.join(path).symlink_metadata().is_ok();
        assert!(!has("var/a") && has("var/new"));
        assert_eq!(std::fs::read_to_string(at.join("tree")).unwrap(), "now a file");
        assert!(!has("etc/gone") && has("etc/back") && !has("d") && !has("etc/.wh.gone"));
    })
    .unwrap();
}

#[test]
fn a_whiteout_follows_no_link_out_of_the_root() {
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("victim"), "x").unwrap();
    let path = outside.path().to_str().unwrap();
    let lower = Archive::default().symlink("out", path).symlink("up", "../../../../../..").end();
    let upper = Archive::default()
        .file("out/.wh.victim", "")
        .file(&format!("up/{path}/.wh.victim"), "")
        .file("out/.wh..wh..opq", "")
        .end();
    unpacked(&[lower, upper], |_| {}).unwrap();
    assert!(outside.path().join("victim").exists());
    for bad in [".wh.", ".wh..", ".wh..."] {
        let upper = Archive::default().file(bad, "").end();
        assert!(unpacked(&[Archive::default().end(), upper], |_| {}).is_err(), "{bad}");
    }
}

#[test]
fn hostile_entries_are_refused() {
    assert!(refusal(Archive::default().file("../../etc/cron.d/x", "")).contains(".."));
    assert!(refusal(Archive::default().pax(&[("path", "a/../../b")]).file("a", "")).contains(".."));
    assert!(refusal(Archive::default().entry(b'1', "x", "../../etc/shadow", b"")).contains(".."));
    assert!(refusal(Archive::default().entry(b'3', "etc/disk", "", b"")).contains("device"));
    assert!(refusal(Archive::default().entry(b'4', "devices/sda", "", b"")).contains("device"));
    assert!(refusal(Archive::default().symlink("a", "/").entry(b'3', "a/sda", "", b"")).contains("device"));
    assert!(refusal(Archive::default().entry(b'6', "../fifo", "", b"")).contains(".."));
}

#[test]
fn devices_below_dev_and_fifos_are_left_out_and_counted() {
    let directory = tempfile::tempdir().unwrap();
    let mut report = |_: Progress| {};
    let mut root = root_at(directory.path(), ImportLimits::default(), &mut report);
    let archive = Archive::default()
        .entry(b'3', "dev/null", "", b"")
        .entry(b'6', "run/x", "", b"")
        .dir("dev/pts")
        .end();
    apply(&mut root, &archive[..], Role::Whole).unwrap();
    assert_eq!((root.left_out, root.done.entries), (2, 4), "with the directory that is implied");
    assert!(!directory.path().join("dev/null").exists() && directory.path().join("dev/pts").exists());
}

#[test]
fn an_archive_without_end_is_ended() {
    let directory = tempfile::tempdir().unwrap();
    let mut report = |_: Progress| {};
    let limits = ImportLimits { entries: 10, bytes: 1000 };
    let mut root = root_at(directory.path(), limits, &mut report);
    // Global headers are no entries, and there may be any number of them.
    let one = Archive::default().entry(b'g', "g", "", b"18 comment=global\n").0;
    let endless = std::iter::repeat(one).flatten().take(1 << 20).collect::<Vec<_>>();
    let error = apply(&mut root, Allowance::new(limits).of(&endless[..]), Role::Whole).unwrap_err();
    assert!(matches!(error, ImageError::TooLarge { .. }), "{error}");
}
