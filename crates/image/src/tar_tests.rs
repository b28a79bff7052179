use proptest::prelude::*;

use super::*;
use crate::testing::Archive;

fn entries(archive: &[u8]) -> Result<Vec<(Entry, Vec<u8>)>, ImageError> {
    let mut tar = Tar::new(archive);
    let mut found = Vec::new();
    while let Some(entry) = tar.next()? {
        let mut data = Vec::new();
        tar.read_to_end(&mut data).step(|| "reading")?;
        found.push((entry, data));
    }
    Ok(found)
}

#[test]
fn every_kind_of_entry_is_read_with_its_facts() {
    let archive = Archive::default()
        .dir("etc/")
        .entry_of(b'0', "etc/x", "", b"data", 0o4750, (10, 20))
        .symlink("lib", "usr/lib")
        .entry(b'1', "etc/y", "etc/x", b"")
        .entry(b'3', "dev/null", "", b"")
        .entry(b'6', "run/fifo", "", b"")
        .entry(b'0', "old-directory/", "", b"")
        .end();
    let found = entries(&archive).unwrap();
    let kinds: Vec<_> = found.iter().map(|(entry, _)| entry.kind).collect();
    use Kind::*;
    assert_eq!(kinds, [Directory, File, Symlink, Hardlink, Device, Fifo, Directory]);
    let (file, data) = &found[1];
    assert_eq!((file.mode, file.uid, file.gid, file.mtime), (0o4750, 10, 20, 1_000_000_000));
    assert_eq!((&data[..], &found[2].0.link[..]), (&b"data"[..], &b"usr/lib"[..]));
}

#[test]
fn long_names_and_large_numbers_come_in_every_dialect() {
    let long = "a/".repeat(100) + "name";
    let archive = Archive::default()
        .entry(b'L', "././@LongLink", "", format!("{long}\0").as_bytes())
        .file("cut", "gnu")
        .pax(&[
            ("path", &long),
            ("linkpath", "there"),
            ("uid", "3000000000"),
            ("mtime", "12.5"),
            ("SCHILY.xattr.user.x", "=\n"),
        ])
        .symlink("cut", "cut")
        .entry(b'g', "pax_global_header", "", b"18 comment=global\n")
        .file("plain", "x")
        .end();
    let found = entries(&archive).unwrap();
    assert_eq!((&found[0].0.path[..], &found[0].1[..]), (long.as_bytes(), &b"gnu"[..]));
    assert_eq!((&found[1].0.path[..], &found[1].0.link[..]), (long.as_bytes(), &b"there"[..]));
    assert_eq!((found[1].0.uid, found[1].0.mtime), (3_000_000_000, 12));
    assert_eq!(found[2].0.path, b"plain", "an extended header is for one entry");
    assert_eq!(number(b"\x80\0\0\0\0\0\0\0\0\0\x01\x02").unwrap(), 258);
    assert_eq!(number(b"\x80\0\0\0\0\0\x01\x02").unwrap(), 258);
    assert!(number(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xfe").is_err(), "negative");
    assert!(number(b"9\0").is_err());
}

#[test]
fn what_is_not_understood_or_cut_short_is_an_error() {
    let whole = Archive::default().file("a", &"x".repeat(600)).end();
    assert_eq!(entries(&whole).unwrap().len(), 1);
    for (cut, said) in
        [(512 + 300, "middle of a file"), (512 + 1024, "end mark"), (100, "end mark"), (0, "end mark")]
    {
        let error = entries(&whole[..cut]).unwrap_err().to_string();
        assert!(error.contains(said), "{cut}: {error}");
    }
    let mut damaged = whole.clone();
    damaged[0] = b'b';
    assert!(entries(&damaged).unwrap_err().to_string().contains("checksum"));
    for kind in [b'S', b'M', b'Z'] {
        assert!(matches!(
            entries(&Archive::default().entry(kind, "s", "", b"").end()),
            Err(ImageError::Refused { .. })
        ));
    }
    let sparse = Archive::default().pax(&[("GNU.sparse.major", "1")]).file("s", "x").end();
    assert!(entries(&sparse).unwrap_err().to_string().contains("sparse"));
    let dangling = Archive::default().pax(&[("path", "x")]).end();
    assert!(entries(&dangling).is_err());
}

#[test]
fn headers_that_claim_much_are_refused_before_they_are_read() {
    // A name of a gigabyte of zeros is a kilobyte in gzip: the size alone decides.
    let mut block = Archive::default().entry(b'L', "x", "", b"").0;
    block[124..136].copy_from_slice(b"07777777777\0");
    block[148..156].fill(b' ');
    let sum: u32 = block[..512].iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let error = Tar::new(block.chain(io::repeat(0))).next().unwrap_err();
    assert!(error.to_string().contains("extended header"), "{error}");
    for body in
        ["9999999 path=x\n", "5 path", "x path=y\n", "0 a=b\n", "3 =\n\n", "99999999999999999999 a=b\n"]
    {
        let archive = Archive::default().entry(b'x', "pax", "", body.as_bytes()).file("a", "").end();
        assert!(entries(&archive).is_err(), "{body}");
    }
}

proptest! {
    #[test]
    fn no_bytes_make_the_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..2048)) {
        let _ = entries(&bytes);
    }

    #[test]
    fn no_change_of_a_good_archive_makes_it_panic(
        changes in proptest::collection::vec((0_usize..3000, any::<u8>()), 1..8),
    ) {
        let mut archive = Archive::default().dir("a").pax(&[("path", "b")]).file("c", "data").symlink("d", "e").end();
        for (at, byte) in changes {
            let at = at % archive.len();
            archive[at] = byte;
            // With the right checksum, so that the rest is looked at.
            let block = at / 512 * 512;
            if archive[block + 257..block + 262] == *b"ustar" {
                archive[block + 148..block + 156].fill(b' ');
                let sum: u32 = archive[block..block + 512].iter().map(|byte| u32::from(*byte)).sum();
                archive[block + 148..block + 156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
            }
        }
        let _ = entries(&archive);
    }
}

#[test]
fn of_extended_headers_only_what_means_something_is_kept() {
    let value = "v".repeat(1000);
    let mut archive = Archive::default();
    for number in 0..500 {
        archive = archive.pax(&[(&format!("comment.{number}"), &value), ("uid", "7")]);
    }
    let mut global = Archive::default().pax(&[("gid", "8"), ("other", &value)]);
    global.0[156] = b'g';
    let sum: u32 =
        (0..512).map(|at| if (148..156).contains(&at) { 32 } else { u32::from(global.0[at]) }).sum();
    global.0[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    archive.0.extend_from_slice(&global.0);
    let archive = archive.file("x", "").end();
    let mut tar = Tar::new(&archive[..]);
    let entry = tar.next().unwrap().unwrap();
    assert_eq!((entry.uid, entry.gid), (7, 8));
    assert_eq!(tar.globals.keys().collect::<Vec<_>>(), [b"gid"]);
    assert!(tar.next().unwrap().is_none());
}

#[test]
fn a_path_that_no_call_would_take_is_refused() {
    for (length, fits) in [(4096, true), (4097, false)] {
        let long = "n".repeat(length);
        for archive in [
            Archive::default().pax(&[("path", &long)]).file("cut", ""),
            Archive::default().pax(&[("linkpath", &long)]).symlink("x", "cut"),
            Archive::default().entry(b'L', "long", "", format!("{long}\0").as_bytes()).file("cut", ""),
        ] {
            assert_eq!(entries(&archive.end()).is_ok(), fits, "{length}");
        }
    }
}
