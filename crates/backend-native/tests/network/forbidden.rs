//! What no box may reach, tried from inside; the places would answer if they were reached.

use std::net::{TcpListener, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sandcrate_protocol::network::DenialKind;

use crate::internet::{ECHO, FORBIDDEN, SERVER_FIRST, WEB, WEB6, turned_away};
use crate::stage::{GRANTED, Stage, Test, grants, isolation, test};
use crate::world::{HOST, HOST_IN_RANGE};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test!(private_and_metadata_addresses_are_refused),
        test!(a_refusal_is_never_taken_for_a_connection),
        test!(the_host_is_out_of_reach),
        test!(raw_and_packet_sockets_are_refused),
        test!(the_device_cannot_be_changed),
        test!(the_kernel_takes_no_orders_by_netlink),
        test!(fragments_are_dropped_and_counted),
        test!(names_are_resolved_by_the_boxs_resolver_only),
        test!(rebinding_is_refused),
        test!(names_that_lie_are_refused),
        test!(literals_are_refused_under_name_rules),
        test!(a_granted_range_does_not_mean_the_host_in_it),
        test!(boxes_do_not_reach_each_other),
    ]
}

async fn private_and_metadata_addresses_are_refused(stage: Arc<Stage>) {
    let test_box = stage.open_box("public").await;
    for address in FORBIDDEN {
        let (result, ran) = test_box.connect(address, 80).await;
        assert!(turned_away(&result), "{address}: {result}: {ran:?}");
        assert!(ran.denials.iter().any(|denial| denial.target.contains(address)), "{address}: {ran:?}");
    }
    test_box.stop().await;
}

/// However the refusal meets the kernel that still works on the socket.
async fn a_refusal_is_never_taken_for_a_connection(stage: Arc<Stage>) {
    let test_box = stage.open_box("public").await;
    let script = r"
import collections, errno, os, socket, threading
said = collections.Counter()
def one():
    s = socket.socket()
    s.settimeout(8)
    try:
        s.connect(('10.9.9.9', 80))
    except OSError as e:
        return errno.errorcode.get(e.errno, str(e))
    try:
        return 'connected to %s:%s' % s.getpeername()
    except OSError as e:
        return 'no error, then ' + errno.errorcode[e.errno]
def some():
    for _ in range(300):
        said[one()] += 1
threads = [threading.Thread(target=some) for _ in range(4)]
for t in threads: t.start()
for t in threads: t.join()
print(*('%s %s' % p for p in sorted(said.items())), sep='\n')
";
    let ran = test_box.python(script).await;
    assert!(ran.ok, "{ran:?}");
    for line in ran.text.lines() {
        assert!(turned_away(line.split(' ').next().unwrap_or_default()), "{}", ran.text);
    }
    test_box.stop().await;
}

/// Servers of the host that count who comes, on every address it has.
struct HostServers {
    port: u16,
    came: Arc<AtomicU64>,
}

impl HostServers {
    fn start() -> Self {
        let came = Arc::new(AtomicU64::new(0));
        let tcp = TcpListener::bind("[::]:0").unwrap();
        let port = tcp.local_addr().unwrap().port();
        let count = Arc::clone(&came);
        std::thread::spawn(move || {
            for _ in tcp.incoming().flatten() {
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
        let udp = UdpSocket::bind(("::", port)).unwrap();
        let count = Arc::clone(&came);
        std::thread::spawn(move || {
            while udp.recv_from(&mut [0; 64]).is_ok() {
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
        Self { port, came }
    }
}

async fn the_host_is_out_of_reach(stage: Arc<Stage>) {
    // As the server's own control port would be: on loopback and on every other address.
    let servers = HostServers::start();
    let test_box = stage.open_box("public").await;
    let port = servers.port;
    for address in [HOST, HOST_IN_RANGE, "192.0.0.1", "2001:db8:a::1"] {
        let (result, ran) = test_box.connect(address, port).await;
        assert!(turned_away(&result), "{address}: {ran:?}");
        let datagram = test_box
            .python(&format!(
                "import socket\ns=socket.socket(socket.AF_INET6 if ':' in '{address}' else socket.AF_INET,socket.SOCK_DGRAM)\ns.sendto(b'x',('{address}',{port}))"
            ))
            .await;
        assert!(!datagram.denials.is_empty() || address.starts_with("192.0"), "{address}: {datagram:?}");
    }
    // The box's loopback is its own: nobody listens.
    for address in ["127.0.0.1", "::1"] {
        assert_eq!(test_box.connect(address, port).await.0, "ECONNREFUSED", "{address}");
    }
    // By a route of its own making it cannot: the device is not its to change, and packets to loopback do not leave.
    assert_eq!(servers.came.load(Ordering::Relaxed), 0, "the host was reached");
    std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    crate::stage::eventually("the servers do count", || servers.came.load(Ordering::Relaxed) == 1).await;
    test_box.stop().await;
}

async fn raw_and_packet_sockets_are_refused(stage: Arc<Stage>) {
    let test_box = stage.open_box("public").await;
    let ran = test_box
        .python("import socket,errno\nfor f,k,p in ((2,3,1),(2,3,255),(10,3,58),(17,3,3),(17,2,3),(16,3,4),(16,3,12),(40,1,0)):\n try:\n  socket.socket(f,k,p);print('open',f,k,p)\n except OSError as e: pass\nprint('done')")
        .await;
    assert_eq!(ran.text, "done", "{ran:?}");
    test_box.stop().await;
}

async fn the_device_cannot_be_changed(stage: Arc<Stage>) {
    let test_box = stage.open_box("public").await;
    for script in [
        "ip link set tun0 down",
        "ip addr add 10.1.2.3/24 dev tun0",
        "ip route add 127.0.0.0/8 dev tun0",
        "ip link add dummy0 type dummy",
        "echo 1 > /proc/sys/net/ipv4/ip_forward",
        "test -e /dev/net/tun",
        "unshare -rn true",
    ] {
        let ran = test_box.run(script).await;
        assert!(!ran.ok, "{script}: {ran:?}");
    }
    // It can be looked at: programs do.
    let seen = test_box.must("cat /proc/net/dev | tail -n +3 | cut -d: -f1 | sort | xargs").await;
    assert_eq!(seen, "lo tun0");
    test_box.stop().await;
}

/// Interfaces can be listed (`getifaddrs` does), not changed; and no other family of it is there.
async fn the_kernel_takes_no_orders_by_netlink(stage: Arc<Stage>) {
    let test_box = stage.open_box("public").await;
    let ran = test_box
        .python(
            "import socket,struct,errno\nfor p in range(1,23):\n try: socket.socket(16,3,p); print('open',p)\n except OSError: pass\nROUTE,ACK=0,5\ndef order(kind,body):\n try:\n  s=socket.socket(16,3,ROUTE);s.settimeout(5);s.bind((0,0))\n  s.send(struct.pack('=IHHII',16+len(body),kind,ACK,1,0)+body)\n  answer=s.recv(4096)\n  return -struct.unpack('=i',answer[16:20])[0]\n except OSError as e: return e.errno\nlink=socket.if_nametoindex('tun0')\naddress=struct.pack('=BBBBI',2,24,0,0,link)+struct.pack('=HH4s',8,2,bytes([10,1,2,3]))\nroute=struct.pack('=BBBBBBBBI',2,8,0,0,254,3,0,1,0)+struct.pack('=HH4s',8,1,bytes([127,0,0,0]))+struct.pack('=HHI',8,4,link)\ndown=struct.pack('=BxHiII',0,0,link,0,1)\nprint(*(errno.errorcode.get(order(k,b)) for k,b in ((20,address),(24,route),(16,down))))",
        )
        .await;
    assert_eq!(ran.text, "EPERM EPERM EPERM", "{ran:?}");
    test_box.stop().await;
}

/// Without raw sockets a box makes fragments in one way only: a datagram that does not fit into the device. It goes
/// nowhere and is counted; what follows it passes.
async fn fragments_are_dropped_and_counted(stage: Arc<Stage>) {
    let test_box = stage.open_box("public").await;
    for (family, address) in [("AF_INET", WEB), ("AF_INET6", WEB6)] {
        let before = test_box.report().await.counters.packets_dropped;
        let ran = test_box
            .python(&format!(
                "import socket\ns=socket.socket(socket.{family},socket.SOCK_DGRAM)\ns.settimeout(5)\ns.sendto(b'x'*65500,('{address}',{ECHO}))\ns.sendto(b'small',('{address}',{ECHO}))\nprint(s.recv(65535))"
            ))
            .await;
        assert_eq!(ran.text, "b'small'", "{address}: {ran:?}");
        let dropped = test_box.report().await.counters.packets_dropped - before;
        // At least: the box's kernel sends a word of its own now and then (it looks for routers), which counts as well.
        assert!(dropped >= 2, "{address}: both fragments, not {dropped}");
    }
    test_box.stop().await;
}

async fn names_are_resolved_by_the_boxs_resolver_only(stage: Arc<Stage>) {
    let test_box = stage.open_box("public").await;
    let query = "bytes.fromhex('123401000001000000000000037765620765786d61706c650000010001')";
    let ran = test_box
        .python(&format!(
            "import socket\ns=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\ns.settimeout(2)\ns.connect(('{WEB}',53))\ntry:\n s.send({query});s.recv(512);print('answered')\nexcept OSError as e: print(type(e).__name__)"
        ))
        .await;
    assert_eq!(ran.text, "OSError", "{ran:?}");
    assert!(!ran.denials.is_empty(), "{ran:?}");
    for (address, port) in [(WEB, 53), ("192.0.0.1", 53), (WEB, 853)] {
        let (result, _) = test_box.connect(address, port).await;
        assert_ne!(result, "ok", "{address}:{port} by TCP");
    }
    test_box.stop().await;
}

async fn rebinding_is_refused(stage: Arc<Stage>) {
    let test_box = stage.open_box("public").await;
    for name in ["rebind.example", "meta.example", "loop.example", "own.example"] {
        let ran = test_box.run(&format!("curl -sS --noproxy '*' -m 5 http://{name}/")).await;
        assert!(!ran.ok && !ran.text.contains("you asked"), "{name}: {ran:?}");
        assert!(ran.denials.iter().any(|denial| denial.target.starts_with(name)), "{name}: {ran:?}");
    }
    test_box.stop().await;
}

async fn names_that_lie_are_refused(stage: Arc<Stage>) {
    let test_box = stage.open_box(&format!("allow web.example, allow alias.example:{SERVER_FIRST}")).await;
    test_box.must("curl -sSk --noproxy '*' -m 5 https://web.example/ >/dev/null").await;
    for lie in [
        "https://evil.example/ --resolve evil.example:443:203.0.113.10",
        "http://web.example/ -H 'Host: evil.example'",
        "http://web.example/ --http2-prior-knowledge",
    ] {
        let ran = test_box.run(&format!("curl -sSk --noproxy '*' -m 5 {lie}")).await;
        assert!(!ran.ok, "{lie}: {ran:?}");
        assert_eq!(ran.denials.len(), 1, "{lie}: {ran:?}");
        assert_eq!(ran.denials[0].kind, DenialKind::Name, "{lie}: {ran:?}");
    }
    test_box.stop().await;
}

async fn literals_are_refused_under_name_rules(stage: Arc<Stage>) {
    let test_box = stage.open_box("allow web.example").await;
    let (result, ran) = test_box.connect(WEB, 80).await;
    assert!(turned_away(&result), "{result}");
    assert!(ran.denials[0].hint.contains("connect by name"), "{ran:?}");
    test_box.stop().await;
}

async fn a_granted_range_does_not_mean_the_host_in_it(stage: Arc<Stage>) {
    let servers = HostServers::start();
    let test_box = stage.open_box("allow 203.0.113.0/24").await;
    assert!(turned_away(&test_box.connect(HOST_IN_RANGE, servers.port).await.0));
    assert_eq!(test_box.connect(WEB, 80).await.0, "ok");
    test_box.stop().await;
    // One by one it can be granted.
    let mut granted = isolation(&format!("allow {HOST_IN_RANGE}"));
    granted.grants = grants(&[&GRANTED[..], &[HOST_IN_RANGE]].concat());
    let test_box = stage.open_with(granted, |_| {}).await;
    assert_eq!(test_box.connect(HOST_IN_RANGE, servers.port).await.0, "ok");
    test_box.stop().await;
}

async fn boxes_do_not_reach_each_other(stage: Arc<Stage>) {
    let (one, other) = (stage.open_box("public").await, stage.open_box("public").await);
    let listening = one.run("/usr/bin/python3 -m http.server 8000 >/dev/null 2>&1 & sleep 0.3; curl -s -m 2 http://192.0.0.2:8000/ >/dev/null && echo up").await;
    assert_eq!(listening.text, "up", "{listening:?}");
    // All have the same address: it is one's own, always.
    assert_eq!(other.connect("192.0.0.2", 8000).await.0, "ECONNREFUSED");
    one.stop().await;
    other.stop().await;
}
