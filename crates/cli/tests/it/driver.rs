//! Runs the built binary: with a state directory of its own, and never longer than a test may take.

use std::ffi::OsStr;
use std::fs::Permissions;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Long enough for the slowest program on a loaded machine; a hang is a failure.
const TEST_TIME: Duration = Duration::from_secs(120);

/// What came of one run.
#[derive(Debug)]
pub(crate) struct Output {
    /// The exit code, or 1000 + N for a signal.
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) wall: Duration,
}

impl Output {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("no JSON ({error}): {self:?}"))
    }

    /// Asserts success and returns stdout.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code, 0, "{self:?}");
        self.stdout
    }
}

/// A state directory that goes with the test, whatever a killed instance left in it.
pub(crate) struct StateDir(tempfile::TempDir);

impl StateDir {
    pub(crate) fn new() -> Self {
        Self(tempfile::Builder::new().prefix("sandcrate-test-state-").tempdir().unwrap())
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for StateDir {
    fn drop(&mut self) {
        // An overlay's work directory has no permissions at all, and an ordinary user cannot look into it.
        fn open_up(dir: &Path) {
            let _ = std::fs::set_permissions(dir, Permissions::from_mode(0o700));
            let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
            entries
                .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
                .for_each(|entry| open_up(&entry.path()));
        }
        open_up(self.0.path());
    }
}

/// A call of the binary that is being put together.
pub(crate) struct Call {
    command: Command,
    state: StateDir,
    input: Vec<u8>,
}

/// `sandcrate` with these arguments, a state directory of its own, and no input.
pub(crate) fn sandcrate<S: AsRef<OsStr>>(args: &[S]) -> Call {
    let state = StateDir::new();
    // Another place, when the one it was built at is closed to the user who runs the tests.
    let built = || env!("CARGO_BIN_EXE_sandcrate").into();
    let mut command = Command::new(std::env::var_os("SANDCRATE_BIN").unwrap_or_else(built));
    command
        .args(args)
        .env("SANDCRATE_STATE_DIR", state.path())
        .env_remove("SANDCRATE_LOG")
        .env_remove("SANDCRATE_CONFIG")
        .env_remove("SANDCRATE_TOKEN")
        .env_remove("LANGBOT_BOX_CONTROL_TOKEN")
        .env_remove("LANGBOT_BOX_CONFIG")
        .env_remove("NO_COLOR");
    Call { command, state, input: Vec::new() }
}

/// `sandcrate run` of a shell script, with flags.
pub(crate) fn run_shell(flags: &[&str], script: &str) -> Call {
    let args: Vec<&str> = ["run"].iter().chain(flags).chain(&["--", "sh", "-c", script]).copied().collect();
    sandcrate(&args)
}

impl Call {
    pub(crate) fn env(mut self, key: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(key, value);
        self
    }

    pub(crate) fn dir(mut self, dir: &Path) -> Self {
        self.command.current_dir(dir);
        self
    }

    /// In a process group of its own, as a shell starts its jobs.
    pub(crate) fn own_group(mut self) -> Self {
        std::os::unix::process::CommandExt::process_group(&mut self.command, 0);
        self
    }

    /// As `nohup` starts it.
    pub(crate) fn ignoring_hangup(mut self) -> Self {
        let mut shell = Command::new("sh");
        shell.args(["-c", "trap '' HUP; exec \"$0\" \"$@\""]).arg(self.command.get_program());
        shell.args(self.command.get_args()).env("SANDCRATE_STATE_DIR", self.state.path());
        self.command = shell;
        self
    }

    /// Where there is loopback and nothing else: what a box is let out to by mistake goes nowhere.
    pub(crate) fn in_empty_network(mut self) -> Self {
        let mut unshared = Command::new("unshare");
        let start = if rustix::process::geteuid().is_root() {
            "ip link set lo up && exec \"$0\" \"$@\""
        } else {
            // An ordinary user keeps his id, and has privileges over the namespaces until loopback is there.
            unshared.args(["--user", "--map-current-user", "--keep-caps"]);
            "ip link set lo up && exec setpriv --ambient-caps=-all --inh-caps=-all \"$0\" \"$@\""
        };
        unshared.args(["--net", "sh", "-c", start]);
        unshared.arg(self.command.get_program()).args(self.command.get_args());
        unshared.env("SANDCRATE_STATE_DIR", self.state.path());
        self.command = unshared;
        self
    }

    pub(crate) fn input(mut self, input: impl Into<Vec<u8>>) -> Self {
        self.input = input.into();
        self
    }

    pub(crate) fn run(mut self) -> Output {
        let input = std::mem::take(&mut self.input);
        let mut running = self.start();
        let mut stdin = running.child.stdin.take().unwrap();
        // On a thread: a command that writes before it reads would block us both.
        let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
        let output = running.finish();
        writer.join().unwrap();
        output
    }

    /// Starts it, with its streams on pipes.
    pub(crate) fn start(mut self) -> Running {
        self.command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = self.command.spawn().expect("the binary starts");
        Running { child, began: Instant::now(), _state: self.state }
    }

    /// Starts it with streams of the caller's choice.
    pub(crate) fn start_on(mut self, stdin: Stdio, stdout: Stdio, stderr: Stdio) -> Running {
        self.command.stdin(stdin).stdout(stdout).stderr(stderr);
        let child = self.command.spawn().expect("the binary starts");
        Running { child, began: Instant::now(), _state: self.state }
    }
}

/// A call that runs. Killed when dropped.
pub(crate) struct Running {
    pub(crate) child: Child,
    began: Instant,
    _state: StateDir,
}

impl Running {
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Reads stdout up to and with `text`.
    pub(crate) fn wait_for(&mut self, text: &str) -> String {
        let stdout = self.child.stdout.as_mut().expect("stdout is a pipe");
        read_until(stdout, text)
    }

    pub(crate) fn finish(mut self) -> Output {
        fn collect(pipe: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<String> {
            std::thread::spawn(move || {
                let mut data = Vec::new();
                if let Some(mut pipe) = pipe {
                    let _ = pipe.read_to_end(&mut data);
                }
                String::from_utf8_lossy(&data).into_owned()
            })
        }
        let stdout = collect(self.child.stdout.take());
        let stderr = collect(self.child.stderr.take());
        let status = until("sandcrate to end", || self.child.try_wait().unwrap());
        let code = status
            .code()
            .unwrap_or_else(|| 1000 + std::os::unix::process::ExitStatusExt::signal(&status).unwrap());
        let wall = self.began.elapsed();
        Output { code, stdout: stdout.join().unwrap(), stderr: stderr.join().unwrap(), wall }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads up to and with `text`, within a test's time.
#[track_caller]
pub(crate) fn read_until(from: &mut (impl Read + AsFd), text: &str) -> String {
    let mut seen = Vec::new();
    let mut byte = [0];
    while !seen.ends_with(text.as_bytes()) {
        let limit = Timespec { tv_sec: TEST_TIME.as_secs() as i64, tv_nsec: 0 };
        let ready = poll(&mut [PollFd::new(from, PollFlags::IN)], Some(&limit)).unwrap();
        let read = if ready > 0 { from.read(&mut byte).ok() } else { None };
        let shown = || String::from_utf8_lossy(&seen).into_owned();
        match read {
            Some(1) => seen.push(byte[0]),
            Some(_) => panic!("the end before `{text}`, after: {}", shown()),
            None => panic!("nothing more came before `{text}`, after: {}", shown()),
        }
    }
    String::from_utf8_lossy(&seen).into_owned()
}

/// Polls until there is an answer.
#[track_caller]
pub(crate) fn until<T>(what: &str, mut answer: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(answer) = answer() {
            return answer;
        }
        assert!(began.elapsed() < TEST_TIME, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
