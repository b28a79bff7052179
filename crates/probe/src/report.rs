//! What an attack says: a line per attempt, and a verdict that only held attempts earn.

use crate::child::{Outcome, attempt_in_child};
use crate::sys::SysResult;

/// The end of an attack.
pub(crate) enum Verdict {
    Safe(String),
    Unsafe(String),
    Info(String),
}

/// The attack was called wrongly, or its precondition does not hold.
pub(crate) struct Usage(pub(crate) String);

pub(crate) type AttackResult = Result<Verdict, Usage>;

/// Collects attempts and what broke.
#[derive(Default)]
pub(crate) struct Report {
    attempts: usize,
    breaches: Vec<String>,
    remarks: Vec<String>,
    unmade: Vec<String>,
}

impl Report {
    /// Prints an attempt without judging it.
    pub(crate) fn attempt(&mut self, what: &str, outcome: impl Into<Outcome>) -> Outcome {
        let outcome = outcome.into();
        self.attempts += 1;
        println!("attempt: {what} -> {outcome}");
        if let Outcome::NotMade(_) = outcome {
            self.unmade.push(what.to_owned());
        }
        outcome
    }

    /// Counts an attempt that is one of very many; only what is wrong with it gets a line.
    pub(crate) fn quiet_must_fail(&mut self, what: &str, call: impl FnOnce() -> SysResult) {
        match attempt_in_child(call) {
            Outcome::Failed(_) | Outcome::Killed(libc::SIGSYS) => self.held(),
            outcome => self.judge_failure(what, outcome),
        }
    }

    /// Only a failed call holds: a child that died otherwise did not get to try.
    fn judge_failure(&mut self, what: &str, outcome: Outcome) {
        match self.attempt(what, outcome) {
            Outcome::Returned(_) | Outcome::Hung => self.breach(format!("{what} -> {outcome}")),
            Outcome::Killed(signal) if signal != libc::SIGSYS => self.unmade.push(what.to_owned()),
            Outcome::Killed(_) | Outcome::Failed(_) | Outcome::NotMade(_) => {}
        }
    }

    /// Counts an attempt that failed as it should and is not worth a line.
    pub(crate) fn held(&mut self) {
        self.attempts += 1;
    }

    /// Records that something which must hold does not.
    pub(crate) fn breach(&mut self, what: impl Into<String>) {
        let what = what.into();
        println!("breach: {what}");
        self.breaches.push(what);
    }

    /// Records something worth knowing that is no breach; without breaches the verdict becomes INFO.
    pub(crate) fn remark(&mut self, what: impl Into<String>) {
        let what = what.into();
        println!("remark: {what}");
        self.remarks.push(what);
    }

    /// Runs `call` in a child; anything but a refusal is a breach, since the arguments
    /// are chosen so that a permitted call fails in another way or succeeds.
    pub(crate) fn must_refuse(&mut self, what: &str, call: impl FnOnce() -> SysResult) -> Outcome {
        self.must_refuse_or(what, &[], call)
    }

    /// Like [`Self::must_refuse`], with further error numbers that also mean "no".
    pub(crate) fn must_refuse_or(
        &mut self,
        what: &str,
        also: &[i32],
        call: impl FnOnce() -> SysResult,
    ) -> Outcome {
        let outcome = self.attempt(what, attempt_in_child(call));
        let absent = matches!(outcome, Outcome::Failed(errno) if also.contains(&errno.0));
        if !outcome.refused() && !absent && !matches!(outcome, Outcome::NotMade(_)) {
            self.breach(format!("{what} -> {outcome}"));
        }
        outcome
    }

    /// Runs `call` in a child; only success is a breach.
    pub(crate) fn must_fail(&mut self, what: &str, call: impl FnOnce() -> SysResult) -> Outcome {
        let outcome = attempt_in_child(call);
        self.judge_failure(what, outcome);
        outcome
    }

    /// Opens `path` in this process; only success is a breach. A missing path is counted, not printed.
    pub(crate) fn must_not_open(&mut self, path: &str, flags: i32) -> bool {
        let result = crate::sys::open(path, flags | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY);
        let opened = match result {
            Ok(fd) => {
                crate::sys::close(fd);
                true
            }
            Err(errno) if errno.0 == libc::ENOENT => {
                self.held();
                return false;
            }
            Err(_) => false,
        };
        let what = format!("open({path}, {})", open_mode(flags));
        let outcome = self.attempt(&what, result);
        if opened {
            self.breach(format!("{what} -> {outcome}"));
        }
        opened
    }

    /// Reads from `path`; some files of a process open for anyone and refuse at the read.
    pub(crate) fn must_not_read(&mut self, path: &str) {
        use std::io::Read;
        let mut buffer = [0u8; 64];
        let read = std::fs::File::open(path).and_then(|mut file| file.read(&mut buffer));
        self.attempts += 1;
        match read {
            Ok(0) => println!("attempt: read {path} -> empty"),
            Ok(size) => self.breach(format!("{path} shows {size} bytes")),
            Err(error) => {
                let errno = crate::sys::Errno(error.raw_os_error().unwrap_or(0));
                println!("attempt: read {path} -> {errno}");
            }
        }
    }

    /// The verdict: UNSAFE with the breaches, INFO with the remarks, else SAFE with `held`.
    pub(crate) fn verdict(self, held: &str) -> AttackResult {
        if !self.breaches.is_empty() {
            let shown: Vec<&str> = self.breaches.iter().take(4).map(String::as_str).collect();
            let count = self.breaches.len();
            return Ok(Verdict::Unsafe(format!(
                "{count} breaches in {} attempts: {}",
                self.attempts,
                shown.join("; ")
            )));
        }
        if let Some(first) = self.unmade.first() {
            return Err(Usage(format!("{} attempts could not be made, first: {first}", self.unmade.len())));
        }
        if !self.remarks.is_empty() {
            return Ok(Verdict::Info(self.remarks.join("; ")));
        }
        if self.attempts == 0 {
            return Err(Usage("no attempt could be made".into()));
        }
        Ok(Verdict::Safe(format!("{held} ({} attempts)", self.attempts)))
    }
}

fn open_mode(flags: i32) -> &'static str {
    if flags & libc::O_PATH != 0 {
        return "path";
    }
    match flags & libc::O_ACCMODE {
        libc::O_WRONLY => "write",
        libc::O_RDWR => "read-write",
        _ => "read",
    }
}
