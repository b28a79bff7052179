//! A daemon that is killed with -9 leaves no process and no cgroup, and what it left on disk goes at the next start.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use sandcrate_backend::{Backend, ExecRequest, SessionId, SessionSpec};

use crate::harness::{cgroups_of, open};
use crate::own::{Ground, Outcome, processes};

const DAEMON: &str = "sandcrate-nsjail-test-daemon";

/// What its commands are told by, from every other process of the machine.
fn mark(nsjail: &Path) -> String {
    format!("{}", 7_654_000 + nsjail.as_os_str().len())
}

/// In a process that was started as the daemon to be killed, does not return.
pub(crate) fn dispatch() {
    let arguments: Vec<String> = std::env::args().collect();
    let [name, state, nsjail] = arguments.as_slice() else { return };
    if name != DAEMON {
        return;
    }
    let mark = mark(nsjail.as_ref());
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let backend = open(state.as_ref(), nsjail.as_ref()).await;
        let id = SessionId::new("doomed").expect("an id");
        let info = backend.start(SessionSpec::new(id.clone())).await.expect("a box");
        let run =
            backend.exec(&id, ExecRequest::shell(format!("sleep {mark} & echo up; sleep {mark}"))).await;
        let mut run = run.expect("a command");
        run.next().await;
        eprintln!("{}", info.backend_id);
        std::future::pending::<()>().await;
    });
}

pub(crate) async fn check(ground: &Ground) -> Outcome {
    let state = ground.harness.scratch.path().join("doomed-state");
    let mut daemon = Command::new("/proc/self/exe")
        .arg0(DAEMON)
        .args([&state, &ground.nsjail])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| error.to_string())?;
    let mut said = String::new();
    if let Some(stderr) = daemon.stderr.take() {
        BufReader::new(stderr).read_line(&mut said).map_err(|error| error.to_string())?;
    }
    let mark = mark(&ground.nsjail);
    let alive = processes(&mark).count();
    daemon.kill().and_then(|()| daemon.wait()).map_err(|error| error.to_string())?;
    let instance = said.split('-').next().unwrap_or_default().to_owned();
    if alive == 0 || instance.len() != 16 {
        return Err(format!("the daemon did not come up: {said:?}"));
    }
    let deadline = Instant::now() + Duration::from_secs(20);
    while processes(&mark).count() > 0 {
        if Instant::now() > deadline {
            return Err(format!("{} processes outlive their daemon", processes(&mark).count()));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // Nobody else is there to remove them.
    while !cgroups_of(&instance).is_empty() && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let left = cgroups_of(&instance);
    let next = open(&state, &ground.nsjail).await;
    let directory = state.join("nsjail").join(&instance).exists();
    next.shutdown().await;
    if left.is_empty() && !directory {
        Ok(())
    } else {
        Err(format!("left are {left:?}, directory {directory}"))
    }
}
