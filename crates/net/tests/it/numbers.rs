//! Throughput and latency, printed and not judged: other work shares the machine.

use crate::internet::{ECHO, SINK, SOURCE, WEB};
use crate::world::World;

pub(crate) fn print(world: &World) {
    let mut test_box = world.open_with("public", &["203.0.113.0/24"], |config| {
        config.limits.opened_per_second = 100_000;
    });
    let script = format!(
        "import socket,time
def rate(n,t): return '%.2f Gbit/s' % (n*8/t/1e9)
s=socket.create_connection(('{WEB}',{SOURCE}));b=bytearray(1<<20);n=0;t=time.time()
while time.time()-t<3: n+=s.recv_into(b)
print('into the box',rate(n,time.time()-t));s.close()
s=socket.create_connection(('{WEB}',{SINK}));n=0;t=time.time();m=memoryview(bytes(1<<20))
while time.time()-t<3: n+=s.send(m)
s.shutdown(1);s.makefile().readline()
print('out of the box',rate(n,time.time()-t));s.close()
l=[]
for i in range(300):
 t=time.perf_counter();s=socket.create_connection(('{WEB}',{ECHO}));l.append(time.perf_counter()-t);s.close()
l.sort();print('connect median %.0f us' % (l[150]*1e6))
s=socket.create_connection(('{WEB}',{ECHO}));s.setsockopt(6,1,1);l=[]
for i in range(2000):
 t=time.perf_counter();s.send(b'x');s.recv(1);l.append(time.perf_counter()-t)
l.sort();print('round trip median %.0f us' % (l[1000]*1e6))
t=time.time();n=0
while time.time()-t<2: socket.create_connection(('{WEB}',{ECHO})).close();n+=1
print('%.0f connections/s' % (n/2))"
    );
    println!("{}", test_box.python(&script));
    let plain = std::process::Command::new("python3").args(["-c", &script]).output().unwrap();
    println!("the same over the veth alone:\n{}", String::from_utf8_lossy(&plain.stdout));
    let status = std::fs::read_to_string(format!("/proc/{}/status", test_box.helper.child.id())).unwrap();
    let memory: Vec<_> =
        status.lines().filter(|line| line.starts_with("VmRSS") || line.starts_with("VmHWM")).collect();
    println!("helper {memory:?}, {:?}", test_box.counters());
    idle_boxes();
}

/// What boxes that do nothing cost the helper: devices are stood for by sockets.
fn idle_boxes() {
    const BOXES: u64 = 400;
    let resident = || {
        let text = std::fs::read_to_string("/proc/self/statm").unwrap();
        text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
    };
    let mut stack = sandcrate_net::Stack::new().unwrap();
    let pairs: Vec<_> = (0..BOXES).map(|_| std::os::unix::net::UnixDatagram::pair().unwrap()).collect();
    let (devices, _peers): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
    let before = resident();
    for (id, device) in (0..).zip(devices) {
        let config = sandcrate_net::NetworkConfig { policy: "public".parse().unwrap(), ..Default::default() };
        stack.attach(id, device.into(), config).unwrap();
    }
    println!("an idle box costs the helper {} bytes", (resident() - before) / BOXES);
}
