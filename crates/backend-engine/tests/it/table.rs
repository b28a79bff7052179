//! The table of the guide: what each backend enforces, from the records of real sessions.
//!
//! `SANDCRATE_UPDATE_DOCS=1` writes it. The records depend on kernel and engines, which the table names: on another
//! machine the comparison would say nothing, and is skipped aloud.

use std::path::{Path, PathBuf};

use libtest_mimic::{Failed, Trial};
use sandcrate_backend::{Backend, SessionId, SessionSpec};
use sandcrate_backend_engine::EngineFacts;
use sandcrate_backend_native::{NativeBackend, NativeConfig};
use sandcrate_backend_nsjail::{NsjailBackend, NsjailConfig};
use sandcrate_protocol::{Control, Enforcement, State};

const BEGIN: &str = "<!-- enforcement: begin -->\n";
const END: &str = "<!-- enforcement: end -->";

/// A backend's name, what it is, and the record of a session with the defaults.
pub(crate) type Column = (&'static str, String, Enforcement);

fn guide() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/backends.md")
}

pub(crate) fn of_engine(name: &'static str, facts: &EngineFacts, record: &Enforcement) -> Column {
    (name, format!("{name} {} on cgroup v{}", facts.version, facts.cgroup_version), record.clone())
}

/// A native box of this machine, for comparison.
pub(crate) async fn native(scratch: &Path) -> Column {
    let config = NativeConfig { state_dir: scratch.join("native"), pool: 0, ..NativeConfig::for_this_user() };
    let backend = NativeBackend::open(config).await.expect("the native backend");
    let spec = SessionSpec::new(SessionId::new("table").expect("an id"));
    let record = backend.start(spec).await.expect("a native box").enforcement;
    backend.shutdown().await;
    ("native", "native as root".to_owned(), record)
}

/// A box of nsjail's, where the program is.
pub(crate) async fn nsjail(scratch: &Path) -> Option<Column> {
    let config = NsjailConfig::new(scratch.join("nsjail-state"));
    if config.find().is_none() {
        eprintln!("SKIP: nsjail is not installed, and the table of the guide has a column of it");
        return None;
    }
    let backend = NsjailBackend::open(config).await.expect("the nsjail backend");
    let spec = SessionSpec::new(SessionId::new("table").expect("an id"));
    let record = backend.start(spec).await.expect("a box of nsjail's").enforcement;
    backend.shutdown().await;
    // It does not tell its version.
    Some(("nsjail", "nsjail as root".to_owned(), record))
}

fn render(columns: &[Column]) -> String {
    let names: Vec<&str> = columns.iter().map(|(name, ..)| *name).collect();
    let what: Vec<&str> = columns.iter().map(|(_, what, _)| what.as_str()).collect();
    let mut text = format!("Of sessions with the defaults: {}.\n\n", what.join(", "));
    text += &format!("| control | {} |\n|---|{}\n", names.join(" | "), "---|".repeat(names.len()));
    for control in Control::ALL {
        let mut before = String::new();
        let cells = columns.iter().map(|(_, _, record)| {
            let cell = record.get(control).map_or("not recorded".to_owned(), |finding| {
                let state = match finding.state {
                    State::Enforced => "enforced",
                    State::Degraded => "degraded",
                    State::Absent => "absent",
                };
                format!("{state}: {}", finding.by.replace('|', "\\|"))
            });
            if cell == before {
                "the same".to_owned()
            } else {
                before.clone_from(&cell);
                cell
            }
        });
        let cells: Vec<String> = cells.collect();
        text += &format!("| `{control}` | {} |\n", cells.join(" | "));
    }
    text
}

pub(crate) fn trial(columns: &[Column]) -> Trial {
    let text = std::fs::read_to_string(guide()).expect("the guide");
    let (front, rest) = text.split_once(BEGIN).expect("a place for the table");
    let (present, back) = rest.split_once(END).expect("its end");
    let wanted = render(columns);
    if std::env::var_os("SANDCRATE_UPDATE_DOCS").is_some() {
        std::fs::write(guide(), format!("{front}{BEGIN}{wanted}{END}{back}")).expect("writing the guide");
        return Trial::test("the_table_of_the_guide_was_written", || Ok(()));
    }
    let same_machine = present.lines().next() == wanted.lines().next() && columns.len() == 4;
    if !same_machine {
        eprintln!("SKIP: the table of the guide is of other engines: {:?}", present.lines().next());
    }
    let present = present.to_owned();
    let check = move || match present == wanted {
        true => Ok(()),
        false => {
            let differs = wanted.lines().zip(present.lines()).find(|(wanted, present)| wanted != present);
            Err(Failed::from(format!(
                "docs/guide/backends.md: SANDCRATE_UPDATE_DOCS=1 writes it; first: {differs:?}"
            )))
        }
    };
    Trial::test("the_table_of_the_guide_is_up_to_date", check).with_ignored_flag(!same_machine)
}
