//! The script, run by the host's own `sh` in a temporary directory. Python is a fake on the path: a shell script
//! that makes an environment of one file and notes what pip is asked for.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::*;

/// `-V`, `-m venv DIR` and `-m pip …`. In pip it appends to `pip.log`, waits while `hold` exists but not for
/// ever, and fails if `fail` does.
const FAKE_PYTHON: &str = r#"#!/bin/sh
case "$1 $2" in
"-V ") echo "Python 3.12.0 (fake)" ;;
"-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
"-m pip")
    shift 2
    echo "$*" >>"$FAKE_PLACE/pip.log"
    echo "fake pip says: $*"
    n=0
    while [ -e "$FAKE_PLACE/hold" ] && [ $n -lt 300 ]; do sleep 0.1; n=$((n + 1)); done
    if [ -e "$FAKE_PLACE/fail" ]; then exit 3; fi
    ;;
*) echo "fake python ran $*" ;;
esac
"#;
const PATIENCE: Duration = Duration::from_secs(30);

struct Package {
    place: TempDir,
    environment: PythonEnvironment,
}

impl Package {
    /// A package in a directory whose name needs quoting.
    fn new(manifests: &[&str]) -> Self {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("it's a package");
        std::fs::create_dir(&directory).unwrap();
        for manifest in manifests {
            std::fs::write(directory.join(manifest), "fake\n").unwrap();
        }
        let python = place.path().join("bin/python3");
        std::fs::create_dir(place.path().join("bin")).unwrap();
        std::fs::write(&python, FAKE_PYTHON).unwrap();
        std::fs::set_permissions(&python, PermissionsExt::from_mode(0o755)).unwrap();
        let mut environment = PythonEnvironment::new(directory.to_str().unwrap(), NetworkMode::On);
        environment.lock_wait = PATIENCE;
        environment.lock_expiry = Duration::from_secs(3);
        Self { place, environment }
    }

    fn at(&self, below: &str) -> PathBuf {
        Path::new(&self.environment.directory).join(below)
    }

    /// Beside the package, where the fake looks.
    fn beside(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    fn start(&self, command: &str) -> Child {
        let path = format!("{}:/usr/bin:/bin", self.beside("bin").display());
        Command::new("/bin/sh")
            .args(["-c", &self.environment.wrap(command)])
            .env_clear()
            .env("PATH", path)
            .env("FAKE_PLACE", self.place.path())
            .current_dir(self.place.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Of its own, so that it can be ended with all it started, as a box is.
            .process_group(0)
            .spawn()
            .unwrap()
    }

    fn run(&self, command: &str) -> (i32, String, String) {
        ended(self.start(command).wait_with_output().unwrap())
    }

    /// What pip was asked for so far.
    fn pip(&self) -> Vec<String> {
        let log = std::fs::read_to_string(self.beside("pip.log")).unwrap_or_default();
        log.lines().map(str::to_owned).collect()
    }

    fn wait_for(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let since = Instant::now();
        while !holds(self) {
            assert!(since.elapsed() < PATIENCE, "{what} did not come");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn lock(&self) -> PathBuf {
        self.at(".langbot/python-env.lock")
    }
}

fn ended(output: Output) -> (i32, String, String) {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
}

fn kill_group(child: &Child, signal: &str) {
    let group = format!("-{}", child.id());
    assert!(Command::new("kill").args(["-s", signal, "--", &group]).status().unwrap().success());
}

#[test]
fn an_environment_is_built_once_and_used() {
    let package = Package::new(&["requirements.txt"]);
    let directory = package.environment.directory.clone();
    let (code, out, err) = package.run("echo \"$VIRTUAL_ENV\"; command -v python; python x.py");
    let venv = format!("{directory}/.venv");
    assert_eq!(out, format!("{venv}\n{venv}/bin/python\nfake python ran x.py\n"), "{err}");
    assert_eq!(code, 0);
    assert!(err.contains("fake pip says"), "what pip prints goes to standard error: {err}");
    let installed = format!("install -r {directory}/requirements.txt");
    assert_eq!(package.pip(), ["install --upgrade pip setuptools wheel", &installed]);
    let (_, out, err) = package.run("echo \"$TMPDIR $TEMP $TMP $PIP_CACHE_DIR\"");
    assert_eq!(err, "");
    let tmp = format!("{directory}/.tmp");
    assert_eq!(out, format!("{tmp} {tmp} {tmp} {directory}/.cache/pip\n"));
    assert_eq!(package.pip().len(), 2, "nothing is built twice");
    assert!(!package.lock().exists());
}

#[test]
fn a_changed_manifest_or_a_missing_interpreter_builds_anew() {
    let package = Package::new(&["pyproject.toml"]);
    package.run("true");
    assert_eq!(package.pip()[1], format!("install {}", package.environment.directory));
    for change in [
        (&|package: &Package| std::fs::write(package.at("pyproject.toml"), "other").unwrap())
            as &dyn Fn(&Package),
        &|package| std::fs::write(package.at("setup.cfg"), "").unwrap(),
        &|package| std::fs::remove_file(package.at(".venv/bin/python")).unwrap(),
        &|package| std::fs::remove_file(package.at(".langbot/python-env.json")).unwrap(),
    ] {
        let before = package.pip().len();
        change(&package);
        assert_eq!(package.run("true").0, 0);
        assert_eq!(package.pip().len(), before + 2);
        package.run("true");
        assert_eq!(package.pip().len(), before + 2);
    }
}

// An environment that somebody made by hand is not ours to remove.
#[test]
fn an_environment_without_manifests_is_used_as_it_is() {
    let package = Package::new(&[]);
    std::fs::create_dir_all(package.at(".venv/bin")).unwrap();
    std::fs::copy(package.beside("bin/python3"), package.at(".venv/bin/python")).unwrap();
    std::fs::write(package.at(".venv/mine"), "").unwrap();
    let (code, out, err) = package.run("command -v python");
    assert_eq!((code, err.as_str()), (0, ""));
    assert_eq!(out.trim(), package.at(".venv/bin/python").to_str().unwrap());
    assert!(package.at(".venv/mine").exists());
    assert_eq!(package.pip(), [""; 0]);
}

// F1: lines, quotes and here-documents of the command arrive as they were written.
#[test]
fn commands_of_several_lines_run_as_they_are() {
    let package = Package::new(&["requirements.txt"]);
    let command = "cat <<'EOF'\n    indented $HOME\nit's \"quoted\" `x`\nEOF\nfor n in 1 2; do\n\techo \"$n\"\ndone\ncat <<-END\n\ttabs\n\tEND\nprintf '%s' 'no newline at the end'";
    let expected = "    indented $HOME\nit's \"quoted\" `x`\n1\n2\ntabs\nno newline at the end";
    let (code, out, err) = package.run(command);
    assert_eq!((code, out.as_str()), (0, expected), "{err}");
    let script = package.environment.wrap(command);
    let checked = Command::new("/bin/sh").args(["-n", "-c", &script]).status().unwrap();
    assert!(checked.success());
    // A command that is wrong is wrong by itself.
    let (code, _, err) = package.run("if then");
    assert_ne!(code, 0);
    assert!(err.to_lowercase().contains("syntax error"), "{err}");
}

// F7: no option of the script is the command's, nor any of its names.
#[test]
fn a_failing_step_does_not_end_the_command() {
    let package = Package::new(&["requirements.txt"]);
    let (code, out, _) = package.run("false\necho on; echo \"[$sc_dir$sc_token]\"; trap; exit 7");
    assert_eq!((code, out.as_str()), (7, "on\n[]\n"));
    let (_, out, _) = package.run("case $- in *e*) echo leaked;; *) echo clean;; esac");
    assert_eq!(out, "clean\n");
}

#[test]
fn a_build_that_fails_says_so_and_the_command_does_not_run() {
    let package = Package::new(&["requirements.txt"]);
    std::fs::write(package.beside("fail"), "").unwrap();
    let (code, out, err) = package.run("echo ran");
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(err.contains("could not be built; the command was not run"), "{err}");
    assert!(!package.lock().exists(), "the lock is given back");
    std::fs::remove_file(package.beside("fail")).unwrap();
    assert_eq!(package.run("echo ran").1, "ran\n");
}

// F7: without a network pip would wait for one; the command runs and its reader knows what is missing.
#[test]
fn without_a_network_nothing_is_built_and_it_is_said() {
    let mut package = Package::new(&["requirements.txt"]);
    package.environment.network = NetworkMode::Off;
    let (code, out, err) = package.run("echo ran; exit 4");
    assert_eq!((code, out.as_str()), (4, "ran\n"));
    assert!(err.contains("cannot be built: this box has no network"), "{err}");
    assert_eq!(package.pip(), [""; 0]);
    package.environment.network = NetworkMode::On;
    package.run("true");
    package.environment.network = NetworkMode::Off;
    let (_, out, err) = package.run("command -v python");
    assert_eq!(err, "", "what was built with a network serves without");
    assert_eq!(out.trim(), package.at(".venv/bin/python").to_str().unwrap());
}

#[test]
fn a_box_without_python_or_with_a_read_only_package_still_runs_the_command() {
    let package = Package::new(&["requirements.txt"]);
    std::fs::remove_file(package.beside("bin/python3")).unwrap();
    let script = package.environment.wrap("echo ran");
    // Only what the script itself needs.
    let tools = package.beside("tools");
    std::fs::create_dir(&tools).unwrap();
    for tool in ["mkdir", "sh"] {
        let found =
            ["/bin", "/usr/bin"].map(|place| Path::new(place).join(tool)).into_iter().find(|p| p.exists());
        std::os::unix::fs::symlink(found.unwrap(), tools.join(tool)).unwrap();
    }
    let output = Command::new("/bin/sh").args(["-c", &script]).env("PATH", &tools).output().unwrap();
    let (code, out, err) = ended(output);
    assert_eq!((code, out.as_str()), (0, "ran\n"), "{err}");
    assert!(err.contains("this box has no python3"), "{err}");
    // A file where the directory should be: cannot be written, also not by root.
    let package = Package::new(&["requirements.txt"]);
    std::fs::write(package.at(".langbot"), "").unwrap();
    let (code, out, err) = package.run("echo ran");
    assert_eq!((code, out.as_str()), (0, "ran\n"));
    assert!(err.contains("cannot be written"), "{err}");
}

#[test]
fn builds_at_the_same_time_are_one_build() {
    let package = Package::new(&["requirements.txt"]);
    std::fs::write(package.beside("hold"), "").unwrap();
    let children: Vec<Child> = (0..4).map(|n| package.start(&format!("echo {n}"))).collect();
    package.wait_for("a build", |package| !package.pip().is_empty());
    std::fs::remove_file(package.beside("hold")).unwrap();
    for (n, child) in children.into_iter().enumerate() {
        let (code, out, err) = ended(child.wait_with_output().unwrap());
        assert_eq!((code, out), (0, format!("{n}\n")), "{err}");
    }
    assert_eq!(package.pip().len(), 2, "one build has two steps of pip");
    assert!(!package.lock().exists());
}

// F7: an owner that is gone with all it started does not keep the next one waiting for ever.
#[test]
fn a_killed_build_blocks_nobody_for_ever() {
    let package = Package::new(&["requirements.txt"]);
    std::fs::write(package.beside("hold"), "").unwrap();
    let mut killed = package.start("echo never");
    package.wait_for("a build", |package| !package.pip().is_empty());
    kill_group(&killed, "KILL");
    killed.wait().unwrap();
    assert!(package.lock().exists(), "nothing could be cleaned up");
    std::fs::remove_file(package.beside("hold")).unwrap();
    let waiting: Vec<Child> = (0..3).map(|_| package.start("echo ran")).collect();
    for child in waiting {
        let (code, out, err) = ended(child.wait_with_output().unwrap());
        assert_eq!((code, out.as_str()), (0, "ran\n"), "{err}");
    }
    assert_eq!(package.pip().len(), 3, "the step that was killed, and one whole build");
    assert!(!package.lock().exists());
}

#[test]
fn a_live_build_is_waited_for_longer_than_a_dead_one_s_lock_counts() {
    let mut package = Package::new(&["requirements.txt"]);
    package.environment.lock_wait = Duration::from_secs(6);
    std::fs::write(package.beside("hold"), "").unwrap();
    let builder = package.start("echo built");
    package.wait_for("a build", |package| !package.pip().is_empty());
    let (code, out, err) = package.run("echo never");
    assert_eq!((code, out.as_str()), (1, ""));
    let lock = package.lock();
    let message = format!("Timed out waiting for Python environment lock: {}", lock.display());
    assert!(err.contains(&message), "{err}");
    assert!(!err.contains("Removing"), "{err}");
    std::fs::remove_file(package.beside("hold")).unwrap();
    assert_eq!(ended(builder.wait_with_output().unwrap()).1, "built\n");
}

// A lock that somebody else left behind is an empty directory.
#[test]
fn a_lock_without_an_owner_expires_too() {
    let package = Package::new(&["requirements.txt"]);
    std::fs::create_dir_all(package.lock()).unwrap();
    let (code, out, err) = package.run("echo ran");
    assert_eq!((code, out.as_str()), (0, "ran\n"), "{err}");
    assert!(err.contains("Removing the Python environment lock"), "{err}");
}

#[test]
fn a_build_that_is_asked_to_end_gives_its_lock_back() {
    let package = Package::new(&["requirements.txt"]);
    std::fs::write(package.beside("hold"), "").unwrap();
    let mut child = package.start("echo never");
    package.wait_for("a build", |package| !package.pip().is_empty());
    kill_group(&child, "TERM");
    assert_eq!(child.wait().unwrap().code(), Some(143));
    assert!(!package.lock().exists());
    assert!(!package.at(".langbot/python-env.json").exists());
}

proptest::proptest! {
    #![proptest_config(proptest::test_runner::Config::with_cases(64))]
    // F1: no text that a command carries is touched on its way.
    #[test]
    fn any_text_reaches_the_command(text in "[ -~\nä😀\t]{0,60}") {
        let package = Package::new(&[]);
        let command = format!("printf %s {}\n", shell_word(&text));
        let (code, out, err) = package.run(&command);
        proptest::prop_assert_eq!((code, out, err), (0, text, String::new()));
    }
}
