//! The skill actions: both files, one after the other on one server, as they were recorded.
//!
//! What the recording laid out on disk between its calls is laid out here before the same calls.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::json::Json;
use super::ledger::Ledger;
use super::normalise;
use super::peer::{Server, Socket};
use crate::driver::until;

/// Everything of the recording's machine was below it.
const THEIR_PLACE: &str = "/srv/ref";

struct Stage {
    place: tempfile::TempDir,
    socket: Socket,
    _server: Server,
}

impl Stage {
    fn new() -> Self {
        let place = tempfile::Builder::new().prefix("sandcrate-test-").tempdir().unwrap();
        let roots = format!("[\"{}\"]", place.path().display());
        let server = Server::start(&[("SANDCRATE__MOUNTS__ROOTS", &roots)]);
        let socket = Socket::rpc(server.port);
        Self { place, socket, _server: server }
    }

    fn path(&self, below: &str) -> PathBuf {
        self.place.path().join(below)
    }

    fn put(&self, below: &str, content: impl AsRef<[u8]>) {
        std::fs::create_dir_all(self.path(below).parent().unwrap()).unwrap();
        std::fs::write(self.path(below), content).unwrap();
    }

    fn exists(&self, below: &str) -> bool {
        self.path(below).exists()
    }

    /// Sends the request of a vector and compares the reply.
    fn exchange(&mut self, ledger: &mut Ledger, number: u32) {
        self.tick();
        let vector = ledger.vector(number);
        let ours = self.place.path().to_str().unwrap().to_owned();
        let request = vector.at("request").python().replace(THEIR_PLACE, &ours);
        let root = format!("{ours}/hostroot");
        let reply = normalise::reply(&self.socket.call(&request), &root).replace(&ours, THEIR_PLACE);
        let theirs = normalise::document(vector.at("response").clone(), &root).python();
        ledger.compare(number, &theirs, &reply);
    }

    /// Until the clock of files has moved on: lists are sorted by it.
    fn tick(&self) {
        let mark = self.path("tick");
        let now = || {
            std::fs::write(&mark, "").unwrap();
            mark.metadata().unwrap().modified().unwrap()
        };
        let before = now();
        until("the clock of files to move on", || (now() > before).then_some(()));
    }
}

fn text(vector: &Json, key: &str) -> String {
    vector.at(key).python()
}

fn names(directory: &Path) -> Json {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    Json::List(names.into_iter().map(Json::Text).collect())
}

#[test]
fn skills_are_as_recorded() {
    let mut stage = Stage::new();
    let mut ledger = Ledger::open("skills");
    for number in ledger.numbers() {
        lay_out(&stage, number);
        let vector = ledger.vector(number);
        if vector.get("request").is_some() {
            stage.exchange(&mut ledger, number);
            continue;
        }
        let (theirs, ours) = match number {
            15 | 16 | 20 => {
                let file = vector.at("case").text().strip_prefix("file:").unwrap().to_owned();
                let content = std::fs::read_to_string(stage.path("hostroot2").join(file)).unwrap();
                (vector.at("content").text().to_owned(), content)
            }
            22 => (text(&vector, "exists"), stage.exists("hostroot2/skills/s6").to_string()),
            118 => (text(&vector, "host_root_entries"), names(&stage.path("hostroot2")).python()),
            125 => (text(&vector, "bundle_exists"), stage.exists("hostroot2/skills/bundle").to_string()),
            131 => (text(&vector, "exists"), stage.exists("cwd/PWNED").to_string()),
            133 => (text(&vector, "exists"), stage.exists("secret.zip").to_string()),
            // Uploads are in memory: nothing is left of them anywhere.
            134 => (text(&vector, "left"), names(&stage.path("cwd")).python()),
            _ => panic!("no request: {}", ledger.name(number)),
        };
        ledger.compare(number, &theirs, &ours);
    }
    let findings = ledger.findings() + &security(&mut stage);
    assert!(findings.is_empty(), "{findings}");
}

fn security(stage: &mut Stage) -> String {
    let mut ledger = Ledger::open("skills-security");
    stage.put("ext/priv/secret.txt", "TOPSECRET");
    stage.put("ext/sl/SKILL.md", "x");
    symlink("/etc/hostname", stage.path("ext/sl/h")).unwrap();
    for number in ledger.numbers() {
        let vector = ledger.vector(number);
        if number == 11 {
            stage.put("hostroot2/skills/lower/skill.md", "---\nname: lower\n---\nold");
        }
        if let Some(name) = vector.at("case").text().strip_prefix("frontmatter-") {
            let content = vector.at("note").text().strip_prefix("SKILL.md=").map(Json::parse).unwrap();
            stage.put(&format!("fm/{name}/SKILL.md"), content.text());
        }
        let (theirs, ours) = match number {
            4 => (text(&vector, "exists"), stage.exists("hostroot2/esc").to_string()),
            12 => (text(&vector, "files"), names(&stage.path("hostroot2/skills/lower")).python()),
            _ => {
                stage.exchange(&mut ledger, number);
                continue;
            }
        };
        ledger.compare(number, &theirs, &ours);
    }
    ledger.findings()
}

/// What the recording had on disk before this case.
fn lay_out(stage: &Stage, number: u32) {
    match number {
        1 => {
            std::fs::create_dir_all(stage.path("cwd")).unwrap();
            std::fs::create_dir_all(stage.path("ext/empty")).unwrap();
            stage.put(
                "ext/pkg/SKILL.md",
                "---\nname: Orig Name\nversion: 1\ndescription: ext desc\n---\n\nExt body\n",
            );
            stage.put("ext/pkg/sub/tool.py", "print(1)\n");
            stage.put("secret.zip", "any");
        }
        // Both came with one request: the second later, or in the same moment of the clock of files.
        119 => {
            let entry = |name| stage.path("hostroot2/skills").join(name).join("SKILL.md");
            let time = |name| entry(name).metadata().unwrap().modified().unwrap();
            let later = time("repo-one-upload") + std::time::Duration::from_millis(1);
            if time("repo-two-upload") < later {
                let file = std::fs::File::options().write(true).open(entry("repo-two-upload")).unwrap();
                file.set_modified(later).unwrap();
            }
        }
        24 => stage.put("hostroot2/skills/man/SKILL.md", "no frontmatter\n"),
        56 => {
            stage.put("hostroot2/skills/s5/bin.dat", [0xff, 0xfe, 0x00]);
            stage.put("hostroot2/skills/s5/crlf.txt", "a\r\nb\rc\n");
            stage.put("out3", "abc");
            symlink(stage.path("out3"), stage.path("hostroot2/skills/s5/lnk")).unwrap();
        }
        120 => {
            for name in ["bx", "by"] {
                let file = format!("hostroot2/skills/bundle/{name}/SKILL.md");
                stage.put(&file, format!("---\nname: {name}\n---\n"));
            }
            stage.put("hostroot2/skills/badyaml/SKILL.md", "---\nname: [\n---\n");
        }
        _ => {}
    }
}
