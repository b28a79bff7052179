//! What is allowed works.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Duration;

use crate::internet::{
    CLOSED, ECHO, ENDS_FIRST, ENDS_FIRST_COUNT, OTHER, SERVER_FIRST, SILENT, SINK, SOURCE, WEB, WEB6,
};
use crate::world::World;

pub(crate) fn allowed_programs_reach_servers(world: &World) {
    let mut test_box = world.open("public");
    for url in [
        "http://web.example/",
        "http://203.0.113.10/",
        "http://[2001:db8:f::10]/",
        "http://six.example/",
        "http://alias.example:8080/",
    ] {
        let output = test_box.run(&["curl", "-sS", "--noproxy", "*", "-m", "10", url]);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.starts_with("you asked "), "{url}: {text} {}", String::from_utf8_lossy(&output.stderr));
    }
    let output = test_box.run(&["curl", "-sSk", "--noproxy", "*", "-m", "10", "https://web.example/"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = test_box.python(&format!(
        "import socket\ns=socket.create_connection(('{WEB}',{SERVER_FIRST}))\nprint(s.recv(99).decode())"
    ));
    assert_eq!(said, "hello first");
    let counters = test_box.counters();
    assert!(counters.connections_opened >= 7 && counters.bytes_received > 100, "{counters:?}");
    assert_eq!(test_box.denials(), []);
}

pub(crate) fn datagrams_and_echo_pass(world: &World) {
    let test_box = world.open("public");
    for (family, peer) in [("AF_INET", WEB), ("AF_INET6", WEB6)] {
        let sizes = test_box.python(&format!(
            "import socket\ns=socket.socket(socket.{family},socket.SOCK_DGRAM)\ns.settimeout(3)\ns.connect(('{peer}',{ECHO}))\nfor n in (1,1400,9000):\n s.send(b'y'*n);assert s.recv(65536)==b'y'*n,n\nprint('ok')"
        ));
        assert_eq!(sizes, "ok");
    }
    for peer in [WEB, "192.0.0.1"] {
        let script = format!(
            "import socket\ns=socket.socket(socket.AF_INET,socket.SOCK_DGRAM,socket.IPPROTO_ICMP)\ns.settimeout(3)\ns.sendto(bytes([8,0,0,0,0,0,0,5])+b'ping',('{peer}',0))\nr=s.recv(99)\nprint(r[0],r[7],r[8:].decode())"
        );
        assert_eq!(test_box.python(&script), "0 5 ping", "{peer}");
    }
    // A closed port is told, not waited for.
    let refused = test_box.python(&format!(
        "import socket\ns=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\ns.settimeout(3)\ns.connect(('{WEB}',{CLOSED}))\ns.send(b'x')\ntry: s.recv(9)\nexcept OSError as e: print(type(e).__name__)"
    ));
    assert_eq!(refused, "ConnectionRefusedError");
}

pub(crate) fn bulk_data_arrives_unchanged_both_ways(world: &World) {
    let test_box = world.open("public");
    for peer in [WEB, WEB6] {
        let script = format!(
            "import socket,os,threading,hashlib\ns=socket.create_connection(('{peer}',{ECHO}))\nd=os.urandom(1<<20)*24\ndef w():\n s.sendall(d);s.shutdown(1)\nt=threading.Thread(target=w);t.start()\nh=hashlib.sha256();n=0\nwhile True:\n b=s.recv(1<<18)\n if not b: break\n h.update(b);n+=len(b)\nt.join()\nprint(n==len(d) and h.digest()==hashlib.sha256(d).digest())"
        );
        assert_eq!(test_box.python(&script), "True", "{peer}");
    }
    // A reader that is slow holds the sender back, and gets everything.
    let script = format!(
        "import socket,time\ns=socket.create_connection(('{WEB}',{SOURCE}))\ntime.sleep(1)\nn=0\nwhile n<(32<<20): n+=len(s.recv(1<<20))\ns.close()\nprint('ok')"
    );
    assert_eq!(test_box.python(&script), "ok");
}

pub(crate) fn each_side_may_close_first(world: &World) {
    let mut test_box = world.open("public");
    // The box closes its half, and still reads what comes then.
    let script = format!(
        "import socket\ns=socket.create_connection(('{WEB}',{SINK}))\ns.sendall(b'z'*100000);s.shutdown(1)\nprint(s.makefile().readline().strip())"
    );
    assert_eq!(test_box.python(&script), "100000");
    // The server ends its half first and then reads slowly: nothing of what the box still sends is lost.
    let script = format!(
        "import socket\ns=socket.create_connection(('{WEB}',{ENDS_FIRST}))\nassert s.recv(1)==b''\ns.sendall(b'w'*6000000);s.close()"
    );
    test_box.python(&script);
    let count = format!(
        "import socket\nprint(socket.create_connection(('{WEB}',{ENDS_FIRST_COUNT})).makefile().readline().strip())"
    );
    crate::world::eventually("all bytes arrive", || test_box.python(&count) == "6000000");
    // A reset ends the connection outside as well.
    let script = format!(
        "import socket,struct\ns=socket.create_connection(('{WEB}',{ECHO}))\ns.setsockopt(socket.SOL_SOCKET,socket.SO_LINGER,struct.pack('ii',1,0))\ns.close()"
    );
    test_box.python(&script);
    crate::world::eventually("all connections are gone", || test_box.counters().connections_now == 0);
}

pub(crate) fn refused_and_silent_peers_look_so(world: &World) {
    let mut test_box = world.open_with("public", &["203.0.113.0/24"], |config| {
        config.limits.connect_timeout = Duration::from_millis(700);
        config.limits.tcp_idle = Duration::from_millis(600);
    });
    let (result, time) = test_box.connect(WEB, CLOSED);
    assert_eq!(result, "ECONNREFUSED");
    assert!(time < Duration::from_millis(500), "{time:?}");
    let (result, time) = test_box.connect(SILENT, 80);
    // By the reason, or by the reset behind it where the box's kernel was still busy with the socket.
    assert!(["EHOSTUNREACH", "ECONNREFUSED"].contains(&&*result), "{result}");
    assert!(time < Duration::from_secs(3), "{time:?}");
    assert_eq!(test_box.denials(), [], "failures of the network are not denials");
    let idle = test_box.python(&format!(
        "import socket\ns=socket.create_connection(('{OTHER}',{ECHO}))\ntry: print(s.recv(1))\nexcept OSError as e: print(type(e).__name__)"
    ));
    assert_eq!(idle, "ConnectionResetError");
}

pub(crate) fn connections_into_the_box(world: &World) {
    let test_box = world.open("off");
    let mut server = test_box.spawn(&[
        "python3", "-c",
        "import socket\ns=socket.create_server(('0.0.0.0',8000))\nprint('up',flush=True)\nc,a=s.accept()\nd=c.recv(99)\nc.sendall(b'got '+d)\nc.close()",
    ]);
    let mut up = [0; 3];
    server.stdout.as_mut().unwrap().read_exact(&mut up).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (stream, _) = listener.accept().unwrap();
    test_box.forward(&stream, 8000);
    drop(stream);
    client.write_all(b"hello").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "got hello");
    assert!(server.wait().unwrap().success());
}
