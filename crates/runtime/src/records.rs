//! Persistent sessions on disk: what they were asked to be, and where their files are.
//!
//! One directory a session, named by a hash of its id, so that no id can escape or collide. The state directory
//! is held under a lock: one runtime owns it.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, TryLockError};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sandcrate_protocol::network::NetworkRequest;
use sandcrate_protocol::{BoxSpec, Timestamp};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::session::{Session, SessionOptions};

/// Bumped when a record of today could not be read by the code of yesterday.
const VERSION: u32 = 2;
/// What a record without a network of its own is: older code reads it and means the same.
const PLAIN: u32 = 1;
const RECORD: &str = "record.json";
const FILES: &str = "files";

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Record {
    version: u32,
    pub(crate) spec: BoxSpec,
    /// Where its files mean something.
    pub(crate) backend: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    env: BTreeMap<String, String>,
    ttl_sec: Option<u64>,
    /// As it was asked for, where that is more than the specification can say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    asked_network: Option<NetworkRequest>,
    /// What it was changed to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    network: Option<NetworkRequest>,
    pub(crate) created_at: Timestamp,
    pub(crate) last_used_at: Timestamp,
}

impl Record {
    pub(crate) fn new(session: &Session, backend: &str, used: Timestamp) -> Self {
        let (asked, now) = (&session.asked_network, session.network());
        let asked_network = (!asked.is_plain()).then(|| asked.clone());
        let network = (now != *asked).then_some(now);
        let plain = asked_network.is_none() && network.is_none();
        Self {
            version: if plain { PLAIN } else { VERSION },
            spec: session.spec.clone(),
            backend: backend.to_owned(),
            labels: session.options.labels.clone(),
            env: session.options.env.clone(),
            ttl_sec: session.options.ttl.map(|ttl| ttl.as_secs()),
            asked_network,
            network,
            created_at: session.created_at,
            last_used_at: used,
        }
    }

    /// What the session is held to.
    pub(crate) fn network(&self) -> NetworkRequest {
        self.network.clone().unwrap_or_else(|| self.options().network(&self.spec))
    }

    pub(crate) fn options(&self) -> SessionOptions {
        SessionOptions {
            labels: self.labels.clone(),
            env: self.env.clone(),
            ttl: self.ttl_sec.map(Duration::from_secs),
            network: self.asked_network.clone(),
            // Ports belong to a life of the runtime.
            ports: Vec::new(),
            // Its home says it.
            backend: None,
            // Whoever made it is gone.
            own_root: None,
            // What came back has slept.
            ends_with_server: false,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Records {
    directory: PathBuf,
    /// Held as long as the runtime lives.
    _lock: File,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum RecordsError {
    #[error("the state directory {} is in use by another runtime; give this one another", path.display())]
    InUse { path: PathBuf },
    #[error("the state directory {} cannot be used: {source}", path.display())]
    Unusable { path: PathBuf, source: io::Error },
}

impl Records {
    /// Takes the state directory. Blocks for the disk only.
    pub(crate) fn open(state_dir: &Path) -> Result<Self, RecordsError> {
        let unusable = |source| RecordsError::Unusable { path: state_dir.to_owned(), source };
        let directory = state_dir.join("sessions");
        DirBuilder::new().recursive(true).mode(0o700).create(&directory).map_err(unusable)?;
        let directory = directory.canonicalize().map_err(unusable)?;
        let lock =
            File::options().write(true).create(true).truncate(false).open(state_dir.join("runtime.lock"));
        let lock = lock.map_err(unusable)?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { directory, _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(RecordsError::InUse { path: state_dir.to_owned() }),
            Err(TryLockError::Error(source)) => Err(unusable(source)),
        }
    }

    /// Every session that was kept. One that cannot be read is left alone, and said aloud.
    pub(crate) fn load(&self) -> Vec<Record> {
        let mut found = Vec::new();
        let Ok(entries) = fs::read_dir(&self.directory) else { return found };
        for entry in entries.flatten() {
            let path = entry.path();
            let read = fs::read(path.join(RECORD)).and_then(|text| {
                let record: Record = serde_json::from_slice(&text)?;
                if (PLAIN..=VERSION).contains(&record.version) {
                    Ok(record)
                } else {
                    Err(io::Error::other(format!("version {} is not known", record.version)))
                }
            });
            match read {
                Ok(record) => found.push(record),
                // Made and not yet recorded when its runtime died, or its machine before the record was on disk.
                Err(error) if error.kind() == io::ErrorKind::NotFound || is_empty(&path.join(RECORD)) => {
                    let _ = fs::remove_dir_all(&path);
                }
                Err(error) => {
                    tracing::warn!(path = %path.display(), %error, "a session's record cannot be read");
                }
            }
        }
        found.sort_by_key(|record| record.created_at);
        found
    }

    /// Where a session's private files live.
    pub(crate) fn files(&self, session: &str) -> PathBuf {
        self.place(session).join(FILES)
    }

    /// Writes a record whole, or not at all.
    pub(crate) fn save(&self, session: &str, record: &Record, durability: Durability) -> io::Result<()> {
        let place = self.place(session);
        DirBuilder::new().recursive(true).mode(0o700).create(&place)?;
        let fresh = place.join("record.new");
        fs::write(&fresh, serde_json::to_vec(record)?)?;
        if durability == Durability::Machine {
            File::open(&fresh)?.sync_all()?;
        }
        fs::rename(&fresh, place.join(RECORD))
    }

    /// Forgets a session whose files are gone.
    pub(crate) fn remove(&self, session: &str) -> io::Result<()> {
        // The record first: a place without one is an unfinished session, and goes at the next start.
        match fs::remove_file(self.place(session).join(RECORD)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        match fs::remove_dir_all(self.place(session)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    fn place(&self, session: &str) -> PathBuf {
        let hash = Sha256::digest(session.as_bytes());
        let name: String = hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        self.directory.join(name)
    }
}

/// What a record outlives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durability {
    Server,
    Machine,
}

fn is_empty(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|facts| facts.len() == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(spec: &BoxSpec, options: SessionOptions) -> Session {
        let id = sandcrate_backend::SessionId::new(spec.session_id.clone()).unwrap();
        Session::new(id, 1, spec, options)
    }

    /// Older code would take a policy it cannot read for the operator's `on`: it must not read the record.
    #[test]
    fn a_policy_is_kept_and_is_not_for_older_code() {
        let plain = session(&BoxSpec::new("s"), SessionOptions::default());
        assert_eq!(Record::new(&plain, "fake", Timestamp::now()).version, PLAIN);
        let request: NetworkRequest = "allow a.example".parse().unwrap();
        let options = SessionOptions { network: Some(request.clone()), ..SessionOptions::default() };
        let asked = session(&BoxSpec::new("s"), options);
        let changed: NetworkRequest = "allow b.example".parse().unwrap();
        asked.swap_network(changed.clone());
        let text = serde_json::to_string(&Record::new(&asked, "fake", Timestamp::now())).unwrap();
        let record: Record = serde_json::from_str(&text).unwrap();
        assert_eq!((record.version, record.network()), (VERSION, changed));
        assert_eq!(record.options().network, Some(request));
    }

    #[test]
    fn variables_of_the_session_are_kept() {
        let env = BTreeMap::from([("A".to_owned(), "b".to_owned())]);
        let asked =
            session(&BoxSpec::new("s"), SessionOptions { env: env.clone(), ..SessionOptions::default() });
        let text = serde_json::to_string(&Record::new(&asked, "fake", Timestamp::now())).unwrap();
        assert_eq!(serde_json::from_str::<Record>(&text).unwrap().options().env, env);
    }

    #[test]
    fn s10_records_come_back_and_ids_cannot_escape() {
        let state = tempfile::tempdir().unwrap();
        let records = Records::open(state.path()).unwrap();
        let id = "../../../etc/passwd";
        let spec = BoxSpec::new(id);
        let session = session(&spec, SessionOptions::default());
        records.save(id, &Record::new(&session, "fake", Timestamp::now()), Durability::Server).unwrap();
        assert!(records.files(id).starts_with(state.path().canonicalize().unwrap().join("sessions")));
        assert_eq!(records.load().len(), 1);
        assert_eq!(records.load()[0].spec, spec);
        records.remove(id).unwrap();
        records.remove(id).unwrap();
        assert!(records.load().is_empty());
        assert_eq!(fs::read_dir(state.path().join("sessions")).unwrap().count(), 0);
    }

    #[test]
    fn a_second_runtime_is_told_that_the_directory_is_taken() {
        let state = tempfile::tempdir().unwrap();
        let first = Records::open(state.path()).unwrap();
        let error = Records::open(state.path()).unwrap_err();
        assert!(error.to_string().contains("in use by another runtime"), "{error}");
        drop(first);
        Records::open(state.path()).unwrap();
    }

    #[test]
    fn what_was_never_recorded_goes_and_what_cannot_be_read_stays() {
        let state = tempfile::tempdir().unwrap();
        let records = Records::open(state.path()).unwrap();
        fs::create_dir_all(records.files("half")).unwrap();
        let [broken, empty] = ["broken", "empty"].map(|name| state.path().join("sessions").join(name));
        fs::create_dir(&broken).unwrap();
        fs::create_dir(&empty).unwrap();
        fs::write(empty.join(RECORD), "").unwrap();
        fs::write(broken.join(RECORD), "{").unwrap();
        assert!(records.load().is_empty());
        assert!(!records.files("half").exists() && !empty.exists() && broken.exists());
    }
}
