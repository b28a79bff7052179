//! The store on a real directory: what it does, and each defect of the reference that it does not have.

use std::os::unix::fs::symlink;

use tempfile::TempDir;

use super::*;
use crate::zip::ZipWriter;

struct Bench {
    place: TempDir,
    store: Store,
}

impl Bench {
    fn new() -> Self {
        Self::with(Limits::default())
    }

    fn with(limits: Limits) -> Self {
        let place = tempfile::tempdir().unwrap();
        let store = Store::new(place.path().join("skills"), limits);
        Self { place, store }
    }

    fn path(&self, below: &str) -> PathBuf {
        self.place.path().join(below)
    }

    fn text(&self, below: &str) -> String {
        std::fs::read_to_string(self.path(below)).unwrap()
    }

    fn put(&self, below: &str, content: impl AsRef<[u8]>) {
        std::fs::create_dir_all(self.path(below).parent().unwrap()).unwrap();
        std::fs::write(self.path(below), content).unwrap();
    }

    fn create(&self, name: &str) -> Skill {
        self.store.create(&NewSkill { name: name.to_owned(), ..NewSkill::default() }, &[]).unwrap()
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = self.store.list().unwrap().into_iter().map(|skill| skill.name).collect();
        names.sort();
        names
    }

    fn import(&self, name: &str, from: &str) -> Result<Skill, SkillError> {
        let from = self.path(from).to_str().unwrap().to_owned();
        let new = NewSkill { name: name.to_owned(), package_root: from, ..NewSkill::default() };
        self.store.create(&new, &[self.path("ext")])
    }

    /// What is not finished is in nobody's listing.
    fn leftovers(&self) -> usize {
        std::fs::read_dir(self.path("skills/.sandcrate")).unwrap().count() - 1
    }
}

fn message<T: std::fmt::Debug>(result: Result<T, SkillError>) -> String {
    result.unwrap_err().to_string()
}

fn archive(files: &[(&str, &[u8])]) -> Archive {
    let mut zip = ZipWriter::default();
    for (name, content) in files {
        zip.file(name, content, name.ends_with(".sh")).unwrap();
    }
    Archive {
        bytes: zip.finish().unwrap(),
        filename: "x.zip".to_owned(),
        source_subdir: String::new(),
        target_suffix: "upload".to_owned(),
    }
}

fn select(paths: &[&str]) -> Selection {
    Selection { source_paths: paths.iter().map(|path| (*path).to_owned()).collect() }
}

#[test]
fn a_skill_is_made_found_changed_and_deleted() {
    let bench = Bench::new();
    assert_eq!(bench.store.list().unwrap(), []);
    let made = bench.create("s1");
    assert_eq!((made.display_name.as_str(), made.entry_file.as_str()), ("s1", "SKILL.md"));
    assert_eq!(bench.text("skills/s1/SKILL.md"), "---\nname: s1\n---\n\n");
    assert_eq!(bench.store.get("s1").unwrap().unwrap().package_root, made.package_root);
    assert_eq!(
        message(bench.store.create(&NewSkill { name: "s1".into(), ..NewSkill::default() }, &[])),
        "Skill with name \"s1\" already exists"
    );
    let change = SkillChange {
        description: Some("d1".to_owned()),
        instructions: Some("new".to_owned()),
        ..SkillChange::default()
    };
    let changed = bench.store.update("s1", &change).unwrap();
    assert_eq!((changed.description.as_str(), changed.instructions.as_str()), ("d1", "new"));
    let clear = SkillChange { description: Some(String::new()), ..SkillChange::default() };
    let cleared = bench.store.update("s1", &clear).unwrap();
    assert_eq!((cleared.description.as_str(), cleared.instructions.as_str()), ("", "new"));
    bench.store.delete("s1").unwrap();
    assert_eq!(bench.store.get("s1").unwrap(), None);
    assert_eq!(message(bench.store.delete("s1")), "Skill \"s1\" not found");
    assert_eq!(bench.leftovers(), 0);
}

#[test]
fn what_cannot_be_changed_is_told() {
    let bench = Bench::new();
    bench.create("s1");
    let rename = SkillChange { name: Some("other".to_owned()), ..SkillChange::default() };
    assert_eq!(message(bench.store.update("s1", &rename)), "Renaming skills is not supported");
    let moved = SkillChange { package_root: Some("/tmp".to_owned()), ..SkillChange::default() };
    assert!(message(bench.store.update("s1", &moved)).starts_with("Updating package_root is not supported"));
    assert_eq!(message(bench.store.update("zz", &SkillChange::default())), "Skill \"zz\" not found");
}

#[test]
fn k1_deleting_a_nested_skill_leaves_its_siblings() {
    let bench = Bench::new();
    for name in ["a", "b"] {
        bench.put(&format!("skills/bundle/deep/{name}/SKILL.md"), format!("---\nname: {name}\n---\n"));
    }
    bench.put("skills/bundle/README", "about");
    assert_eq!(bench.names(), ["a", "b"]);
    bench.store.delete("a").unwrap();
    assert_eq!(bench.names(), ["b"]);
    assert!(bench.path("skills/bundle/README").exists());
    bench.store.delete("b").unwrap();
    assert!(!bench.path("skills/bundle/deep").exists(), "empty directories go too");
    assert!(bench.path("skills/bundle/README").exists());
}

#[test]
fn k2_an_archive_cannot_bring_a_name_twice() {
    let bench = Bench::new();
    let zip = archive(&[("SKILL.md", b"---\nname: one\n---\n")]);
    bench.store.install(&zip, &Selection::default()).unwrap();
    let again = Archive { filename: "second.zip".to_owned(), ..zip };
    assert_eq!(
        message(bench.store.install(&again, &Selection::default())),
        "Skill with name \"one\" already exists"
    );
    let both =
        archive(&[("a/SKILL.md", b"---\nname: same\n---\n"), ("b/SKILL.md", b"---\nname: same\n---\n")]);
    let refused = bench.store.install(&both, &select(&["a", "b"]));
    assert_eq!(message(refused), "Skill with name \"same\" already exists");
    assert_eq!(bench.names(), ["one"]);
    assert_eq!(bench.leftovers(), 0);
}

#[test]
fn k3_import_create_and_update_keep_other_keys() {
    let bench = Bench::new();
    bench.put(
        "ext/pkg/SKILL.md",
        "---\nname: Orig Name\nversion: 1.10\ndescription: ext desc\n---\n\nExt body\n",
    );
    bench.put("ext/pkg/sub/tool.py", "print(1)\n");
    let skill = bench.import("s5", "ext/pkg").unwrap();
    assert_eq!((skill.name.as_str(), skill.display_name.as_str()), ("s5", "Orig Name"));
    assert_eq!(
        bench.text("skills/s5/SKILL.md"),
        "---\nname: s5\nversion: 1.10\ndescription: ext desc\ndisplay_name: Orig Name\n---\n\nExt body\n"
    );
    assert_eq!(bench.text("skills/s5/sub/tool.py"), "print(1)\n");
    let change = SkillChange { description: Some("new".to_owned()), ..SkillChange::default() };
    bench.store.update("s5", &change).unwrap();
    assert!(bench.text("skills/s5/SKILL.md").contains("\nversion: 1.10\ndescription: new\n"));
}

#[test]
fn k4_a_failed_import_leaves_nothing_and_can_be_tried_again() {
    let bench = Bench::new();
    bench.put("ext/empty/secret.txt", "TOPSECRET");
    bench.put("ext/pkg/SKILL.md", "x");
    let refused = message(bench.import("s6", "ext/empty"));
    assert!(refused.starts_with("No SKILL.md found in ") && refused.ends_with("/skills/s6"), "{refused}");
    assert!(!bench.path("skills/s6").exists());
    bench.put("ext/bad/SKILL.md", "---\nname: [\n---\n");
    bench.import("s6", "ext/bad").unwrap_err();
    assert!(!bench.path("skills/s6").exists());
    bench.import("s6", "ext/pkg").unwrap();
    assert_eq!(bench.leftovers(), 0);
}

#[test]
fn k5_an_update_writes_the_entry_file_that_is_there() {
    let bench = Bench::new();
    bench.put("skills/lower/skill.md", "---\nname: lower\n---\nold");
    let change = SkillChange { instructions: Some("new".to_owned()), ..SkillChange::default() };
    let skill = bench.store.update("lower", &change).unwrap();
    assert_eq!((skill.entry_file.as_str(), skill.instructions.as_str()), ("skill.md", "new"));
    assert!(!bench.path("skills/lower/SKILL.md").exists());
}

#[test]
fn k6_bytes_come_back_as_they_are() {
    let bench = Bench::new();
    bench.create("s");
    bench.put("skills/s/crlf.txt", "a\r\nb\rc\n");
    let read = bench.store.read_file("s", "crlf.txt").unwrap();
    assert_eq!(read.bytes, b"a\r\nb\rc\n");
    bench.store.write_file("s", "crlf.txt", &read.bytes, Some(&read.tag)).unwrap();
    assert_eq!(bench.text("skills/s/crlf.txt"), "a\r\nb\rc\n");
    bench.put("skills/w/SKILL.md", "---\r\nname: w\r\nx: 1\r\n---\r\nbody\r\n");
    assert_eq!(bench.store.get("w").unwrap().unwrap().instructions, "body\r\n");
    let change = SkillChange { description: Some("d".to_owned()), ..SkillChange::default() };
    bench.store.update("w", &change).unwrap();
    assert_eq!(
        bench.text("skills/w/SKILL.md"),
        "---\r\nname: w\r\nx: 1\r\ndescription: d\r\n---\r\nbody\r\n"
    );
}

#[test]
fn k7_truncated_is_true_only_when_something_is_left_out() {
    let bench = Bench::new();
    bench.create("s");
    bench.put("skills/s/sub/f", "1");
    bench.put("skills/s/.hidden", "h");
    let list = |max_entries, include_hidden| {
        let request = ListRequest { max_entries, include_hidden, ..ListRequest::default() };
        let listing = bench.store.list_files("s", &request).unwrap();
        (listing.entries.iter().map(|entry| entry.path.clone()).collect::<Vec<_>>(), listing.truncated)
    };
    assert_eq!(list(2, false), (vec!["SKILL.md".to_owned(), "sub".to_owned()], false));
    assert_eq!(list(1, false), (vec!["SKILL.md".to_owned()], true));
    assert_eq!(list(0, false), (vec![], true));
    assert_eq!(list(200, true).0, [".hidden", "SKILL.md", "sub"]);
}

#[test]
fn k8_two_writers_do_not_lose_each_other_s_work() {
    let bench = Bench::new();
    bench.create("s");
    let read = bench.store.read_file("s", "SKILL.md").unwrap();
    bench.store.write_file("s", "SKILL.md", b"first", Some(&read.tag)).unwrap();
    let late = bench.store.write_file("s", "SKILL.md", b"second", Some(&read.tag));
    assert_eq!(message(late), "Skill file has changed since it was read: SKILL.md");
    assert_eq!(bench.text("skills/s/SKILL.md"), "first");
    std::thread::scope(|scope| {
        for number in 0..8 {
            let store = &bench.store;
            scope.spawn(move || {
                let name = format!("n{}", number % 2);
                // One of each name is made, whoever comes first.
                let _ = store.create(&NewSkill { name, ..NewSkill::default() }, &[]);
                let key = format!("d{number}");
                let change = SkillChange { description: Some(key), ..SkillChange::default() };
                store.update("s", &change).unwrap();
            });
        }
    });
    assert_eq!(bench.names(), ["n0", "n1", "s"]);
    assert_eq!(bench.leftovers(), 0);
}

#[test]
fn k9_a_preview_says_what_an_install_will_make() {
    let bench = Bench::new();
    let zip = archive(&[("SKILL.md", b"no front matter"), ("run.sh", b"#!/bin/sh\n")]);
    let seen = bench.store.preview(&zip).unwrap();
    assert_eq!((seen[0].skill.name.as_str(), seen[0].source_path.as_str()), ("x-upload", ""));
    assert!(!bench.path("skills").exists(), "a look writes nothing");
    let made = bench.store.install(&zip, &Selection::default()).unwrap();
    assert_eq!(made[0].name, seen[0].skill.name);
    assert!(made[0].package_root.ends_with("/skills/x-upload"));
    let mode =
        std::os::unix::fs::MetadataExt::mode(&bench.path("skills/x-upload/run.sh").metadata().unwrap());
    assert_eq!(mode & 0o777, 0o755, "what can be run stays so");
}

#[test]
fn k10_nothing_is_read_again_while_nothing_changes() {
    let bench = Bench::new();
    for number in 0..50 {
        bench.put(&format!("skills/s{number}/SKILL.md"), format!("---\nname: s{number}\n---\n"));
    }
    assert_eq!(bench.names().len(), 50);
    // Stamps have to age before they are trusted.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(5);
    let index = loop {
        bench.store.list().unwrap();
        let index = bench.store.index.lock().unwrap().clone().unwrap();
        bench.store.list().unwrap();
        if Arc::ptr_eq(&index, bench.store.index.lock().unwrap().as_ref().unwrap()) {
            break index;
        }
        assert!(std::time::Instant::now() < deadline, "the index is never kept");
        std::thread::sleep(std::time::Duration::from_millis(10));
    };
    assert!(bench.store.get("s7").unwrap().is_some());
    assert!(Arc::ptr_eq(&index, bench.store.index.lock().unwrap().as_ref().unwrap()));
    // Whatever changes on disk, by whomever, is seen at once.
    bench.put("skills/s7/SKILL.md", "---\nname: other\n---\n");
    assert!(bench.store.get("other").unwrap().is_some() && bench.store.get("s7").unwrap().is_none());
    bench.put("skills/new/deep/SKILL.md", "---\nname: fresh\n---\n");
    assert!(bench.store.get("fresh").unwrap().is_some());
    std::fs::remove_dir_all(bench.path("skills/s8")).unwrap();
    assert!(bench.store.get("s8").unwrap().is_none());
}

#[test]
fn s8_an_install_cannot_leave_the_root() {
    let bench = Bench::new();
    let mut zip = archive(&[("SKILL.md", b"x")]);
    for suffix in ["../../../esc", "../../esc", "a/b"] {
        zip.target_suffix = suffix.to_owned();
        assert!(message(bench.store.install(&zip, &Selection::default())).starts_with("target_suffix"));
        assert!(message(bench.store.preview(&zip)).starts_with("target_suffix"));
    }
    assert!(!bench.path("esc").exists() && !bench.path("skills").exists());
}

#[test]
fn s9_ap_25_only_the_skill_roots_can_be_imported_from_or_scanned() {
    let bench = Bench::new();
    bench.put("elsewhere/SKILL.md", "x");
    bench.put("ext/pkg/SKILL.md", "---\nname: p\n---\n");
    symlink(bench.path("elsewhere"), bench.path("ext/link")).unwrap();
    let roots = [bench.path("ext")];
    let scan = |path: &str| bench.store.scan(path, &roots);
    let elsewhere = bench.path("elsewhere");
    let climbing = bench.path("ext/../elsewhere");
    for bad in ["/root", "/etc", "/nope", "/", elsewhere.to_str().unwrap(), climbing.to_str().unwrap()] {
        assert!(message(scan(bad)).contains("is outside the skill roots"), "{bad}");
        let new = NewSkill { name: "steal".to_owned(), package_root: bad.to_owned(), ..NewSkill::default() };
        assert!(message(bench.store.create(&new, &roots)).contains("is outside the skill roots"), "{bad}");
    }
    assert!(message(scan(bench.path("ext/link").to_str().unwrap())).contains("is outside"));
    assert!(message(scan("relative")).contains("must be absolute"));
    assert!(
        message(scan(bench.path("ext/nope").to_str().unwrap())).starts_with("Directory does not exist: ")
    );
    assert_eq!(scan(bench.path("ext").to_str().unwrap()).unwrap().name, "p");
    assert!(!bench.path("skills").exists());
}

#[test]
fn s9_a_link_in_an_import_does_not_bring_in_what_it_leads_to() {
    let bench = Bench::new();
    bench.put("ext/sl/SKILL.md", "x");
    symlink("/etc/hostname", bench.path("ext/sl/h")).unwrap();
    assert!(message(bench.import("sl", "ext/sl")).contains("symbolic link that leads out of it: h"));
    assert!(!bench.path("skills/sl").exists());
}

#[test]
fn s9_a_plain_create_does_not_take_over_a_directory() {
    let bench = Bench::new();
    bench.put("skills/steal/secret.txt", "TOPSECRET");
    let made = bench.store.create(&NewSkill { name: "steal".into(), ..NewSkill::default() }, &[]);
    assert!(message(made).starts_with("Skill directory already exists: "));
}

#[test]
fn s15_files_and_archives_are_bounded() {
    let limits = Limits { file_bytes: 100, package_bytes: 1000, package_entries: 5, ..Limits::default() };
    let bench = Bench::with(limits);
    bench.create("s");
    assert!(message(bench.store.write_file("s", "f", &[0; 101], None)).contains("100 bytes"));
    bench.put("skills/s/big", [0; 101]);
    assert!(message(bench.store.read_file("s", "big")).contains("100 bytes"));
    let large = archive(&[("SKILL.md", b"x"), ("f", &[0; 1000])]);
    assert!(message(bench.store.install(&large, &Selection::default())).contains("1000 bytes"));
    let many: Vec<String> = (0..9).map(|number| format!("f{number}")).collect();
    let many: Vec<(&str, &[u8])> = many.iter().map(|name| (name.as_str(), b"".as_slice())).collect();
    assert!(message(bench.store.install(&archive(&many), &Selection::default())).contains("5 entries"));
    bench.put("skills/s/more", [0; 900]);
    assert!(message(bench.store.export("s")).contains("1000 bytes"));
}

#[test]
fn s15_the_number_of_skills_is_bounded_and_many_are_looked_at_quickly() {
    let bench = Bench::new();
    let names: Vec<String> =
        (0..crate::limits::MAX_PACKAGES).map(|number| format!("s{number}/SKILL.md")).collect();
    let mut files: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), b"x".as_slice())).collect();
    let began = std::time::Instant::now();
    assert_eq!(bench.store.preview(&archive(&files)).unwrap().len(), names.len());
    files.push(("more/SKILL.md", b"x"));
    assert!(message(bench.store.preview(&archive(&files))).contains("2000 skills"));
    assert!(began.elapsed() < std::time::Duration::from_secs(5));
    for name in &names {
        bench.put(&format!("skills/{name}"), "x");
    }
    bench.put("skills/zz/SKILL.md", "x");
    assert_eq!(bench.store.list().unwrap().len(), names.len(), "those behind are left out");
    let one_more = bench.store.create(&NewSkill { name: "new".into(), ..NewSkill::default() }, &[]);
    assert!(message(one_more).contains("the number of skills exceeds the limit of 2000"));
    let one_more = bench.store.install(&archive(&[("SKILL.md", b"x")]), &Selection::default());
    assert!(message(one_more).contains("the number of skills exceeds the limit of 2000"));
}

#[test]
fn s17_a_link_says_nothing_of_what_is_outside() {
    let bench = Bench::new();
    bench.create("s");
    bench.put("skills/s/file", "1234");
    symlink("/etc/hostname", bench.path("skills/s/out")).unwrap();
    symlink("/etc", bench.path("skills/s/outdir")).unwrap();
    symlink("file", bench.path("skills/s/in")).unwrap();
    let listing = bench.store.list_files("s", &ListRequest::default()).unwrap();
    let facts: Vec<_> =
        listing.entries.iter().map(|entry| (entry.name.as_str(), entry.is_dir, entry.size)).collect();
    assert!(facts.contains(&("out", false, None)) && facts.contains(&("outdir", false, None)), "{facts:?}");
    assert!(facts.contains(&("in", false, Some(4))), "{facts:?}");
    let outside = "path must stay within the skill package root";
    assert_eq!(message(bench.store.read_file("s", "out")), outside);
    assert_eq!(message(bench.store.read_file("s", "outdir/hostname")), outside);
    assert_eq!(message(bench.store.write_file("s", "out", b"x", None)), outside);
    assert_eq!(message(bench.store.write_file("s", "outdir/x", b"x", None)), outside);
    let request = ListRequest { path: "outdir".to_owned(), ..ListRequest::default() };
    assert_eq!(message(bench.store.list_files("s", &request)), outside);
}

/// AP-21: a package that a box has mounted may change while it is looked at; links at its own place are refused.
#[test]
fn a_package_that_became_a_link_is_no_package() {
    let bench = Bench::new();
    bench.create("s");
    bench.put("elsewhere/SKILL.md", "---\nname: s\n---\n");
    std::fs::remove_dir_all(bench.path("skills/s")).unwrap();
    symlink(bench.path("elsewhere"), bench.path("skills/s")).unwrap();
    assert_eq!(bench.names(), [""; 0]);
    assert_eq!(message(bench.store.read_file("s", "SKILL.md")), "Skill \"s\" not found");
}

#[test]
fn files_are_read_and_written_in_their_package() {
    let bench = Bench::new();
    bench.create("s");
    let written = bench.store.write_file("s", "new/dir/f.txt", "héllo".as_bytes(), None).unwrap();
    assert_eq!((written.path.as_str(), written.bytes_written, written.created), ("new/dir/f.txt", 6, true));
    assert!(!bench.store.write_file("s", "new/dir/f.txt", b"", None).unwrap().created);
    assert_eq!(message(bench.store.read_file("s", "nope")), "Skill file not found: nope");
    assert_eq!(message(bench.store.read_file("s", "new")), "Skill file not found: new");
    assert_eq!(message(bench.store.write_file("s", "new", b"x", None)), "Is a directory: new");
    assert_eq!(
        message(bench.store.write_file("s", "SKILL.md/x", b"x", None)),
        "Skill file not found: SKILL.md/x"
    );
    let root = bench.store.write_file("s", ".", b"x", None);
    assert_eq!(message(root), "path must stay within the skill package root");
    let request = ListRequest { path: "nope".to_owned(), ..ListRequest::default() };
    assert_eq!(message(bench.store.list_files("s", &request)), "Skill directory not found: nope");
    let broken = bench.store.write_file("s", "SKILL.md", b"---\nname: [\n---\n", None);
    assert!(message(broken).contains("not YAML"), "a skill stays readable");
}

#[test]
fn packages_are_chosen_from_an_archive() {
    let bench = Bench::new();
    let mut zip = archive(&[
        ("repo/skills/one/SKILL.md", b"---\nname: one\n---\n1"),
        ("repo/skills/two/SKILL.md", b"---\nname: two\n---\n2"),
        ("repo/skills/two/inner/SKILL.md", b"part of two"),
        ("repo/README", b"x"),
    ]);
    zip.filename = "repo.zip".to_owned();
    let paths: Vec<_> = bench.store.preview(&zip).unwrap().into_iter().map(|seen| seen.source_path).collect();
    assert_eq!(paths, ["skills/one", "skills/two"]);
    let several = message(bench.store.install(&zip, &Selection::default()));
    assert_eq!(
        several,
        "Multiple skills found. Please choose one or more source_paths: skills/one, skills/two"
    );
    let unknown = message(bench.store.install(&zip, &select(&["x"])));
    assert_eq!(unknown, "Invalid source_path \"x\". Available: skills/one, skills/two");
    let made = bench.store.install(&zip, &select(&["skills/one", "/skills/two/"])).unwrap();
    let roots: Vec<_> = made.iter().map(|skill| skill.package_root.rsplit('/').next().unwrap()).collect();
    assert_eq!(roots, ["repo-one-upload", "repo-two-upload"]);
    assert!(bench.path("skills/repo-two-upload/inner/SKILL.md").exists());
    zip.source_subdir = "/skills/one/".to_owned();
    assert_eq!(bench.store.preview(&zip).unwrap()[0].source_path, "");
    for (subdir, said) in
        [("nope", "does not exist in the uploaded archive: nope"), ("../x", "must stay within")]
    {
        zip.source_subdir = subdir.to_owned();
        assert!(message(bench.store.preview(&zip)).contains(said));
    }
    let exported = Archive {
        bytes: bench.store.export("two").unwrap(),
        filename: "again.zip".to_owned(),
        source_subdir: String::new(),
        target_suffix: String::new(),
    };
    bench.store.delete("two").unwrap();
    assert_eq!(bench.store.install(&exported, &Selection::default()).unwrap()[0].name, "two");
    assert!(bench.path("skills/again/inner/SKILL.md").exists(), "an export can be installed");
}

#[test]
fn the_paths_of_a_selection_are_bounded_and_count_once() {
    let bench = Bench::new();
    let zip = archive(&[("a/SKILL.md", b"---\nname: a\n---\n"), ("b/SKILL.md", b"---\nname: b\n---\n")]);
    let many: Vec<String> = (0..=crate::limits::MAX_PACKAGES).map(|number| format!("p{number}")).collect();
    let refused = bench.store.install(&zip, &Selection { source_paths: many });
    assert!(message(refused).contains("source_paths exceeds the limit of 2000 paths"));
    let unknown = message(bench.store.install(&zip, &select(&["b", "y", "x"])));
    assert_eq!(unknown, "Invalid source_path \"y\". Available: a, b");
    let made = bench.store.install(&zip, &select(&["b", "/a/", "b/", "a"])).unwrap();
    assert_eq!(made.iter().map(|skill| skill.name.as_str()).collect::<Vec<_>>(), ["b", "a"]);
}

#[test]
fn one_of_several_that_cannot_be_placed_takes_the_others_back() {
    let bench = Bench::new();
    let zip = archive(&[("a/SKILL.md", b"---\nname: a\n---\n"), ("b/SKILL.md", b"---\nname: b\n---\n")]);
    bench.put("skills/x-b-upload/file", "mine");
    let refused = message(bench.store.install(&zip, &select(&["a", "b"])));
    assert!(refused.starts_with("Skill directory already exists: ") && refused.ends_with("x-b-upload"));
    assert_eq!(bench.names(), [""; 0]);
    assert_eq!(bench.leftovers(), 0);
}

#[test]
fn unreadable_packages_are_left_out_and_the_search_has_a_depth() {
    let bench = Bench::new();
    bench.put("skills/bad/SKILL.md", "---\nname: [\n---\n");
    bench.put("skills/binary/SKILL.md", [0xff, 0xfe]);
    bench.put("skills/evil/SKILL.md", "---\nname: ../../etc\n---\n");
    bench.put("skills/1/2/3/4/5/6/SKILL.md", "---\nname: deep\n---\n");
    bench.put("skills/1/2/3/4/5/x/7/SKILL.md", "---\nname: deeper\n---\n");
    bench.put("skills/tenants/t/s/SKILL.md", "---\nname: tenant\n---\n");
    assert_eq!(bench.names(), ["deep"]);
    bench.put("skills/.sandcrate/x/SKILL.md", "---\nname: unfinished\n---\n");
    assert_eq!(bench.names(), ["deep"]);
    bench.create("s");
    assert_eq!(bench.leftovers(), 0, "what a dead writer left is removed");
}

#[test]
fn a_package_below_the_root_is_taken_over_in_place() {
    let bench = Bench::new();
    bench.put("skills/man/SKILL.md", "no frontmatter\n");
    let skill = bench.import("renamed", "skills/man").unwrap();
    assert_eq!((skill.name.as_str(), skill.display_name.as_str()), ("renamed", "man"));
    assert_eq!(skill.instructions, "no frontmatter\n");
    assert!(skill.package_root.ends_with("/skills/man"));
    let private = bench.import("p", "skills/.sandcrate");
    assert!(message(private).contains("is outside the skill roots"));
}

/// A box that has one directory mounted for writing cannot make us hold what it likes.
#[test]
fn what_a_box_writes_is_held_in_memory_only_up_to_a_bound() {
    let bench = Bench::new();
    bench.create("neighbour");
    let make = |from: usize, to: usize| {
        for number in from..to {
            let dir = bench.path(&format!("skills/mine/{number:05}"));
            std::fs::create_dir_all(&dir).unwrap();
            let file = std::fs::File::create(dir.join("SKILL.md")).unwrap();
            file.set_len(1 << 20).unwrap();
        }
    };
    let held = || {
        let skills = bench.store.list().unwrap();
        assert!(skills.iter().any(|skill| skill.name == "neighbour"));
        skills.iter().map(|skill| skill.text_bytes()).sum::<usize>()
    };
    make(100, 120);
    assert!(held() <= crate::limits::PLACE_TEXT_BYTES + 100);
    // Known ones count as well as new ones that come before them.
    std::thread::sleep(std::time::Duration::from_millis(250));
    held();
    make(80, 100);
    assert!(held() <= crate::limits::PLACE_TEXT_BYTES + 100, "{}", held());
    make(120, 15_000);
    assert!(held() <= 100, "a directory with too many is left out");
}

#[test]
fn a_skill_that_has_not_changed_is_shared_by_indexes() {
    let bench = Bench::new();
    bench.create("one");
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(5);
    loop {
        bench.store.list().unwrap();
        let before = bench.store.index.lock().unwrap().clone().unwrap();
        std::fs::create_dir_all(bench.path("skills/other")).unwrap();
        std::fs::remove_dir(bench.path("skills/other")).unwrap();
        bench.store.list().unwrap();
        let after = bench.store.index.lock().unwrap().clone().unwrap();
        assert!(!Arc::ptr_eq(&before, &after));
        if Arc::ptr_eq(&before.skills()[0], &after.skills()[0]) {
            break;
        }
        assert!(std::time::Instant::now() < deadline, "each index has its own copy");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

#[test]
fn a_directory_with_too_much_in_it_hides_only_itself() {
    let bench = Bench::new();
    bench.create("aa");
    bench.create("zz");
    for number in 0..=crate::limits::PLACE_DIRECTORIES {
        std::fs::create_dir_all(bench.path(&format!("skills/mine/{}/{number}", number % 50))).unwrap();
    }
    assert_eq!(bench.names(), ["aa", "zz"]);
    bench.store.delete("aa").unwrap();
    assert_eq!(bench.names(), ["zz"]);
    // It is seen again once there is less.
    std::fs::remove_dir_all(bench.path("skills/mine/7")).unwrap();
    std::fs::remove_dir_all(bench.path("skills/mine/9")).unwrap();
    bench.put("skills/mine/1/1/SKILL.md", "---\nname: small\n---\n");
    assert_eq!(bench.names(), ["small", "zz"]);
    for number in 0..100 {
        std::fs::create_dir_all(bench.path(&format!("skills/mine/8/more{number}"))).unwrap();
    }
    assert_eq!(bench.names(), ["zz"]);
    assert_eq!(message(bench.store.delete("nope")), "Skill \"nope\" not found");
    bench.store.delete("mine").unwrap();
    assert!(!bench.path("skills/mine").exists());
    let scan = bench.store.scan(bench.path("skills").to_str().unwrap(), &[]);
    assert_eq!(scan.unwrap().name, "zz");
}

#[test]
fn a_box_cannot_take_over_another_skill_s_name() {
    let bench = Bench::new();
    bench.create("pdf");
    bench.put("skills/bundle-upload/SKILL.md", "---\nname: bundle\n---\n");
    bench.create("mine");
    bench.put("skills/zz/bundle/SKILL.md", "---\nname: bundle\n---\n");
    bench.put("skills/mine/SKILL.md", "---\nname: pdf\n---\nnewer, and another's");
    for name in ["pdf", "bundle"] {
        let held = bench.store.get(name).unwrap().unwrap();
        assert!(!held.package_root.contains("/mine") && !held.package_root.contains("/zz"), "{held:?}");
    }
    assert_eq!(bench.names(), ["bundle", "pdf"], "a name is listed once");
    bench.put("skills/mine/SKILL.md", "---\nname: mine\n---\n");
    for path in ["SKILL.md", "skill.md"] {
        let taken = bench.store.write_file("mine", path, b"---\nname: pdf\n---\n", None).unwrap_err();
        assert_eq!(taken.kind(), sandcrate_protocol::ErrorKind::SkillConflict);
        assert_eq!(taken.to_string(), "Skill with name \"pdf\" already exists");
    }
    bench.store.write_file("mine", "SKILL.md", b"---\nname: free\n---\n", None).unwrap();
    bench.store.write_file("free", "SKILL.md", b"no head: named by its directory", None).unwrap();
    bench.store.write_file("mine", "sub/SKILL.md", b"---\nname: pdf\n---\n", None).unwrap();
    assert_eq!(bench.names(), ["bundle", "mine", "pdf"]);
}

/// A parent that is swapped for a link between the look and the opening leads nowhere.
#[test]
fn an_admitted_directory_is_opened_without_links() {
    let bench = Bench::new();
    bench.put("secret/pkg/SKILL.md", "---\nname: secret\n---\n");
    bench.put("ext/parent/pkg/SKILL.md", "---\nname: mine\n---\n");
    let root = bench.path("ext").canonicalize().unwrap();
    let path = root.join("parent/pkg");
    let admitted = bench.store.admit(path.to_str().unwrap(), std::slice::from_ref(&root)).unwrap();
    std::fs::rename(bench.path("ext/parent"), bench.path("ext/away")).unwrap();
    symlink(bench.path("secret"), bench.path("ext/parent")).unwrap();
    let text = package::read_entry(&admitted.dir, "SKILL.md").unwrap().0;
    assert!(text.contains("mine"), "what was admitted is what is read");
    assert!(matches!(open_below(&root, &path), Err(SkillError::NoDirectory { .. })));
}

#[test]
fn the_private_directory_is_no_link() {
    let bench = Bench::new();
    bench.put("skills/victim/SKILL.md", "---\nname: victim\n---\n");
    bench.put("skills/victim/file", "x");
    symlink("victim", bench.path("skills/.sandcrate")).unwrap();
    let refused = bench.store.create(&NewSkill { name: "new".into(), ..NewSkill::default() }, &[]);
    assert!(message(refused).starts_with("locking "));
    assert!(bench.path("skills/victim/file").exists());
}
