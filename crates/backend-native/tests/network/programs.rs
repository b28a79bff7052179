//! Programs that people use, through an isolated network.

use std::sync::Arc;

use crate::internet::{ECHO, WEB, WEB6, required};
use crate::stage::{Stage, Test, test};
use crate::world::FILES;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test!(curl_fetches_by_name_and_address),
        test!(python_fetches_and_resolves),
        test!(node_fetches),
        test!(git_clones),
        test!(datagrams_and_echo_pass),
        test!(large_answers_arrive_whole),
        test!(with_network_off_lookups_fail_at_once),
    ]
}

const CURL: &str = "curl -sSk --noproxy '*' -m 5";

async fn curl_fetches_by_name_and_address(stage: Arc<Stage>) {
    let by_name = stage.open_box("allow web.example").await;
    for url in ["http://web.example/", "http://web.example:8080/"] {
        let text = by_name.must(&format!("{CURL} {url}")).await;
        assert!(text.starts_with("you asked web.example"), "{url}: {text}");
    }
    by_name.must(&format!("{CURL} https://web.example/")).await;
    by_name.must(&format!("{CURL} -6 http://web.example/")).await;
    by_name.stop().await;
    let by_address = stage.open_box(&format!("allow {WEB}:80, allow [{WEB6}]:80")).await;
    by_address.must(&format!("{CURL} http://{WEB}/ http://[{WEB6}]/")).await;
    by_address.stop().await;
}

async fn python_fetches_and_resolves(stage: Arc<Stage>) {
    let test_box = stage.open_box("allow *.example").await;
    let ran = test_box
        .python("import urllib.request,socket\nprint(urllib.request.urlopen('http://web.example/',timeout=5).read().decode().strip())\nprint(socket.gethostbyname('other.example'))\ntry: socket.getaddrinfo('nothing.example',80)\nexcept socket.gaierror as e: print(e.args[1])")
        .await;
    assert_eq!(ran.text, "you asked web.example\n203.0.113.11\nName or service not known", "{ran:?}");
    test_box.stop().await;
}

async fn node_fetches(stage: Arc<Stage>) {
    if !std::path::Path::new("/usr/bin/node").exists() {
        assert!(!required("node"), "`node` is required here");
        eprintln!("SKIP: node_fetches: no /usr/bin/node");
        return;
    }
    let test_box = stage
        .open_with(crate::stage::isolation("allow web.example"), |spec| spec.limits.memory_bytes = 2 << 30)
        .await;
    let script = "require('http').get('http://web.example/',r=>{r.on('data',d=>process.stdout.write(d))})\
                  .on('error',e=>{console.log(String(e));process.exitCode=1})";
    assert_eq!(test_box.must(&format!("node -e \"{script}\"")).await, "you asked web.example");
    test_box.stop().await;
}

async fn git_clones(stage: Arc<Stage>) {
    let test_box = stage.open_box("allow web.example").await;
    let url = format!("http://web.example:{FILES}/small.git");
    assert_eq!(test_box.must(&format!("git clone -q {url} got && cat got/greeting")).await, "hello");
    test_box.stop().await;
}

async fn datagrams_and_echo_pass(stage: Arc<Stage>) {
    let test_box = stage.open_box("public").await;
    for (family, address) in [("AF_INET", WEB), ("AF_INET6", WEB6)] {
        let ran = test_box
            .python(&format!(
                "import socket\ns=socket.socket(socket.{family},socket.SOCK_DGRAM)\ns.settimeout(5)\nfor n in (1,1400,60000):\n s.sendto(b'x'*n,('{address}',{ECHO}))\n print(len(s.recv(65535)))"
            ))
            .await;
        assert_eq!(ran.text, "1\n1400\n60000", "{ran:?}");
    }
    let ran = test_box
        .python(&format!(
            "import socket,struct\ns=socket.socket(socket.AF_INET,socket.SOCK_DGRAM,socket.IPPROTO_ICMP)\ns.settimeout(5)\np=struct.pack('!BBHHH',8,0,0,0,1)+b'abc'\ns.sendto(p,('{WEB}',0))\nprint(s.recv(99)[-3:])"
        ))
        .await;
    assert_eq!(ran.text, "b'abc'", "{ran:?}");
    test_box.stop().await;
}

async fn large_answers_arrive_whole(stage: Arc<Stage>) {
    let test_box = stage.open_box("allow web.example").await;
    let ran = test_box.run(&format!("{CURL} http://web.example:{FILES}/blob | wc -c")).await;
    assert_eq!(ran.text, "3000000", "{ran:?}");
    let used = ran.full.exit.network.expect("counters");
    assert!(used.bytes_received >= 3_000_000 && used.connections_opened == 1, "{used:?}");
    test_box.stop().await;
}

async fn with_network_off_lookups_fail_at_once(stage: Arc<Stage>) {
    let off = stage
        .open_with(crate::stage::isolation("off"), |spec| spec.network = sandcrate_backend::Network::Off)
        .await;
    for program in [
        "/usr/bin/python3 -c \"import socket,time;t=time.time()\ntry: socket.getaddrinfo('web.example',80)\nexcept OSError: print(time.time()-t<1)\"",
        "curl -sS -m 5 http://web.example/ >/dev/null 2>&1; test $? = 6 && echo True",
    ] {
        let ran = off.run(program).await;
        assert_eq!(ran.text, "True", "{program}: {ran:?}");
        assert!(ran.full.exit.usage.wall.as_secs() < 3, "{ran:?}");
    }
    off.stop().await;
}
