//! Other sandboxes, where they are installed and answer, and our own command line beside them.

use std::ffi::OsString;
use std::fmt;
use std::io::Write;
use std::process::{Command, Stdio};

use crate::args::Options;
use crate::catalog::Row;
use crate::server::reference;

/// A program to be run and timed.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) row: Row,
    /// In one turn: few where each takes a tenth of a second.
    pub(crate) samples: u32,
    argv: Vec<OsString>,
    /// Removed at the end.
    container: Option<Container>,
}

/// A running container, for `exec`.
#[derive(Debug)]
struct Container {
    engine: &'static str,
    id: String,
}

impl Peer {
    fn new(row: Row, samples: u32, argv: &str) -> Self {
        Self { row, samples, argv: argv.split(' ').map(OsString::from).collect(), container: None }
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.argv[0]);
        command.args(&self.argv[1..]).stdin(Stdio::null()).stderr(Stdio::null());
        command
    }

    fn works(&self) -> bool {
        self.command().stdout(Stdio::null()).status().is_ok_and(|status| status.success())
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.argv[0].display())
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = output(self.engine, &["rm", "-f", &self.id]);
    }
}

/// Those that work here; the others are named on stderr.
pub(crate) fn find(options: &Options) -> Vec<Peer> {
    let mut peers = vec![
        Peer::new(
            Row::Unshare,
            4,
            "unshare --user --map-root-user --mount --pid --fork --net --ipc --uts true",
        ),
        Peer::new(
            Row::Bwrap,
            4,
            "bwrap --unshare-all --ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/lib /lib \
             --symlink usr/lib64 /lib64 --proc /proc --dev /dev true",
        ),
        Peer::new(Row::Nsjail, 4, "nsjail -Mo --really_quiet --chroot / -- /bin/true"),
    ];
    peers.extend(engine("docker", Row::DockerRun, Some(Row::DockerExec)));
    peers.extend(engine("podman", Row::PodmanRun, None));
    match options.sandcrate() {
        Some(program) => {
            let mut ours = Peer::new(Row::CliRun, 4, "sandcrate run -- true");
            ours.argv[0] = program.into();
            peers.push(ours);
        }
        None => skip("sandcrate run", "the program is not built; see --sandcrate"),
    }
    peers.retain(|peer| {
        let works = peer.works();
        if !works {
            skip(&peer.to_string(), "not installed, or it cannot run `true` here");
        }
        works
    });
    peers
}

/// A container engine whose daemon answers and that has an image to run `true` in.
fn engine(name: &'static str, run_row: Row, exec_row: Option<Row>) -> Vec<Peer> {
    let image = match image(name, reference::IMAGE) {
        Ok(image) => image,
        Err(why) => {
            skip(name, why);
            return Vec::new();
        }
    };
    let mut peers = vec![Peer::new(run_row, 1, &format!("{name} run --rm --network none {image} true"))];
    if let Some(row) = exec_row
        && let Some(id) = output(name, &["run", "-d", "--rm", "--network", "none", &image, "sleep", "3600"])
    {
        let id = id.trim().to_owned();
        let mut exec = Peer::new(row, 2, &format!("{name} exec {id} true"));
        exec.container = Some(Container { engine: name, id });
        peers.push(exec);
    }
    peers
}

/// An image that a container engine has, the wanted one if it is there, or why none can be used.
pub(crate) fn image(engine: &str, wanted: &str) -> Result<String, &'static str> {
    if output(engine, &["info"]).is_none() {
        return Err("not installed, or no daemon answers");
    }
    let images = output(engine, &["images", "--format", "{{.Repository}}:{{.Tag}}"]).unwrap_or_default();
    let mut usable = images.lines().filter(|image| !image.contains("<none>"));
    let found = usable.clone().find(|image| *image == wanted).or_else(|| usable.next());
    found.map(str::to_owned).ok_or("it has no image; pull one first (debian:stable-slim)")
}

/// What a command prints, when it succeeds.
pub(crate) fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let done = Command::new(program).args(arguments).stdin(Stdio::null()).output().ok()?;
    done.status.success().then(|| String::from_utf8_lossy(&done.stdout).into_owned())
}

fn skip(what: &str, why: &str) {
    let _ = writeln!(std::io::stderr(), "bench: SKIP {what}: {why}");
}
