//! What is forbidden is refused, at once and with a record; what is broken does no harm.

use std::io::Read;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use sandcrate_net::Ends;
use sandcrate_protocol::network::DenialKind;

use crate::internet::{ECHO, FORBIDDEN, WEB, turned_away};
use crate::world::{HOST, HOST_IN_RANGE, Helper, World};

const AT_ONCE: Duration = Duration::from_millis(500);

pub(crate) fn forbidden_addresses_are_refused_at_once(world: &World) {
    let mut test_box = world.open("public");
    let also = [
        "203.0.113.255",
        "224.0.0.1",
        "240.0.0.1",
        "198.51.100.2",
        "64:ff9b::a09:909",
        "2002:a09:909::1",
        "2001:db8:a::2",
    ];
    for address in FORBIDDEN.iter().chain(&also[1..]) {
        let (result, time) = test_box.connect(address, 80);
        let multicast = *address == "224.0.0.1" && result == "ENETUNREACH";
        assert!(turned_away(&result) || multicast || *address == "240.0.0.1", "{address}: {result}");
        assert!(time < AT_ONCE, "{address}: {time:?}");
        let denials = test_box.denials();
        if !multicast && *address != "240.0.0.1" {
            assert_eq!(denials.len(), 1, "{address}: {denials:?}");
            assert!(
                denials[0].kind == DenialKind::Connect && denials[0].target.contains(address),
                "{denials:?}"
            );
            assert!(denials[0].hint.contains("operator"), "{denials:?}");
        }
    }
    let result = test_box.python(
        "import socket\ns=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\ns.settimeout(2)\ns.connect(('10.9.9.9',7));s.send(b'x')\ntry: print(s.recv(9))\nexcept OSError as e: print(e.errno)",
    );
    assert_eq!(result, "113");
    assert_eq!(test_box.denials()[0].kind, DenialKind::Datagram);
}

pub(crate) fn the_hosts_own_addresses_are_refused(world: &World) {
    let listener = TcpListener::bind("[::]:8080").unwrap();
    listener.set_nonblocking(true).unwrap();
    let mut test_box = world.open("public");
    // The granted range covers the second address; the host that stands in it is not meant.
    for address in [HOST, HOST_IN_RANGE, "2001:db8:a::1"] {
        let (result, time) = test_box.connect(address, 8080);
        assert!(result != "ok" && time < AT_ONCE, "{address}: {result} {time:?}");
        let denials = test_box.denials();
        assert!(denials[0].rule.contains("own"), "{address}: {denials:?}");
    }
    // Loopback and the gateway are the box's own business, and nobody listens there.
    for address in ["127.0.0.1", "::1", "192.0.0.1", "fd73:616e:6463::1"] {
        assert_eq!(test_box.connect(address, 8080).0, "ECONNREFUSED", "{address}");
    }
    assert!(listener.accept().is_err(), "no connection came through");
    let granted = world.open_with("public", &["203.0.113.200:8080"], |_| {});
    assert_eq!(granted.connect(HOST_IN_RANGE, 8080).0, "ok", "unless the operator names it");
}

pub(crate) fn other_name_servers_are_refused(world: &World) {
    let mut test_box = world.open("public");
    let ask = |server: &str| {
        format!(
            "import socket\ns=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\ns.settimeout(2)\ns.connect(('{server}',53))\ns.send(bytes.fromhex('00070100000100000000000003776562076578616d706c650000010001'))\ntry: print(len(s.recv(999))>30)\nexcept OSError as e: print(e.errno)"
        )
    };
    assert_eq!(test_box.python(&ask("192.0.0.1")), "True");
    assert_eq!(test_box.python(&ask(WEB)), "113");
    assert!(turned_away(&test_box.connect(WEB, 53).0));
    assert!(turned_away(&test_box.connect(WEB, 853).0));
    assert_eq!(test_box.connect("192.0.0.1", 53).0, "ECONNREFUSED");
    let rules: Vec<_> = test_box.denials().into_iter().map(|denial| denial.rule).collect();
    assert_eq!(rules, ["dns"; 4]);
}

pub(crate) fn limits_hold(world: &World) {
    let mut test_box = world.open_with("public", &["203.0.113.0/24"], |config| {
        config.limits.connections = 5;
        config.limits.bytes_per_second = Some(4 << 20);
    });
    let script = format!(
        "import socket\nl=[]\nfor i in range(8):\n try: l.append(socket.create_connection(('{WEB}',{ECHO}),timeout=3))\n except OSError as e: pass\nprint(len(l))"
    );
    assert_eq!(test_box.python(&script), "5");
    let denials = test_box.denials();
    assert!(denials.iter().any(|denial| denial.kind == DenialKind::Limit), "{denials:?}");
    crate::world::eventually("closed connections make room", || test_box.counters().connections_now == 0);
    let seconds: f64 = test_box
        .python(&format!(
            "import socket,time\nt=time.time()\ns=socket.create_connection(('{WEB}',{}))\nn=0\nwhile n<(12<<20): n+=len(s.recv(1<<20))\nprint(time.time()-t)",
            crate::internet::SOURCE
        ))
        .parse()
        .unwrap();
    assert!((1.5..6.0).contains(&seconds), "12 MiB at 4 MiB/s, with one second's worth at once: {seconds}");
    let mut quick =
        world.open_with("public", &["203.0.113.0/24"], |config| config.limits.opened_per_second = 10);
    let script = format!(
        "import socket\nn=0\nfor i in range(40):\n try: socket.create_connection(('{WEB}',{ECHO}),timeout=3).close();n+=1\n except OSError as e: pass\nprint(n)"
    );
    let opened: u32 = quick.python(&script).parse().unwrap();
    assert!((10..40).contains(&opened), "{opened}");
    assert!(quick.denials().iter().any(|denial| denial.rule.contains("per second")));
}

/// Packets that no kernel sends, straight into the helper: through a socket in place of the device.
pub(crate) fn hostile_packets_do_no_harm(world: &World) {
    use proptest::prelude::*;
    use proptest::test_runner::{Config, TestRunner};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use sandcrate_net::{NetworkConfig, Stack};

    let _ = world;
    let (device, packets) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    rustix::io::ioctl_fionbio(&packets, true).unwrap();
    let mut stack = Stack::new().unwrap();
    let config = NetworkConfig {
        policy: "public".parse().unwrap(),
        grants: crate::world::grants(&["203.0.113.0/24", "2001:db8:f::/48"]),
        resolvers: vec!["198.51.100.2:53".parse().unwrap()],
        ..NetworkConfig::default()
    };
    stack.attach(1, device, config).unwrap();
    // Headers that pass the first checks, with bodies at random; ports that answer.
    let packet = (
        any::<bool>(),
        0..3_usize,
        0..4_usize,
        proptest::collection::vec(any::<u8>(), 0..120),
        any::<bool>(),
        any::<u8>(),
    );
    let strategy = proptest::collection::vec(packet, 1..40);
    let mut runner = TestRunner::new(Config { cases: 400, failure_persistence: None, ..Config::default() });
    let stack = std::cell::RefCell::new(stack);
    runner
        .run(&strategy, |list| {
            let mut stack = stack.borrow_mut();
            for (v6, protocol, port, mut body, sane, flags) in list {
                if sane && body.len() >= 20 {
                    body[..4].copy_from_slice(&[0x9c, (port * 50) as u8, 0, [7, 80, 53, 81][port]]);
                    body[12] = 0x50;
                    body[13] = flags;
                    if protocol == 1 {
                        let length = body.len() as u16;
                        body[4..6].copy_from_slice(&length.to_be_bytes());
                    }
                }
                let mut bytes = vec![0; 10];
                let number = if v6 { [6, 17, 58][protocol] } else { [6, 17, 1][protocol] };
                if v6 {
                    bytes.extend([0x60, 0, 0, 0]);
                    bytes.extend((body.len() as u16).to_be_bytes());
                    bytes.extend([number, 64]);
                    bytes.extend("fd73:616e:6463::2".parse::<std::net::Ipv6Addr>().unwrap().octets());
                    bytes.extend("2001:db8:f::10".parse::<std::net::Ipv6Addr>().unwrap().octets());
                } else {
                    bytes.extend([0x45, 0]);
                    bytes.extend((body.len() as u16 + 20).to_be_bytes());
                    bytes.extend([0, 0, 0x40, 0, 64, number, 0, 0, 192, 0, 0, 2]);
                    bytes.extend(if flags & 64 == 0 { [203, 0, 113, 10] } else { [192, 0, 0, 1] });
                }
                bytes.extend(body);
                let _ = rustix::io::write(&packets, &bytes);
                stack.turn(Duration::ZERO).unwrap();
                let mut answer = vec![0; 70_000];
                while rustix::io::read(&packets, &mut answer[..]).is_ok() {}
            }
            stack.turn(Duration::from_millis(1)).unwrap();
            Ok(())
        })
        .unwrap();
    let counters = stack.borrow().counters(1).unwrap();
    println!("fuzzed: {counters:?}");
    assert!(counters.packets_dropped > 0 && counters.connections_opened > 0);
}

pub(crate) fn a_killed_helper_is_noticed_and_replaced(world: &World) {
    let mut test_box = world.open("public");
    let mut client = test_box.spawn(&[
        "python3", "-c",
        &format!("import socket\ns=socket.create_connection(('{WEB}',{ECHO}))\nprint('%05d'%s.getsockname()[1],flush=True)\nimport time\ns.settimeout(10)\nwhile True:\n try: s.sendall(b'y');s.recv(1);time.sleep(0.05)\n except OSError as e: print(type(e).__name__);break"),
    ]);
    let mut port = [0; 5];
    client.stdout.as_mut().unwrap().read_exact(&mut port).unwrap();
    let port: u16 = std::str::from_utf8(&port).unwrap().parse().unwrap();
    test_box.helper.child.kill().unwrap();
    test_box.helper.child.wait().unwrap();
    let gone = sandcrate_net::channel::recv::<u32>(std::os::fd::AsFd::as_fd(&test_box.helper.control));
    assert!(matches!(gone, Ok(None)), "the daemon sees the end at once: {gone:?}");
    // The device is the box's; another helper takes it over.
    test_box.helper = Helper::start();
    test_box.attach();
    // One with nothing on its way does not notice by itself.
    let connections = vec![Ends {
        inside: SocketAddr::from(([192, 0, 0, 2], port)),
        outside: SocketAddr::new(crate::world::address(WEB), ECHO),
    }];
    test_box.sever(connections);
    let mut said = String::new();
    client.stdout.as_mut().unwrap().read_to_string(&mut said).unwrap();
    client.wait().unwrap();
    assert!(said.contains("ConnectionResetError"), "old connections are reset, not left hanging: {said}");
    assert_eq!(test_box.connect(WEB, ECHO).0, "ok");
}
