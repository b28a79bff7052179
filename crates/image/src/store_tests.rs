use super::*;
use crate::record::ImageSource;
use crate::testing::{Archive, docker_save, sha256};

fn name(text: &str) -> ImageName {
    ImageName::new(text).unwrap()
}

struct Bench {
    _directory: tempfile::TempDir,
    at: PathBuf,
    store: ImageStore,
}

impl Bench {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path().to_owned();
        let store = ImageStore::of_state_dir(&at.join("state"));
        Self { _directory: directory, at, store }
    }

    fn import(&self, image: &str, archive: &[u8]) -> Result<(ImageRecord, Replaced), ImageError> {
        let file = self.at.join("archive");
        fs::write(&file, archive).unwrap();
        self.store.import(&name(image), &file, ImportLimits::default(), &mut |_| {})
    }

    fn roots(&self) -> usize {
        fs::read_dir(self.store.roots()).unwrap().count()
    }

    fn path(&self, image: &str) -> PathBuf {
        self.store.hold(&name(image)).unwrap().unwrap().path
    }
}

fn small() -> Vec<u8> {
    Archive::default().dir("bin").file("bin/sh", "a shell").end()
}

#[test]
fn a_tar_is_a_root_with_the_places_that_a_box_needs() {
    let bench = Bench::new();
    let hostile = Archive::default()
        .dir("./")
        .symlink("tmp", "/etc")
        .symlink("proc", "usr")
        .symlink("etc/resolv.conf", "../../../../etc/passwd")
        .file("dev", "a file")
        .file("etc/passwd", "root:x:0:0::/:/bin/sh\nnode:x:1000:1000::/:/bin/sh\n")
        .file("var/tmp/x", "")
        .symlink("home", "/")
        .end();
    let (record, replaced) = bench.import("a/b:c", &hostile).unwrap();
    assert_eq!((record.source, replaced), (ImageSource::Tar, Replaced::Nothing));
    assert_eq!(record.digest, sha256(&hostile), "that of the file as given");
    let root = bench.path("a/b:c");
    for place in ["proc", "dev", "tmp", "workspace", "home/box", "root", "mnt", "run", "etc"] {
        assert!(root.join(place).symlink_metadata().unwrap().is_dir(), "{place}");
    }
    assert!(root.join("etc/resolv.conf").symlink_metadata().unwrap().is_file());
    assert_eq!(fs::read_link(root.join("var/tmp")).unwrap(), Path::new("../tmp"));
    assert_eq!(root.join("tmp").metadata().unwrap().mode() & 0o7777, 0o1777);
    let passwd = fs::read_to_string(root.join("etc/passwd")).unwrap();
    assert!(passwd.contains("node:x:1000:") && !passwd.contains("box:x:1000") && passwd.contains("nobody"));
    assert_eq!(bench.store.list().unwrap().len(), 1);
}

#[test]
fn layers_of_docker_are_applied_in_order_packed_or_not() {
    let lower = Archive::default().file("bin/sh", "a shell").file("etc/gone", "").end();
    let upper = Archive::default().file("etc/.wh.gone", "").file("app/main", "new").end();
    let config = r#"{"Env":["PATH=/app","A=1"],"Cmd":["main"],"WorkingDir":"/app","User":"7"}"#;
    let plain = docker_save(&[lower, upper], config);
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packer.write_all(&plain).unwrap();
    let zstd = ruzstd::encoding::compress_to_vec(&plain[..], ruzstd::encoding::CompressionLevel::Fastest);
    for archive in [plain.clone(), packer.finish().unwrap(), zstd] {
        let bench = Bench::new();
        let (record, _) = bench.import("x", &archive).unwrap();
        assert_eq!((record.source, record.layers), (ImageSource::Docker, 2));
        assert_eq!(record.config.environment().collect::<Vec<_>>(), [("PATH", "/app"), ("A", "1")]);
        assert_eq!(
            (record.config.cmd, record.config.working_dir),
            (vec!["main".to_owned()], "/app".to_owned())
        );
        let root = bench.path("x");
        assert!(
            !root.join("etc/gone").exists() && root.join("app/main").exists() && root.join("bin/sh").exists()
        );
    }
}

#[test]
fn an_oci_layout_is_read_as_archive_and_as_directory() {
    let layer = {
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packer.write_all(&small()).unwrap();
        packer.finish().unwrap()
    };
    let config = format!(
        r#"{{"os":"linux","config":{{"Env":["A=1"]}},"rootfs":{{"diff_ids":[{:?}]}}}}"#,
        sha256(&small())
    );
    let manifest = format!(
        r#"{{"schemaVersion":2,"config":{{"digest":{:?}}},"layers":[{{"digest":{:?}}}]}}"#,
        sha256(config.as_bytes()),
        sha256(&layer)
    );
    let index =
        format!(r#"{{"schemaVersion":2,"manifests":[{{"digest":{:?}}}]}}"#, sha256(manifest.as_bytes()));
    let blob = |bytes: &[u8]| format!("blobs/sha256/{}", &sha256(bytes)[7..]);
    let archive = Archive::default()
        .file("oci-layout", r#"{"imageLayoutVersion":"1.0.0"}"#)
        .file("index.json", &index)
        .file(&blob(manifest.as_bytes()), &manifest)
        .file(&blob(config.as_bytes()), &config)
        .entry(b'0', &blob(&layer), "", &layer)
        .end();
    let bench = Bench::new();
    let (record, _) = bench.import("x", &archive).unwrap();
    assert_eq!(
        (record.source, record.digest.as_str()),
        (ImageSource::Oci, sha256(manifest.as_bytes()).as_str())
    );
    assert_eq!(fs::read_to_string(bench.path("x").join("bin/sh")).unwrap(), "a shell");
    let layout = bench.at.join("layout");
    fs::create_dir_all(layout.join("blobs/sha256")).unwrap();
    fs::write(layout.join("oci-layout"), "{}").unwrap();
    fs::write(layout.join("index.json"), &index).unwrap();
    for bytes in [manifest.as_bytes(), config.as_bytes(), &layer] {
        fs::write(layout.join(blob(bytes)), bytes).unwrap();
    }
    let (again, _) = bench.store.import(&name("y"), &layout, ImportLimits::default(), &mut |_| {}).unwrap();
    assert_eq!((again.digest, again.config), (record.digest, record.config));
    // A manifest that is not what the index says.
    fs::write(layout.join(blob(manifest.as_bytes())), manifest.replace("schema", "Schema")).unwrap();
    let error = bench.store.import(&name("y"), &layout, ImportLimits::default(), &mut |_| {}).unwrap_err();
    assert!(matches!(error, ImageError::Digest { .. }), "{error}");
}

#[test]
fn a_directory_is_copied_with_links_and_without_sockets() {
    let bench = Bench::new();
    let source = bench.at.join("source");
    fs::create_dir_all(source.join("bin")).unwrap();
    fs::write(source.join("bin/sh"), "a shell").unwrap();
    fs::hard_link(source.join("bin/sh"), source.join("bin/ash")).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", source.join("link")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(source.join("socket")).unwrap();
    let import = |image: &str| {
        bench.store.import(&name(image), &source, ImportLimits::default(), &mut |_| {}).unwrap().0
    };
    let record = import("x");
    assert_eq!((record.source, record.left_out), (ImageSource::Directory, 1));
    let root = bench.path("x");
    assert_eq!(root.join("bin/sh").metadata().unwrap().ino(), root.join("bin/ash").metadata().unwrap().ino());
    assert_eq!(fs::read_link(root.join("link")).unwrap(), Path::new("/etc/passwd"));
    assert_eq!(import("y").digest, record.digest, "the same tree has the same digest");
    fs::write(source.join("bin/sh"), "a shelL").unwrap();
    assert_ne!(import("y").digest, record.digest);
}

#[test]
fn what_fails_leaves_nothing() {
    let bench = Bench::new();
    let cut = Archive::default().dir("bin").file("bin/sh", "a shell").file("big", &"x".repeat(5000)).end();
    let wrong = docker_save(&[small()], "{}");
    let digest = sha256(&small());
    let wrong =
        String::from_utf8_lossy(&wrong).replace(&digest, &digest.replace(&digest[7..10], "000")).into_bytes();
    for archive in
        [&cut[..3000], b"no archive", b"", &wrong, &Archive::default().entry(b'3', "sda", "", b"").end()]
    {
        bench.import("x", archive).unwrap_err();
        assert_eq!((bench.roots(), bench.store.list().unwrap().len()), (0, 0));
    }
    let tight = ImportLimits { entries: 1, bytes: 1 << 20 };
    let file = bench.at.join("archive");
    fs::write(&file, small()).unwrap();
    let error = bench.store.import(&name("x"), &file, tight, &mut |_| {}).unwrap_err();
    assert!(matches!(error, ImageError::TooLarge { .. }), "{error}");
    assert_eq!(bench.roots(), 0);
}

#[test]
fn leftovers_go_and_what_is_being_made_stays() {
    let bench = Bench::new();
    bench.import("x", &small()).unwrap();
    // An import that was killed, and one that is under way.
    fs::create_dir_all(bench.store.roots().join("0".repeat(32)).join(FILES).join("bin")).unwrap();
    fs::write(bench.store.names().join("y.new"), "{").unwrap();
    let (_, _, under_way) = bench.store.new_root().unwrap();
    assert_eq!(bench.store.sweep().unwrap(), 1);
    assert_eq!(bench.roots(), 2);
    drop(under_way);
    assert_eq!(bench.store.sweep().unwrap(), 1, "and then that import died");
    assert_eq!((bench.roots(), bench.store.list().unwrap().len()), (1, 1));
    assert_eq!(fs::read_dir(bench.store.names()).unwrap().count(), 1);
}

#[test]
fn an_image_in_use_is_kept() {
    let bench = Bench::new();
    bench.import("x", &small()).unwrap();
    let held = bench.store.hold(&name("x")).unwrap().unwrap();
    let error = bench.store.remove(&name("x"), false).unwrap_err();
    assert!(matches!(error, ImageError::InUse { .. }) && error.to_string().contains("--force"));
    // Replaced meanwhile: the box keeps what it has, the next gets the new one.
    let (_, replaced) = bench.import("x", &Archive::default().file("bin/sh", "another").end()).unwrap();
    assert_eq!(replaced, Replaced::Earlier);
    assert_eq!(fs::read_to_string(held.path.join("bin/sh")).unwrap(), "a shell");
    assert_eq!(fs::read_to_string(bench.path("x").join("bin/sh")).unwrap(), "another");
    assert_eq!(bench.roots(), 2);
    let second = bench.store.hold(&name("x")).unwrap().unwrap();
    bench.store.remove(&name("x"), true).unwrap();
    assert!(bench.store.hold(&name("x")).unwrap().is_none());
    assert!(second.path.join("bin/sh").exists() && held.path.join("bin/sh").exists());
    drop((held, second));
    assert_eq!(bench.store.sweep().unwrap(), 2);
    assert!(matches!(bench.store.remove(&name("x"), true), Err(ImageError::NotFound { .. })));
}

#[test]
fn imports_of_one_name_at_once_leave_one_whole_image() {
    let bench = Bench::new();
    let archives: Vec<_> = (0..4)
        .map(|number| {
            let file = bench.at.join(format!("archive-{number}"));
            let mut archive = Archive::default();
            for at in 0..50 {
                archive = archive.file(&format!("files/{at}"), &number.to_string());
            }
            fs::write(&file, archive.end()).unwrap();
            file
        })
        .collect();
    std::thread::scope(|scope| {
        for file in &archives {
            scope.spawn(|| {
                bench.store.import(&name("x"), file, ImportLimits::default(), &mut |_| {}).unwrap()
            });
        }
    });
    bench.store.sweep().unwrap();
    assert_eq!((bench.roots(), bench.store.list().unwrap().len()), (1, 1));
    let root = bench.path("x");
    let all: std::collections::BTreeSet<_> =
        (0..50).map(|at| fs::read_to_string(root.join(format!("files/{at}"))).unwrap()).collect();
    assert_eq!(all.len(), 1, "of one import");
}

#[test]
fn a_stream_is_imported_like_a_file() {
    let bench = Bench::new();
    let limits = ImportLimits::default();
    let (record, _) = bench.store.import_stream(&name("x"), &mut &small()[..], limits, &mut |_| {}).unwrap();
    assert_eq!(record.digest, sha256(&small()));
    assert_eq!(fs::read_dir(&bench.store.directory).unwrap().count(), 3, "names, roots and the lock");
}

#[test]
fn progress_is_told_on_the_way() {
    let bench = Bench::new();
    let file = bench.at.join("archive");
    fs::write(&file, Archive::default().entry(b'0', "big", "", &vec![0; 20 << 20]).end()).unwrap();
    let mut told = Vec::new();
    bench
        .store
        .import(&name("x"), &file, ImportLimits::default(), &mut |progress| told.push(progress.bytes))
        .unwrap();
    assert!(told.len() >= 2 && told.is_sorted(), "{told:?}");
}

/// Padding behind the end mark is read, and is no file's: only the bound of the stream sees it.
#[test]
fn the_bound_of_the_stream_is_for_all_layers_together() {
    let bench = Bench::new();
    let limits = ImportLimits { entries: 64, bytes: 1 << 20 };
    let most = usize::try_from(limits.stream_bytes()).unwrap();
    let layer = |number: usize| {
        let mut layer = Archive::default().file(&format!("file-{number}"), "x").end();
        layer.resize(most * 2 / 5, 0);
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packer.write_all(&layer).unwrap();
        (sha256(&layer), packer.finish().unwrap())
    };
    for (count, fits) in [(2, true), (3, false)] {
        let layers: Vec<_> = (0..count).map(layer).collect();
        let ids: Vec<_> = layers.iter().map(|(id, _)| format!("{id:?}")).collect();
        let config = format!(r#"{{"rootfs":{{"diff_ids":[{}]}}}}"#, ids.join(","));
        let names: Vec<_> = layers.iter().map(|(id, _)| format!("{}/layer.tar", &id[7..])).collect();
        let config_name = format!("{}.json", "0".repeat(64));
        let manifest = format!(r#"[{{"Config":{config_name:?},"Layers":{names:?}}}]"#);
        let mut archive = Archive::default().file(&config_name, &config).file("manifest.json", &manifest);
        for (name, (_, packed)) in names.iter().zip(&layers) {
            archive = archive.entry(b'0', name, "", packed);
        }
        let file = bench.at.join("archive");
        fs::write(&file, archive.end()).unwrap();
        let imported = bench.store.import(&name("x"), &file, limits, &mut |_| {});
        match imported {
            Ok(_) => assert!(fits),
            Err(error) => assert!(!fits && matches!(error, ImageError::TooLarge { .. }), "{error}"),
        }
    }
}

#[test]
fn an_image_can_be_taken_into_use_at_every_moment_of_its_replacement() {
    let bench = Bench::new();
    bench.import("x", &small()).unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let holders: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut held = 0;
                    while !done.load(std::sync::atomic::Ordering::Relaxed) {
                        let image = bench.store.hold(&name("x")).unwrap().expect("it is always there");
                        assert_eq!(fs::read_to_string(image.path.join("bin/sh")).unwrap(), "a shell");
                        held += 1;
                    }
                    held
                })
            })
            .collect();
        for _ in 0..30 {
            bench.import("x", &small()).unwrap();
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(holders.into_iter().all(|holder| holder.join().unwrap() > 0));
    });
    bench.store.sweep().unwrap();
    assert_eq!(bench.roots(), 1);
}

#[test]
fn a_record_that_cannot_be_read_blocks_neither_sweeping_nor_removal() {
    let bench = Bench::new();
    let (record, _) = bench.import("x", &small()).unwrap();
    bench.import("y", &small()).unwrap();
    let path = bench.store.names().join(name("x").file_name());
    let leftover = || fs::create_dir_all(bench.store.roots().join("0".repeat(32)).join(FILES)).unwrap();
    // Of a format that is not ours, but its root can be told.
    fs::write(&path, format!(r#"{{"root":{:?}}}"#, record.root)).unwrap();
    leftover();
    assert_eq!((bench.store.sweep().unwrap(), bench.roots()), (1, 2));
    fs::write(&path, "damaged").unwrap();
    bench.store.remove(&name("x"), false).unwrap_err();
    assert!(bench.store.remove(&name("x"), true).unwrap().is_none());
    assert_eq!((bench.roots(), bench.store.list().unwrap().len()), (1, 1));
    assert!(bench.store.hold(&name("x")).unwrap().is_none());
}

#[test]
fn files_of_a_removed_image_go_when_its_last_box_has_ended() {
    let bench = Bench::new();
    bench.import("x", &small()).unwrap();
    let held = bench.store.hold(&name("x")).unwrap().unwrap();
    let id = held.id().to_owned();
    assert_eq!(bench.store.sweep_after(&name("x"), &id).unwrap(), 0);
    bench.store.remove(&name("x"), true).unwrap();
    assert_eq!(bench.store.sweep_after(&name("x"), &id).unwrap(), 0, "in use");
    drop(held);
    assert_eq!((bench.store.sweep_after(&name("x"), &id).unwrap(), bench.roots()), (1, 0));
}

#[test]
fn a_root_that_cannot_be_locked_is_an_error_and_no_endless_search() {
    let bench = Bench::new();
    fs::create_dir_all(bench.at.join("file")).unwrap();
    let missing = lock_root(&bench.at.join("missing"), FlockOperation::NonBlockingLockShared).unwrap();
    assert!(matches!(missing, Locked::Gone));
    let first = lock_root(&bench.at.join("file"), FlockOperation::NonBlockingLockExclusive).unwrap();
    assert!(matches!(first, Locked::Ours(_)));
    let second = lock_root(&bench.at.join("file"), FlockOperation::NonBlockingLockShared).unwrap();
    assert!(matches!(second, Locked::Others));
    fs::write(bench.at.join("plain"), "").unwrap();
    lock_root(&bench.at.join("plain"), FlockOperation::NonBlockingLockShared).unwrap_err();
}

/// Where a target ends and the next name begins is part of the digest.
#[test]
fn two_trees_that_differ_in_a_target_have_two_digests() {
    let bench = Bench::new();
    let digest = |target: &str, directory: &str| {
        let source = bench.at.join(format!("source-{target}"));
        fs::create_dir_all(source.join(directory)).unwrap();
        std::os::unix::fs::symlink(target, source.join("a")).unwrap();
        bench.store.import(&name("x"), &source, ImportLimits::default(), &mut |_| {}).unwrap().0.digest
    };
    assert_ne!(digest("x", "yb"), digest("xy", "b"));
}
