//! `sandcrate skill` against a server, and a skill inside a box.

use std::os::unix::fs::symlink;
use std::path::Path;

use crate::client::Server;
use crate::skip::{Feature, skip_without};

fn package(dir: &Path, name: &str, text: &str) -> std::path::PathBuf {
    let package = dir.join(name);
    std::fs::create_dir_all(package.join("scripts")).unwrap();
    std::fs::write(package.join("SKILL.md"), text).unwrap();
    std::fs::write(package.join("scripts/run.sh"), "echo from the skill\n").unwrap();
    package
}

#[test]
fn a_skill_is_added_listed_shown_edited_exported_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let source = package(
        dir.path(),
        "pdf",
        "---\nname: pdf\nversion: 2\ndescription: Reads PDF files\n---\n\nUse it.\n",
    );
    let server = Server::start();
    assert_eq!(server.run(&["skill", "add", source.to_str().unwrap()]).ok(), "pdf\n");
    let table = server.run(&["skill", "ls"]).ok();
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["NAME", "CHANGED", "DESCRIPTION"]);
    assert_eq!((rows[1][0], rows[1][2]), ("pdf", "Reads"));
    assert_eq!(server.run(&["skill", "ls", "-q"]).ok(), "pdf\n");
    let shown = server.run(&["skill", "show", "pdf"]).ok();
    for words in ["description Reads PDF files", "scripts/", "instructions\nUse it.\n"] {
        assert!(shown.contains(words), "`{words}` is not in {shown}");
    }
    let again = server.run(&["skill", "add", source.to_str().unwrap()]);
    assert_eq!(again.code, 125);
    assert!(again.stderr.contains("skill_conflict"), "{again:?}");

    server.run(&["skill", "edit", "pdf", "--description", "new: text"]).ok();
    let document = server.run(&["skill", "show", "pdf", "-o", "json"]).json();
    assert_eq!(
        (&document["description"], &document["instructions"]),
        (&"new: text".into(), &"Use it.\n".into())
    );
    let editor = dir.path().join("editor");
    std::fs::write(&editor, "#!/bin/sh\ngrep -q 'version: 2' \"$1\" && echo 'And more.' >> \"$1\"\n")
        .unwrap();
    std::fs::set_permissions(&editor, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    server.call(&["skill", "edit", "pdf"]).env("VISUAL", "").env("EDITOR", &editor).run().ok();
    let document = server.run(&["skill", "show", "pdf", "-o", "json"]).json();
    assert_eq!(document["instructions"], "Use it.\nAnd more.\n", "the editor saw the other keys too");

    let export = |args: &[&str]| {
        let all: Vec<&str> = ["skill", "export", "pdf"].iter().chain(args).copied().collect();
        server.call(&all).dir(dir.path()).run()
    };
    assert_eq!(export(&[]).ok(), "pdf.zip\n");
    let there = export(&[]);
    assert!(there.code == 125 && there.stderr.contains("--force"), "{there:?}");
    export(&["--force"]).ok();
    let output = server.run(&["skill", "rm", "none", "pdf"]);
    assert_eq!((output.code, output.stdout.as_str()), (125, "pdf\n"), "{output:?}");
    assert!(output.stderr.contains("skill_not_found"), "{output:?}");
    assert_eq!(server.run(&["skill", "ls", "-q"]).ok(), "");
    let zip = dir.path().join("pdf.zip");
    let seen = server.run(&["skill", "add", zip.to_str().unwrap(), "--preview"]).ok();
    assert!(seen.contains("new: text") && server.run(&["skill", "ls", "-q"]).ok().is_empty(), "{seen}");
    assert_eq!(server.run(&["skill", "add", zip.to_str().unwrap()]).ok(), "pdf\n");
}

#[test]
fn what_cannot_be_added_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start();
    let bundle = dir.path().join("bundle");
    package(&bundle, "one", "---\nname: one\n---\n");
    package(&bundle, "two", "---\nname: two\n---\n");
    let several = server.run(&["skill", "add", bundle.to_str().unwrap()]);
    assert!(several.code == 125 && several.stderr.contains("one, two"), "{several:?}");
    assert_eq!(server.run(&["skill", "add", bundle.to_str().unwrap(), "--select", "two"]).ok(), "two\n");
    let link = package(dir.path(), "link", "x");
    symlink("/etc/passwd", link.join("passwd")).unwrap();
    let text = dir.path().join("text");
    std::fs::write(&text, "x").unwrap();
    for (path, words) in [
        (&link, "symbolic link that leads out of it: passwd"),
        (&text, "neither a directory nor a zip"),
        (&dir.path().join("none"), "No such file"),
        (&bundle.join("one/scripts"), "No SKILL.md found"),
    ] {
        let output = server.run(&["skill", "add", path.to_str().unwrap()]);
        assert!(output.code == 125 && output.stderr.contains(words), "{path:?}: {output:?}");
    }
}

/// The skills of a server without LangBot are in its own state, from which nothing else is ever mounted.
#[test]
fn a_skill_is_mounted_in_a_box_as_the_request_says() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let source = package(dir.path(), "pdf", "---\nname: pdf\n---\n");
    let server = Server::start();
    let added = server.run(&["skill", "add", source.to_str().unwrap(), "-o", "json"]).json();
    let root = added["skills"][0]["package_root"].as_str().unwrap();
    let volume = format!("{root}:/workspace/.skills/pdf:ro");
    server.run(&["session", "create", "s", "-v", &volume]).ok();
    assert_eq!(server.shell("sh .skills/pdf/scripts/run.sh").ok(), "from the skill\n");
    assert_eq!(server.shell("touch .skills/pdf/x 2>/dev/null || echo read-only").ok(), "read-only\n");
    let all = Path::new(root).parent().unwrap();
    let state = all.parent().unwrap();
    for (path, words) in [
        (all.join("none"), "does not exist"),
        (all.to_owned(), "own state"),
        (all.join(".sandcrate"), "own state"),
        (state.join("sessions"), "own state"),
    ] {
        let volume = format!("{}:/data:ro", path.display());
        let refused = server.run(&["session", "create", "x", "-v", &volume]);
        assert!(refused.code == 125 && refused.stderr.contains(words), "{path:?}: {refused:?}");
    }
    // What a box does to a skill that it may write is seen by the next look.
    let volume = format!("{root}:/workspace/.skills/pdf");
    server.run(&["session", "create", "w", "-v", &volume]).ok();
    let write = "printf -- '---\\nname: pdf\\ndescription: by a box\\n---\\n' > .skills/pdf/SKILL.md; \
                 ln -s /etc/passwd .skills/pdf/passwd";
    server.run(&["exec", "w", "--", "sh", "-c", write]).ok();
    let shown = server.run(&["skill", "show", "pdf", "-o", "json"]).json();
    assert_eq!(shown["description"], "by a box");
    let link = shown["files"].as_array().unwrap().iter().find(|file| file["name"] == "passwd").unwrap();
    assert!(link["size"].is_null(), "S17: {link}");
    let export = server.run(&["skill", "export", "pdf", "--to", "-"]);
    assert!(export.code == 125 && export.stderr.contains("symbolic link"), "{export:?}");
}
