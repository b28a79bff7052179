//! What a Docker daemon itself takes for many containers at once: made and started by its API, with nothing in them
//! but `sleep` and nobody who waits for more. No runtime on that daemon can be faster.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, ensure};
use serde_json::{Value, json};

const DEFAULT_SOCKET: &str = "/var/run/docker.sock";
/// As many as ask at a time: more only wait in the daemon.
const ASKING: usize = 16;

/// Seconds until all of them run.
pub(super) fn at_once(image: &str, count: usize) -> anyhow::Result<f64> {
    let socket = std::env::var("DOCKER_HOST").ok();
    let socket =
        PathBuf::from(socket.as_deref().map_or(DEFAULT_SOCKET, |host| host.trim_start_matches("unix://")));
    let ask = |method: &str, path: &str, body: Option<&Value>| ask(&socket, method, path, body);
    let body = json!({
        "Image": image, "Cmd": ["sleep", "3600"], "HostConfig": {"NetworkMode": "none", "AutoRemove": true},
    });
    let make = || {
        let made = ask("POST", "/containers/create", Some(&body))?;
        let id = made["Id"].as_str().context("a container without an id")?.to_owned();
        ask("POST", &format!("/containers/{id}/start"), None)?;
        anyhow::Ok(id)
    };
    let began = Instant::now();
    let ids = by_many(&(0..count).collect::<Vec<_>>(), |_| make());
    let time = began.elapsed();
    let (made, failed): (Vec<_>, Vec<_>) = ids.into_iter().partition(Result::is_ok);
    let made: Vec<String> = made.into_iter().flatten().collect();
    by_many(&made, |id| ask("DELETE", &format!("/containers/{id}?force=true"), None))
        .into_iter()
        .collect::<anyhow::Result<Vec<_>>>()?;
    failed.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    Ok(time.as_secs_f64())
}

fn by_many<T: Sync, R: Send>(
    all: &[T],
    act: impl Fn(&T) -> anyhow::Result<R> + Sync,
) -> Vec<anyhow::Result<R>> {
    let share = all.len().div_ceil(ASKING).max(1);
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            all.chunks(share).map(|some| scope.spawn(|| some.iter().map(&act).collect::<Vec<_>>())).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap_or_default()).collect()
    })
}

fn ask(socket: &PathBuf, method: &str, path: &str, body: Option<&Value>) -> anyhow::Result<Value> {
    let mut stream = UnixStream::connect(socket)?;
    let body = body.map(Value::to_string).unwrap_or_default();
    write!(
        stream,
        "{method} /v1.40{path} HTTP/1.1\r\nHost: docker\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no answer of the daemon")?;
    ensure!(
        head.split(' ').nth(1).is_some_and(|status| status.starts_with('2')),
        "{method} {path}: {answer}"
    );
    Ok(serde_json::from_str(body).unwrap_or(Value::Null))
}
