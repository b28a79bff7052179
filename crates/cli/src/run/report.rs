//! The document of `-o json`.

use sandcrate_backend::{
    ExecExit, ExitStatus, LimitHit, MemoryScope, Mount, Network, RootAccess, SessionInfo,
};
use sandcrate_protocol::Enforcement;
use sandcrate_protocol::network::{Counters, Denial};
use sandcrate_runtime::PortView;
use serde::Serialize;

use super::plan::Plan;
use super::session::{Broken, Ended, Ending};
use super::streams::Kept;
use crate::failure::Shown;
use crate::output::BROKEN_PIPE_EXIT_CODE;
use crate::toolchain::ToolRoot;

/// The exit code of a command that ran into its time limit, as coreutils' `timeout` has it.
pub(crate) const TIMEOUT_EXIT_CODE: u8 = 124;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    Exited,
    Signaled,
    TimedOut,
    /// A signal to sandcrate ended the box.
    Interrupted,
    /// Sandcrate could not do it; `error` says why.
    Failed,
}

#[derive(Debug, Serialize)]
pub(crate) struct RunReport {
    ok: bool,
    status: Status,
    /// The exit code of sandcrate itself.
    exit_code: u8,
    signal: Option<i32>,
    timed_out: bool,
    stdout: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    stdout_base64: Option<String>,
    stderr: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    stderr_base64: Option<String>,
    stdout_bytes: u64,
    stderr_bytes: u64,
    dropped_bytes: u64,
    usage: Option<UsageReport>,
    limits_hit: Vec<LimitHit>,
    denials: Vec<Denial>,
    /// What an isolated network carried.
    network: Option<Counters>,
    session: Option<SessionReport>,
    enforcement: Enforcement,
    error: Option<Shown>,
}

#[derive(Debug, Serialize)]
struct UsageReport {
    wall_ms: f64,
    user_ms: f64,
    system_ms: f64,
    peak_memory_bytes: Option<u64>,
    peak_memory_scope: Option<MemoryScope>,
}

#[derive(Debug, Serialize)]
struct SessionReport {
    name: String,
    backend: &'static str,
    start_ms: f64,
    root: RootAccess,
    network: Network,
    workdir: String,
    mounts: Vec<Mount>,
    toolchains: Vec<ToolRoot>,
    ports: Vec<PortView>,
}

impl RunReport {
    /// A run that did not come to a box.
    pub(crate) fn failed(error: Shown) -> Self {
        let mut report = Self::empty(Status::Failed, error.exit_code());
        report.error = Some(error);
        report
    }

    /// A run whose box started, and then something failed.
    pub(super) fn broken(error: Shown, plan: &Plan, broken: &Broken) -> Self {
        let mut report = Self::failed(error);
        report.set_streams(&broken.stdout, &broken.stderr);
        report.set_session(plan, broken.session.as_ref(), &broken.ports);
        report
    }

    pub(super) fn ended(plan: &Plan, ended: &Ended) -> Self {
        let mut report = Self::empty(status(&ended.ending), exit_code(&ended.ending));
        report.set_streams(&ended.stdout, &ended.stderr);
        match &ended.ending {
            Ending::Exit(exit) => report.set_exit(exit),
            Ending::Signal(signal) => report.signal = Some(*signal),
            Ending::BrokenPipe => {}
        }
        report.set_session(plan, ended.session.as_ref(), &ended.ports);
        report
    }

    fn empty(status: Status, exit_code: u8) -> Self {
        Self {
            ok: exit_code == 0,
            status,
            exit_code,
            signal: None,
            timed_out: false,
            stdout: String::new(),
            stdout_base64: None,
            stderr: String::new(),
            stderr_base64: None,
            stdout_bytes: 0,
            stderr_bytes: 0,
            dropped_bytes: 0,
            usage: None,
            limits_hit: Vec::new(),
            denials: Vec::new(),
            network: None,
            session: None,
            enforcement: Enforcement::new(),
            error: None,
        }
    }

    fn set_streams(&mut self, stdout: &Kept, stderr: &Kept) {
        (self.stdout, self.stdout_base64) = text(stdout);
        (self.stderr, self.stderr_base64) = text(stderr);
        (self.stdout_bytes, self.stderr_bytes) = (stdout.seen, stderr.seen);
    }

    fn set_exit(&mut self, exit: &ExecExit) {
        if let ExitStatus::Signal(signal) = exit.status {
            self.signal = Some(signal);
        }
        self.timed_out = exit.timed_out;
        self.dropped_bytes = exit.dropped_bytes;
        self.limits_hit.clone_from(&exit.limits_hit);
        self.denials.clone_from(&exit.denials);
        self.network = exit.network.as_deref().copied();
        let millis = |time: std::time::Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
        self.usage = Some(UsageReport {
            wall_ms: millis(exit.usage.wall),
            user_ms: millis(exit.usage.user),
            system_ms: millis(exit.usage.system),
            peak_memory_bytes: exit.usage.peak_memory.map(|(bytes, _)| bytes),
            peak_memory_scope: exit.usage.peak_memory.map(|(_, scope)| scope),
        });
    }

    fn set_session(&mut self, plan: &Plan, session: Option<&SessionInfo>, ports: &[PortView]) {
        let Some(info) = session else { return };
        self.enforcement = info.enforcement.clone();
        self.session = Some(SessionReport {
            name: info.id.to_string(),
            backend: info.backend,
            start_ms: (info.start_time.as_secs_f64() * 1e6).round() / 1e3,
            root: plan.spec.root,
            network: plan.spec.network.clone(),
            workdir: plan.spec.workdir.clone(),
            mounts: plan.spec.mounts.clone(),
            toolchains: plan.toolchain.clone(),
            ports: ports.to_vec(),
        });
    }

    /// One document with a line end.
    pub(crate) fn to_json(&self) -> Vec<u8> {
        let mut json = serde_json::to_vec_pretty(self).unwrap_or_else(|error| {
            format!("{{\"ok\":false,\"error\":{{\"message\":{:?}}}}}", error.to_string()).into()
        });
        json.push(b'\n');
        json
    }
}

pub(super) fn exit_code(ending: &Ending) -> u8 {
    match ending {
        Ending::Exit(exit) if exit.timed_out => TIMEOUT_EXIT_CODE,
        // Codes are bytes; a signal's number is at most 64.
        Ending::Exit(exit) => u8::try_from(exit.status.shell_code() & 0xff).unwrap_or(u8::MAX),
        Ending::Signal(signal) => u8::try_from(128 + signal).unwrap_or(u8::MAX),
        Ending::BrokenPipe => BROKEN_PIPE_EXIT_CODE,
    }
}

fn status(ending: &Ending) -> Status {
    match ending {
        Ending::Exit(exit) if exit.timed_out => Status::TimedOut,
        Ending::Exit(ExecExit { status: ExitStatus::Code(_), .. }) => Status::Exited,
        Ending::Exit(ExecExit { status: ExitStatus::Signal(_), .. }) => Status::Signaled,
        Ending::Signal(_) | Ending::BrokenPipe => Status::Interrupted,
    }
}

/// Text for people, and the exact bytes where they are no text. A character that our cut went through is left
/// out.
pub(crate) fn text(kept: &Kept) -> (String, Option<String>) {
    match std::str::from_utf8(&kept.data) {
        Ok(text) => (text.to_owned(), None),
        Err(error) if kept.is_cut() && error.error_len().is_none() => {
            (String::from_utf8_lossy(&kept.data[..error.valid_up_to()]).into_owned(), None)
        }
        Err(_) => (String::from_utf8_lossy(&kept.data).into_owned(), Some(base64(&kept.data))),
    }
}

/// RFC 4648, with padding.
fn base64(data: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(data.len().div_ceil(3) * 4);
    for chunk in data.chunks(3) {
        let bits =
            chunk.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for place in 0..4 {
            let sextet = (bits >> (18 - 6 * place) & 0x3f) as usize;
            out.push(if place <= chunk.len() { ALPHABET[sextet] as char } else { '=' });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_as_the_rfc_has_it() {
        for (data, expected) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
        ] {
            assert_eq!(base64(data.as_bytes()), expected);
        }
        assert_eq!(base64(&[0xff, 0xfe, 0xfd]), "//79");
    }

    #[test]
    fn bytes_that_are_no_text_come_exactly_and_a_cut_character_is_no_reason() {
        let kept = |data: &[u8], seen| Kept { data: data.to_vec(), seen };
        assert_eq!(text(&kept("ä".as_bytes(), 2)), ("ä".to_owned(), None));
        assert_eq!(text(&kept(b"a\xffb", 3)), ("a\u{fffd}b".to_owned(), Some("Yf9i".to_owned())));
        assert_eq!(text(&kept(b"a\xc3", 2)).1.as_deref(), Some("YcM="));
        assert_eq!(text(&kept(b"a\xc3", 9)), ("a".to_owned(), None), "cut by us");
    }

    #[test]
    fn exit_codes_follow_the_shell() {
        let exit = |status, timed_out| Ending::Exit(ExecExit::new(status, timed_out));
        assert_eq!(exit_code(&exit(ExitStatus::Code(7), false)), 7);
        assert_eq!(exit_code(&exit(ExitStatus::Signal(9), false)), 137);
        assert_eq!(exit_code(&exit(ExitStatus::Signal(9), true)), 124);
        assert_eq!(exit_code(&Ending::Signal(2)), 130);
        assert_eq!(exit_code(&Ending::BrokenPipe), 141);
    }
}
