//! `sandcrate session create`.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use serde_json::{Map, Value, json};

use super::progress;
use crate::args::OutputFormat;
use crate::client::address::Target;
use crate::client::answer;
use crate::client::http::Client;
use crate::failure::Failure;
use crate::network::NetworkArgs;
use crate::run::{environment, volume};
use crate::units::{parse_cpus, parse_duration, parse_size};

/// The private storage of a box; a mount there is the workspace itself.
const WORKSPACE: &str = "/workspace";

/// Create a session and print its id
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sandcrate session create                                 a name is made up
  sandcrate session create build -m 2G -c 2 --ttl 1h
  sandcrate session create work -v .:/workspace            the current directory, read-write
  sandcrate session create notes --persistent --label user=42
  sandcrate session create web --network on -p 8080:80     the Internet, and a port of the box
  sandcrate session create pip --allow-net index.example.org --allow-net files.example.org

A session of that name that fits is given back; one that does not is an error. Flags that are left
out take the server's defaults: 512M of memory, 1 CPU, 128 processes, no network, a read-only root.
Directories for -v are those of the server's host, below roots that it allows.")]
pub(crate) struct CreateArgs {
    /// Name of the session: any text without control characters
    #[arg(value_name = "NAME")]
    name: Option<String>,

    /// Memory of the whole box, in whole MiB
    #[arg(short, long, value_name = "SIZE", value_parser = parse_size, allow_negative_numbers = true)]
    memory: Option<u64>,

    /// CPUs the box may use at a time
    #[arg(short, long, value_name = "NUMBER", value_parser = parse_cpus, allow_negative_numbers = true)]
    cpus: Option<u32>,

    /// Processes and threads of the box
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(2..=4_194_304))]
    pids_limit: Option<u32>,

    /// Hard limit for files in /workspace, HOME and a writable root, in whole MiB
    #[arg(long, value_name = "SIZE", value_parser = parse_size, allow_negative_numbers = true)]
    quota: Option<u64>,

    #[command(flatten)]
    network: NetworkArgs,

    /// Writable root: commands are the box's root without capabilities
    #[arg(long)]
    writable_root: bool,

    /// Files outlive the box and the server, until the session is removed
    #[arg(long)]
    persistent: bool,

    /// A label, for `session ls --label`
    #[arg(long, value_name = "KEY=VALUE")]
    label: Vec<String>,

    /// So long without use, and the session ends [default: the server's]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    ttl: Option<Duration>,

    /// Mount a directory of the server's host; a relative SRC starts at the current directory
    #[arg(short, long, value_name = "SRC:DST[:ro]", value_parser = clap::value_parser!(OsString))]
    volume: Vec<OsString>,

    /// Image of the box, on backends that have images
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,

    /// Make it on this backend, where the server lets requests choose
    #[arg(long, value_name = "NAME")]
    backend: Option<String>,

    /// Set a variable for every command; a bare KEY passes the caller's value on
    #[arg(short, long, value_name = "KEY[=VALUE]", value_parser = clap::value_parser!(OsString))]
    env: Vec<OsString>,

    /// Where commands start
    #[arg(short, long, value_name = "DIR")]
    workdir: Option<String>,

    /// The id alone, or the whole session
    #[arg(short, long, value_name = "FORMAT", default_value = "raw")]
    pub(super) output: OutputFormat,

    #[command(flatten)]
    target: Target,
}

pub(super) async fn run(args: CreateArgs) -> anyhow::Result<ExitCode> {
    let cwd = std::env::current_dir().context("finding the current directory")?;
    let body = body(&args, &cwd, |key| std::env::var_os(key))?;
    let client = Client::new(&args.target)?;
    let session = progress::create(&client, &body).await?;
    let id = session["session_id"].as_str().ok_or_else(|| client.garbled("a session without an id"))?;
    Ok(answer(args.output, &session, &format!("{id}\n")))
}

fn body(
    args: &CreateArgs,
    cwd: &Path,
    inherited: impl Fn(&str) -> Option<OsString>,
) -> anyhow::Result<Value> {
    let mut body = Map::new();
    let mut set = |key: &str, value: Option<Value>| {
        if let Some(value) = value {
            body.insert(key.to_owned(), value);
        }
    };
    set("session_id", args.name.as_ref().map(|name| json!(name)));
    set("memory_mb", args.memory.map(|bytes| json!(mebibytes(bytes))));
    set("cpus", args.cpus.map(|thousandths| json!(f64::from(thousandths) / 1000.0)));
    set("pids_limit", args.pids_limit.map(|limit| json!(limit)));
    set("workspace_quota_mb", args.quota.map(|bytes| json!(mebibytes(bytes))));
    set("network", args.network.request()?.map(|network| json!(network)));
    let ports = args.network.ports()?;
    set("ports", (!ports.is_empty()).then(|| json!(ports)));
    set("read_only_rootfs", args.writable_root.then_some(Value::Bool(false)));
    set("persistent", args.persistent.then_some(Value::Bool(true)));
    set("image", args.image.as_ref().map(|image| json!(image)));
    set("backend", args.backend.as_ref().map(|backend| json!(backend)));
    set("workdir", args.workdir.as_ref().map(|dir| json!(dir)));
    set("ttl_sec", args.ttl.map(ttl).transpose()?.map(|seconds| json!(seconds)));
    let labels = labels(&args.label)?;
    set("labels", (!labels.is_empty()).then(|| json!(labels)));
    let env: Map<_, _> = environment::variables(&args.env, &[], inherited)?
        .into_iter()
        .map(|(key, value)| (key, Value::String(value)))
        .collect();
    set("env", (!env.is_empty()).then(|| json!(env)));
    let mut extra = Vec::new();
    for flag in &args.volume {
        let (source, target, mode) = volume::request(flag, cwd)?;
        if target == WORKSPACE {
            set("host_path", Some(json!(source)));
            set("host_path_mode", Some(json!(mode)));
        } else {
            extra.push(json!({"host_path": source, "mount_path": target, "mode": mode}));
        }
    }
    set("extra_mounts", (!extra.is_empty()).then(|| json!(extra)));
    Ok(Value::Object(body))
}

/// The server counts whole MiB; a part of one is a whole one.
fn mebibytes(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20)
}

fn ttl(time: Duration) -> anyhow::Result<u64> {
    match whole_seconds(time) {
        0 => Err(Failure::invalid("--ttl must be more than 0").into()),
        seconds => Ok(seconds),
    }
}

/// The server counts whole seconds; a part of one is a whole one.
pub(in crate::client) fn whole_seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

fn labels(flags: &[String]) -> anyhow::Result<Map<String, Value>> {
    let mut labels = Map::new();
    for flag in flags {
        match flag.split_once('=') {
            Some((key, value)) if !key.is_empty() => labels.insert(key.to_owned(), json!(value)),
            _ => return Err(Failure::invalid(format!("--label `{flag}`: the form is KEY=VALUE")).into()),
        };
    }
    Ok(labels)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Parsed {
        #[command(flatten)]
        args: CreateArgs,
    }

    fn body_of(flags: &[&str], cwd: &Path) -> anyhow::Result<Value> {
        let argv = ["create"].iter().chain(flags);
        body(&Parsed::try_parse_from(argv)?.args, cwd, |_| Some("caller's".into()))
    }

    #[test]
    fn what_is_left_out_is_the_server_s_to_choose() {
        assert_eq!(body_of(&[], Path::new("/")).unwrap(), json!({}));
    }

    #[test]
    fn every_flag_has_its_field() {
        let dir = tempfile::tempdir().unwrap();
        let cwd = dir.path().canonicalize().unwrap();
        std::fs::create_dir(cwd.join("data")).unwrap();
        let flags = [
            "demo",
            "-m",
            "1.5M",
            "-c",
            "0.5",
            "--pids-limit",
            "64",
            "--quota",
            "1G",
            "--allow-net",
            "a.example:443",
            "-p",
            "8080:80",
            "--writable-root",
            "--persistent",
            "--label",
            "a=b=c",
            "--ttl",
            "1500ms",
            "-v",
            ".:/workspace:ro",
            "-v",
            "data:/data",
            "--image",
            "debian",
            "--backend",
            "docker",
            "-e",
            "A=1",
            "-e",
            "B",
            "-w",
            "/tmp",
        ];
        let expected = json!({
            "session_id": "demo", "memory_mb": 2, "cpus": 0.5, "pids_limit": 64, "workspace_quota_mb": 1024,
            "network": "allow a.example:443", "ports": ["127.0.0.1:8080:80"], "read_only_rootfs": false, "persistent": true, "labels": {"a": "b=c"}, "ttl_sec": 2,
            "host_path": cwd, "host_path_mode": "ro", "image": "debian", "backend": "docker", "workdir": "/tmp",
            "env": {"A": "1", "B": "caller's"},
            "extra_mounts": [{"host_path": cwd.join("data"), "mount_path": "/data", "mode": "rw"}],
        });
        assert_eq!(body_of(&flags, &cwd).unwrap(), expected);
    }

    #[test]
    fn what_is_not_acceptable_is_named() {
        for (flags, word) in [
            (&["--label", "x"][..], "--label `x`"),
            (&["--ttl", "0"], "--ttl"),
            (&["-v", "nocolon"], "nocolon"),
            (&["-v", "/a:b"], "/a:b"),
            (&["-e", "=x"], "--env"),
            (&["--memory", "lots"], "lots"),
            (&["--network", "lan"], "--network lan"),
            (&["--deny-net", "x.example"], "--deny-net"),
            (&["-p", "x"], "--publish"),
        ] {
            let error = format!("{:#}", body_of(flags, Path::new("/")).unwrap_err());
            assert!(error.contains(word), "{flags:?}: {error}");
        }
    }
}
