//! A host with one neighbour: the namespace that this program runs in, and one that plays the Internet.

use std::io::{BufRead, BufReader};
use std::net::IpAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::thread::{CapabilitySet, CapabilitySets, clear_ambient_capability_set, set_capabilities};

/// The host's address towards the Internet.
pub(crate) const HOST: &str = "198.51.100.1";
/// Another address of the host, inside a range that tests grant.
pub(crate) const HOST_IN_RANGE: &str = "203.0.113.200";
const RESOLVER: &str = "198.51.100.2";
/// Where the Internet has files, and a repository.
pub(crate) const FILES: u16 = 8000;
pub(crate) const INTERNET_ROLE: &str = "net-test-internet";

/// Why there can be no world here.
pub(crate) fn missing() -> Option<String> {
    for program in ["ip", "unshare", "nsenter", "curl", "python3", "openssl", "git", "setpriv"] {
        let found =
            Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        if found.is_err() {
            return Some(format!("no program `{program}`"));
        }
    }
    if let Err(error) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/net/tun") {
        return Some(format!("/dev/net/tun: {error}"));
    }
    let tried = apart().arg("true").stderr(Stdio::null()).status();
    if tried.is_ok_and(|status| status.success()) { None } else { Some("unshare --net fails".to_owned()) }
}

/// A command that runs what it is given in namespaces of its own. An ordinary user keeps his id and has the
/// privileges of his own namespaces, until the world stands.
pub(crate) fn apart() -> Command {
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-current-user", "--keep-caps"]);
    }
    command.args(["--net", "--mount", "--kill-child", "--fork"]);
    command
}

pub(crate) struct World {
    internet: Child,
    files: Child,
    _scratch: tempfile::TempDir,
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.files.kill();
        let _ = self.files.wait();
        // At the end of its input it ends its own servers.
        drop(self.internet.stdin.take());
        let _ = self.internet.wait();
    }
}

pub(crate) fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().unwrap();
    assert!(status.success(), "ip {arguments}");
}

/// An address from text.
pub(crate) fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

impl World {
    /// Call before any thread exists: an ordinary user's privileges over his namespaces are given up at the end.
    pub(crate) fn start() -> Self {
        ip("link set lo up");
        let mut internet = Command::new("unshare")
            .args(["--net", "--kill-child", "--fork"])
            .arg(std::env::current_exe().unwrap())
            .arg(INTERNET_ROLE)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(internet.stdout.take().unwrap());
        let pid = line(&mut lines);
        ip(&format!("link add up0 type veth peer name down0 netns {pid}"));
        for command in [
            "addr add 198.51.100.1/24 dev up0",
            "addr add 203.0.113.200/32 dev lo",
            "-6 addr add 2001:db8:a::1/64 dev up0 nodad",
            "link set up0 up",
            "route add default via 198.51.100.2",
            "-6 route add default via 2001:db8:a::2 dev up0",
        ] {
            ip(command);
        }
        assert_eq!(line(&mut lines), "ready");
        let scratch = tempfile::Builder::new().prefix("sandcrate-net-").tempdir_in("/var/tmp").unwrap();
        let files = serve_files(&pid, scratch.path());
        // The daemon asks the Internet's name server, as a host does.
        let resolver = scratch.path().join("resolv.conf");
        std::fs::write(&resolver, format!("nameserver {RESOLVER}\n")).unwrap();
        let place = std::fs::canonicalize("/etc/resolv.conf").unwrap();
        let bound = Command::new("mount").arg("--bind").arg(&resolver).arg(place).status().unwrap();
        assert!(bound.success(), "binding resolv.conf");
        // Who may have echo sockets, where we may say so: in a namespace of an ordinary user, his own group.
        let group = rustix::process::getegid().as_raw();
        let range = if group == 0 { "0 2147483647".to_owned() } else { format!("{group} {group}") };
        std::fs::write("/proc/sys/net/ipv4/ping_group_range", range).unwrap();
        if !rustix::process::geteuid().is_root() {
            let none = CapabilitySet::empty();
            clear_ambient_capability_set().unwrap();
            set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
                .unwrap();
        }
        Self { internet, files, _scratch: scratch }
    }
}

/// A web server in the Internet with a small repository.
fn serve_files(pid: &str, scratch: &Path) -> Child {
    let made = Command::new("sh")
        .arg("-c")
        .arg(
            "set -e; mkdir site; git -c init.defaultBranch=main init -q work; cd work; echo hello > greeting; \
             git add .; git -c user.name=t -c user.email=t@t commit -qm first; cd ..; \
             git clone -q --bare work site/small.git; git -C site/small.git update-server-info; \
             head -c 3000000 /dev/urandom > site/blob",
        )
        .current_dir(scratch)
        .env("HOME", scratch)
        .status()
        .unwrap();
    assert!(made.success(), "making a repository");
    // Ends with us, however we end.
    Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "nsenter"])
        .arg(format!("--net=/proc/{pid}/ns/net"))
        .args(["python3", "-m", "http.server", "--bind", "::", "--directory"])
        .arg(scratch.join("site"))
        .arg(FILES.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn line(lines: &mut impl BufRead) -> String {
    let mut text = String::new();
    lines.read_line(&mut text).unwrap();
    text.trim().to_owned()
}
