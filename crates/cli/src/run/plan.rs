//! From flags to a checked plan: nothing starts before all of it is known to be acceptable.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use sandcrate_backend::{
    Command, DiskLimit, ExecRequest, Limits, Mount, MountAccess, RootAccess, SessionId, SessionSpec,
    StdinMode, check_workdir,
};
use sandcrate_protocol::network::PortRequest;

use super::args::RunArgs;
use super::{environment, network, strictness, terminal, volume};
use crate::args::OutputFormat;
use crate::failure::Failure;
use crate::toolchain::{self, Surroundings, ToolRoot, Toolchain};

/// Where relative workdirs start, and the place that is private storage unless a volume covers it.
const WORKSPACE: &str = "/workspace";

/// Below this not even a shell starts, and the failure would look like a fault of ours.
const MIN_MEMORY: u64 = 8 << 20;

/// Everything that one `run` does.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) spec: SessionSpec,
    pub(super) request: ExecRequest,
    /// Mounts that were added for the program.
    pub(super) toolchain: Vec<ToolRoot>,
    pub(super) ports: Vec<PortRequest>,
    pub(super) input: Input,
    pub(super) format: OutputFormat,
    pub(super) quiet: bool,
}

/// Where the command's standard input comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Input {
    None,
    /// Our own standard input.
    Ours,
}

/// Checks the flags. `own_state` are directories of ours that no box may see.
pub(super) fn plan(args: RunArgs, around: &Surroundings, own_state: &[PathBuf]) -> anyhow::Result<Plan> {
    if args.tty && args.output == OutputFormat::Json {
        return Err(Failure::invalid("--tty cannot be combined with --output json")
            .hint("a terminal is live; leave out -t to have the streams in the document")
            .into());
    }
    let id = match args.name {
        Some(name) => SessionId::new(name).context("--name")?,
        None => SessionId::new(default_name())?,
    };
    let workdir = workdir(&args.workdir)?;
    let mut mounts = Vec::new();
    for flag in &args.volume {
        mounts.push(volume::mount(flag, &around.cwd, own_state)?);
    }
    let mut env = environment::variables(&args.env, &args.env_file, |key| std::env::var_os(key))?;
    let mut command = args.command;
    // Programs of this machine have no place in an image's root.
    let toolchain = match args.image {
        Some(_) => Toolchain::default(),
        None => add_toolchain(&mut command, &mut mounts, &workdir, around, own_state),
    };
    let root = if args.writable_root { RootAccess::Writable } else { RootAccess::ReadOnly };
    environment::prepend_path(&mut env, &toolchain.path, root)?;
    if args.tty && !env.iter().any(|(key, _)| key == "TERM") {
        let term = std::env::var("TERM").unwrap_or_else(|_| "xterm".to_owned());
        env.push(("TERM".to_owned(), term));
    }

    let mut spec = SessionSpec::new(id);
    let ports = args.network.ports()?;
    spec.network = network::network(args.network.request()?, !ports.is_empty())?;
    spec.root = root;
    spec.image = args.image;
    spec.limits = limits(args.memory, args.cpus, args.pids_limit, args.tmp_size, args.quota)?;
    spec.mounts = mounts;
    spec.env = env;
    spec.workdir = workdir;
    spec.strictness = strictness::strictness(&args.require);
    spec.validate()?;

    let mut request = ExecRequest::new(Command::Argv(command));
    request.timeout = (args.timeout > Duration::ZERO).then_some(args.timeout);
    let input = if args.interactive { Input::Ours } else { Input::None };
    if args.interactive || args.tty {
        request.stdin = StdinMode::Piped;
    }
    request.pty = args.tty.then(terminal::size);
    request.validate()?;
    warn_of_odd_input(args.interactive, args.tty, args.quiet);
    let toolchain = toolchain.roots;
    Ok(Plan { spec, request, toolchain, ports, input, format: args.output, quiet: args.quiet })
}

/// Unlikely to be the name of another box that the same person has open.
fn default_name() -> String {
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.subsec_nanos());
    format!("run-{}-{nanos:08x}", std::process::id())
}

fn workdir(text: &str) -> anyhow::Result<String> {
    let absolute = if text.starts_with('/') { text.to_owned() } else { format!("{WORKSPACE}/{text}") };
    check_workdir(&absolute).context("--workdir")?;
    Ok(absolute)
}

fn limits(memory: u64, cpus: u32, pids: u32, tmp: u64, quota: Option<u64>) -> anyhow::Result<Limits> {
    if memory < MIN_MEMORY {
        return Err(Failure::invalid(format!("--memory {memory}: must be at least 8M"))
            .hint("sizes are such as 512M, 1G, 64k or a number of bytes")
            .into());
    }
    let mut limits =
        Limits { memory_bytes: memory, cpu_millis: cpus, pids, tmp_bytes: tmp, ..Limits::default() };
    if let Some(bytes) = quota {
        limits.disk = DiskLimit::Hard(bytes);
    }
    Ok(limits)
}

/// Adds what the program stands on, except where the person's own volumes already decide what is there.
fn add_toolchain(
    command: &mut [OsString],
    mounts: &mut Vec<Mount>,
    workdir: &str,
    around: &Surroundings,
    own_state: &[PathBuf],
) -> Toolchain {
    let Some(program) = command.first_mut() else { return Toolchain::default() };
    let in_box = |path: &Path| {
        let places = mounts.iter().map(|mount| mount.target.as_str()).chain([WORKSPACE, workdir]);
        places.filter(|place| *place != "/").any(|place| path.starts_with(place))
    };
    let path = Path::new(program);
    if path.is_absolute() && in_box(path) {
        return Toolchain::default();
    }
    let mut toolchain = toolchain::resolve(program, around);
    if let Some(target) = toolchain.program.take() {
        *program = target.into_os_string();
    }
    // What the rules for mounts refuse stays out; the box will then say that the program is not there.
    toolchain.roots.retain(|root| {
        !in_box(&root.path)
            && volume::source_of(&root.source, own_state).is_ok()
            && root.path.to_str().is_some_and(|target| sandcrate_backend::check_target(target).is_ok())
    });
    for root in &toolchain.roots {
        let target = root.path.to_string_lossy().into_owned();
        mounts.push(Mount::new(root.source.clone(), target, MountAccess::ReadOnly));
    }
    toolchain
}

/// `-t` without `-i` leaves a program waiting for keys that never come.
fn warn_of_odd_input(interactive: bool, tty: bool, quiet: bool) {
    if tty && !interactive && !quiet && std::io::stdin().is_terminal() {
        crate::output::notice("note: -t without -i: the program gets no keys, except Ctrl-C");
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
