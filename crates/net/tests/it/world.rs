//! The host, its boxes and their helpers.

use std::io::{BufRead, BufReader, Read};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, ExitCode, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use sandcrate_net::message::{HelperReply, HelperRequest};
use sandcrate_net::{Addressing, Ends, NetworkConfig, channel};
use sandcrate_protocol::network::{Counters, Denial, Grants, Policy};
use sandcrate_sys::tun;

/// The host's address towards the Internet.
pub(crate) const HOST: &str = "198.51.100.1";
/// Another address of the host, inside a range that tests grant.
pub(crate) const HOST_IN_RANGE: &str = "203.0.113.200";
pub(crate) const RESOLVER: &str = "198.51.100.2";

pub(crate) fn missing() -> Option<String> {
    for program in ["ip", "unshare", "nsenter", "curl", "python3", "openssl", "setpriv"] {
        if Command::new(program)
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_err()
        {
            return Some(format!("no program `{program}`"));
        }
    }
    let tun = std::fs::OpenOptions::new().read(true).write(true).open("/dev/net/tun");
    if let Err(error) = tun {
        return Some(format!("/dev/net/tun: {error}"));
    }
    let tried = Command::new("unshare").args(["--net", "--mount", "true"]).stderr(Stdio::null()).status();
    if tried.is_ok_and(|status| status.success()) { None } else { Some("unshare --net fails".to_owned()) }
}

pub(crate) struct World {
    _internet: Child,
}

pub(crate) fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().unwrap();
    assert!(status.success(), "ip {arguments}");
}

impl World {
    pub(crate) fn start() -> Self {
        ip("link set lo up");
        let mut internet = Command::new("unshare")
            .args(["--net", "--kill-child", "--fork"])
            .arg(std::env::current_exe().unwrap())
            .arg("net-test-internet")
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
        std::fs::write("/proc/sys/net/ipv4/ping_group_range", "0 2147483647").unwrap();
        assert_eq!(line(&mut lines), "ready");
        Self { _internet: internet }
    }

    /// A box whose servers of the test Internet count as public.
    pub(crate) fn open(&self, policy: &str) -> TestBox {
        self.open_with(policy, &["203.0.113.0/24", "2001:db8:f::/48"], |_| {})
    }

    pub(crate) fn open_with(
        &self,
        policy: &str,
        allow: &[&str],
        change: impl FnOnce(&mut NetworkConfig),
    ) -> TestBox {
        let mut config = NetworkConfig {
            policy: policy.parse().unwrap(),
            grants: grants(allow),
            resolvers: vec![SocketAddr::new(RESOLVER.parse().unwrap(), 53)],
            ..NetworkConfig::default()
        };
        change(&mut config);
        let holder = Holder::start();
        let helper = Helper::start();
        let mut test_box = TestBox { holder, helper, denials: Vec::new(), config };
        test_box.attach();
        test_box
    }
}

fn line(lines: &mut impl BufRead) -> String {
    let mut text = String::new();
    lines.read_line(&mut text).unwrap();
    text.trim().to_owned()
}

pub(crate) fn grants(allow: &[&str]) -> Grants {
    Grants { allow: allow.iter().map(|rule| rule.parse().unwrap()).collect(), deny: Vec::new() }
}

fn pair() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

/// Keeps a box's network namespace alive.
struct Holder {
    child: Child,
    control: OwnedFd,
    tun: OwnedFd,
    pid: u32,
}

impl Holder {
    fn start() -> Self {
        let (ours, theirs) = pair();
        let child = Command::new("unshare")
            .args(["--net"])
            .arg(std::env::current_exe().unwrap())
            .arg("net-test-box")
            .stdin(theirs)
            .spawn()
            .unwrap();
        let (pid, mut fds): (u32, _) = channel::recv(ours.as_fd()).unwrap().expect("the box lives");
        Self { child, control: ours, tun: fds.pop().unwrap(), pid }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = rustix::net::shutdown(&self.control, rustix::net::Shutdown::Both);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) struct Helper {
    pub(crate) child: Child,
    pub(crate) control: OwnedFd,
}

impl Helper {
    pub(crate) fn start() -> Self {
        let (child, control) = sandcrate_net::spawn_helper(&std::env::current_exe().unwrap()).unwrap();
        rustix::net::sockopt::set_socket_timeout(
            &control,
            rustix::net::sockopt::Timeout::Recv,
            Some(Duration::from_secs(5)),
        )
        .unwrap();
        let first = channel::recv(control.as_fd()).unwrap().expect("the helper lives").0;
        assert!(matches!(first, HelperReply::Ready { .. }), "{first:?}");
        Self { child, control }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) struct TestBox {
    holder: Holder,
    pub(crate) helper: Helper,
    denials: Vec<Denial>,
    pub(crate) config: NetworkConfig,
}

impl TestBox {
    pub(crate) fn attach(&mut self) {
        let request = HelperRequest::Attach { box_id: 1, config: Box::new(self.config.clone()) };
        channel::send(self.helper.control.as_fd(), &request, &[self.holder.tun.as_fd()]).unwrap();
        assert!(matches!(self.reply(), HelperReply::Attached { box_id: 1 }));
    }

    pub(crate) fn sever(&self, connections: Vec<Ends>) {
        let request = HelperRequest::Sever { box_id: 1, connections };
        channel::send(self.helper.control.as_fd(), &request, &[]).unwrap();
    }

    /// The next reply that is no denial.
    fn reply(&mut self) -> HelperReply {
        loop {
            match channel::recv(self.helper.control.as_fd()).unwrap().expect("the helper lives").0 {
                HelperReply::Denied { denials, .. } => self.denials.extend(denials),
                other => return other,
            }
        }
    }

    pub(crate) fn counters(&mut self) -> Counters {
        channel::send(self.helper.control.as_fd(), &HelperRequest::Count { box_id: 1 }, &[]).unwrap();
        match self.reply() {
            HelperReply::Counted { counters, .. } => counters,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn set_policy(&mut self, policy: &str) {
        let policy: Policy = policy.parse().unwrap();
        let request = HelperRequest::SetPolicy {
            box_id: 1,
            policy,
            grants: self.config.grants.clone(),
            limits: self.config.limits.clone(),
        };
        channel::send(self.helper.control.as_fd(), &request, &[]).unwrap();
        assert!(matches!(self.reply(), HelperReply::PolicySet { .. }));
    }

    /// What was refused since the last call.
    pub(crate) fn denials(&mut self) -> Vec<Denial> {
        self.counters();
        std::mem::take(&mut self.denials)
    }

    fn command(&self, program: &[&str]) -> Command {
        let resolver = Addressing::default().gateway_v4;
        let script = format!(
            "echo nameserver {resolver} > /run/resolv && mount --bind /run/resolv \"$(readlink -f /etc/resolv.conf)\" && exec \"$@\""
        );
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net=/proc/{}/ns/net", self.holder.pid))
            .args(["unshare", "--mount", "sh", "-c"])
            .arg(format!("mount -t tmpfs none /run && {script}"))
            .arg("sh")
            .args(program)
            .stdin(Stdio::null());
        command
    }

    /// Runs a program in the box.
    pub(crate) fn run(&self, program: &[&str]) -> Output {
        self.command(program).output().unwrap()
    }

    pub(crate) fn spawn(&self, program: &[&str]) -> Child {
        self.command(program).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Runs a Python script that must succeed, and returns what it printed.
    pub(crate) fn python(&self, script: &str) -> String {
        let output = self.run(&["python3", "-c", script]);
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        assert!(output.status.success(), "{script}\n{text}\n{}", String::from_utf8_lossy(&output.stderr));
        text
    }

    /// How a TCP connection from the box ends: `ok` or the error's name, and the time it took.
    pub(crate) fn connect(&self, address: &str, port: u16) -> (String, Duration) {
        let script = format!(
            "import socket,errno,time\nf=socket.AF_INET6 if ':' in '{address}' else socket.AF_INET\ns=socket.socket(f)\ns.settimeout(8)\nt=time.time()\ntry:\n s.connect(('{address}',{port}));r='ok'\nexcept OSError as e: r=errno.errorcode.get(e.errno, str(e))\nprint(r,time.time()-t)"
        );
        let text = self.python(&script);
        let (result, time) = text.split_once(' ').unwrap();
        (result.to_owned(), Duration::from_secs_f64(time.parse().unwrap()))
    }

    pub(crate) fn forward(&self, stream: &impl AsFd, port: u16) {
        let request = HelperRequest::Forward { box_id: 1, port };
        channel::send(self.helper.control.as_fd(), &request, &[stream.as_fd()]).unwrap();
    }
}

/// Makes the box's device, hands it over, and waits.
pub(crate) fn box_role() -> ExitCode {
    sandcrate_sys::loopback::bring_up().unwrap();
    let device = std::fs::OpenOptions::new().read(true).write(true).open("/dev/net/tun").unwrap();
    tun::attach(device.as_fd(), "tun0").unwrap();
    let addresses = Addressing::default();
    let settings = tun::InterfaceSettings {
        v4: (addresses.box_v4, addresses.prefix_v4),
        gateway_v4: addresses.gateway_v4,
        v6: Some((addresses.box_v6, addresses.prefix_v6)),
        gateway_v6: addresses.gateway_v6,
        mtu: addresses.mtu,
    };
    tun::configure("tun0", &settings).unwrap();
    std::fs::write("/proc/sys/net/ipv4/ping_group_range", "0 2147483647").unwrap();
    let stdin = rustix::stdio::stdin();
    channel::send(stdin, &std::process::id(), &[device.as_fd()]).unwrap();
    let _ = std::io::stdin().read(&mut [0]);
    ExitCode::SUCCESS
}

/// Waits until `check` holds.
pub(crate) fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(5);
    while !check() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// An address from text.
pub(crate) fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}
