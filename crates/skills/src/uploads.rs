//! Archives on their way in, a chunk at a time, until an install or a preview takes them.
//!
//! In memory and by name: a key never is a path. What nobody takes is forgotten after a while.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::limits::UPLOADS;
use crate::name::check_file_key;
use crate::{Limits, Scope, SkillError};

/// Between two chunks, or between the last and its use.
const KEPT: Duration = Duration::from_secs(600);

/// One piece of an upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    pub file_key: String,
    pub index: u64,
    /// How many there are in all.
    pub amount: u64,
    pub bytes: Vec<u8>,
}

#[derive(Debug, Default)]
pub(crate) struct Uploads(Mutex<HashMap<(Scope, String), Upload>>);

#[derive(Debug)]
struct Upload {
    bytes: Vec<u8>,
    next: u64,
    amount: u64,
    touched: Instant,
}

impl Uploads {
    /// Takes the next chunk; the first one of a key begins anew.
    pub(crate) fn add(
        &self,
        scope: &Scope,
        chunk: Chunk,
        most_bytes: usize,
        limits: &Limits,
        now: Instant,
    ) -> Result<(), SkillError> {
        check_file_key(&chunk.file_key)?;
        let key = (scope.clone(), chunk.file_key);
        let mut uploads = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        uploads.retain(|_, upload| now.duration_since(upload.touched) < KEPT);
        if chunk.index == 0 {
            uploads.remove(&key);
        }
        let held: usize = uploads.values().map(|upload| upload.bytes.len()).sum();
        if held + chunk.bytes.len() > limits.upload_bytes.saturating_mul(2) {
            return Err(SkillError::limit("what uploads hold", format!("{} bytes", limits.upload_bytes * 2)));
        }
        if uploads.len() >= UPLOADS && !uploads.contains_key(&key) {
            return Err(SkillError::limit("the number of uploads", UPLOADS.to_string()));
        }
        if chunk.index != 0 && !uploads.contains_key(&key) {
            return Err(out_of_order(chunk.index, 0));
        }
        let upload = uploads.entry(key.clone()).or_insert_with(|| Upload {
            bytes: Vec::new(),
            next: 0,
            amount: chunk.amount,
            touched: now,
        });
        if chunk.index != upload.next {
            return Err(out_of_order(chunk.index, upload.next));
        }
        let most_bytes = most_bytes.min(limits.upload_bytes);
        if upload.bytes.len() + chunk.bytes.len() > most_bytes {
            uploads.remove(&key);
            return Err(SkillError::limit("the upload", format!("{most_bytes} bytes")));
        }
        upload.bytes.extend_from_slice(&chunk.bytes);
        upload.next += 1;
        upload.amount = chunk.amount;
        upload.touched = now;
        Ok(())
    }

    /// The whole file; it is forgotten here, whatever becomes of it.
    pub(crate) fn take(&self, scope: &Scope, key: &str) -> Result<Vec<u8>, SkillError> {
        check_file_key(key)?;
        let upload =
            self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&(scope.clone(), key.to_owned()));
        let Some(upload) = upload else {
            return Err(SkillError::invalid("file_key", format!("No uploaded file with file_key \"{key}\"")));
        };
        if upload.next < upload.amount {
            let problem =
                format!("the upload is not complete: {} of {} chunks arrived", upload.next, upload.amount);
            return Err(SkillError::invalid("file_key", problem));
        }
        Ok(upload.bytes)
    }
}

fn out_of_order(index: u64, expected: u64) -> SkillError {
    SkillError::invalid("chunk_index", format!("chunk_index is {index}, and {expected} is next"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(key: &str, index: u64, amount: u64, bytes: &[u8]) -> Chunk {
        Chunk { file_key: key.to_owned(), index, amount, bytes: bytes.to_vec() }
    }

    #[test]
    fn chunks_come_in_order_and_the_first_begins_anew() {
        let (uploads, limits, now) = (Uploads::default(), Limits::default(), Instant::now());
        uploads.add(&Scope::Shared, chunk("k", 0, 2, b"old"), usize::MAX, &limits, now).unwrap();
        uploads.add(&Scope::Shared, chunk("k", 0, 2, b"ab"), usize::MAX, &limits, now).unwrap();
        assert!(uploads.add(&Scope::Shared, chunk("k", 2, 3, b"x"), usize::MAX, &limits, now).is_err());
        assert!(uploads.add(&Scope::Shared, chunk("other", 1, 2, b"x"), usize::MAX, &limits, now).is_err());
        uploads.add(&Scope::Shared, chunk("k", 1, 2, b"cd"), usize::MAX, &limits, now).unwrap();
        assert_eq!(uploads.take(&Scope::Shared, "k").unwrap(), b"abcd");
        assert!(uploads.take(&Scope::Shared, "k").is_err(), "it is had once");
        uploads.add(&Scope::Shared, chunk("part", 0, 2, b"x"), usize::MAX, &limits, now).unwrap();
        assert!(uploads.take(&Scope::Shared, "part").unwrap_err().to_string().contains("1 of 2"));
    }

    #[test]
    fn s7_a_key_is_never_a_path() {
        let (uploads, limits, now) = (Uploads::default(), Limits::default(), Instant::now());
        for key in ["../../../PWNED", "/etc/passwd", "a/b", ""] {
            assert!(
                uploads.add(&Scope::Shared, chunk(key, 0, 1, b"x"), usize::MAX, &limits, now).is_err(),
                "{key}"
            );
            assert!(uploads.take(&Scope::Shared, key).is_err(), "{key}");
        }
    }

    #[test]
    fn s15_uploads_are_bounded_and_forgotten() {
        let (uploads, now) = (Uploads::default(), Instant::now());
        let limits = Limits { upload_bytes: 10, ..Limits::default() };
        assert!(
            uploads.add(&Scope::Shared, chunk("k", 0, 1, &[0; 6]), 5, &limits, now).is_err(),
            "the caller's"
        );
        assert!(uploads.add(&Scope::Shared, chunk("k", 0, 1, &[0; 11]), usize::MAX, &limits, now).is_err());
        uploads.add(&Scope::Shared, chunk("a", 0, 2, &[0; 10]), usize::MAX, &limits, now).unwrap();
        assert!(uploads.add(&Scope::Shared, chunk("a", 1, 2, &[0; 1]), usize::MAX, &limits, now).is_err());
        uploads.add(&Scope::Shared, chunk("a", 0, 2, &[0; 10]), usize::MAX, &limits, now).unwrap();
        uploads.add(&Scope::Shared, chunk("b", 0, 2, &[0; 10]), usize::MAX, &limits, now).unwrap();
        assert!(
            uploads.add(&Scope::Shared, chunk("c", 0, 2, &[0; 1]), usize::MAX, &limits, now).is_err(),
            "all together"
        );
        uploads.add(&Scope::Shared, chunk("c", 0, 1, &[0; 1]), usize::MAX, &limits, now + KEPT).unwrap();
        assert!(uploads.take(&Scope::Shared, "a").is_err(), "forgotten");
        for index in 1..UPLOADS {
            uploads
                .add(&Scope::Shared, chunk(&format!("n{index}"), 0, 1, b""), usize::MAX, &limits, now + KEPT)
                .unwrap();
        }
        assert!(
            uploads.add(&Scope::Shared, chunk("more", 0, 1, b""), usize::MAX, &limits, now + KEPT).is_err()
        );
    }
}
