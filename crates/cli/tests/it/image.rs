//! Images: imported in every form, used as a root, attacked, and removed.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::driver::{sandcrate, until};
use crate::image_archive::{Bench, tar};
use crate::server::{Server, serve};
use crate::skip::{Feature, skip_without};

const NEEDED: [Feature; 3] = [Feature::Box, Feature::Program("busybox"), Feature::Program("python3")];

#[test]
fn a_directory_a_tar_and_an_archive_of_docker_are_roots() {
    if skip_without(&NEEDED) {
        return;
    }
    let bench = Bench::new();
    let saved = bench.docker_archive();
    let plain = bench.path("root.tar");
    tar(&bench.path("busybox"), &plain, &[]);
    for (name, source) in [("dir", &bench.path("busybox")), ("tar", &plain), ("docker", &saved)] {
        let said = bench.import(name, source).ok();
        assert!(said.starts_with(&format!("imported {name}")) && said.contains("sha256:"), "{said}");
        let seen =
            bench.run(name, &[], "cat /etc/mark; id -u; ls -d /usr/lib /lib /etc/ssl 2>/dev/null; echo .");
        assert_eq!(seen.ok(), "image1000\n.\n", "{name}: of the image and nothing of the host");
    }
    let seen = bench.run("docker", &[], "echo $GREETING $HOME $PWD; ls /data /etc/hidden /gone 2>/dev/null");
    assert_eq!(
        seen.stdout, "hello /home/box /workspace\n/data:\nupper\n",
        "whiteouts, and the image's environment"
    );
    let own = bench.run("docker", &["-e", "GREETING=mine"], "echo $GREETING").ok();
    assert_eq!(own, "mine\n", "a session's own environment comes first");
    let listed = bench.call(&["image", "ls", "-o", "json"]).json();
    let images = listed["images"].as_array().unwrap();
    let docker = images.iter().find(|image| image["name"] == "docker").unwrap();
    assert_eq!((images.len(), &docker["layers"], &docker["source"]), (3, &json!(2), &json!("docker")));
    assert_eq!(docker["config"]["working_dir"], "/data");
    let table = bench.call(&["image", "ls"]).ok();
    assert!(table.starts_with("NAME") && table.lines().count() == 4, "{table}");
    assert_eq!(bench.call(&["image", "rm", "dir", "tar", "docker"]).ok(), "dir\ntar\ndocker\n");
    assert_eq!(bench.roots(), 0);
}

#[test]
fn standard_input_is_an_archive_too() {
    if skip_without(&NEEDED) {
        return;
    }
    let bench = Bench::new();
    let archive = fs::read(bench.docker_archive()).unwrap();
    let call = sandcrate(&["image", "import", "bb", "-", "-o", "json"]);
    let record = call.env("SANDCRATE_STATE_DIR", bench.state.path()).input(archive).run().json();
    assert_eq!((&record["source"], &record["name"]), (&json!("docker"), &json!("bb")));
    bench.run("bb", &[], "true").ok();
}

#[test]
fn an_image_cannot_lead_its_box_astray() {
    if skip_without(&NEEDED) {
        return;
    }
    let bench = Bench::new();
    let hostile = bench.python_tar(
        "hostile.tar",
        "root()\n\
         L = tarfile.SYMTYPE\n\
         add('tmp', L, link='/etc'); add('proc', L, link='../../../../proc'); add('workspace', L, link='/')\n\
         add('home', L, link='/proc'); add('mnt', data=b'a file'); add('root', L, link='loop'); add('loop', L, link='root')\n\
         add('etc', tarfile.DIRTYPE, mode=0o777); add('etc/resolv.conf', L, link='/proc/self/mem')\n\
         add('etc/passwd', L, link='/etc/shadow'); add('dev', L, link='/etc')\n\
         add('bin/suid', mode=0o6755, data=busybox, uid=0); add('shared', data=b'', mode=0o666, uid=1000, gid=1000)\n\
         add('out', L, link='/../../../etc'); add('out/written', data=b'inside')\n",
    );
    let before = fs::read_dir("/etc").unwrap().count();
    bench.import("evil", &hostile).ok();
    assert_eq!(fs::read_dir("/etc").unwrap().count(), before, "nothing was written to the host's /etc");
    let volume = format!("{}:/elsewhere/deep:ro", bench.path("").display());
    for flags in [&[][..], &["-v", &volume]] {
        let seen = bench.run(
            "evil",
            flags,
            "for d in /tmp /proc /workspace /home/box /dev /etc; do stat -c '%n %F' $d; done; \
             echo x > /tmp/x && echo y > /workspace/y && cat /tmp/x; ls /etc/x 2>/dev/null; \
             stat -c '%a %U' /bin/suid; cat /etc/written; echo; cat /etc/resolv.conf; \
             echo z > /shared; echo z > /etc/z; touch /bin/new; grep -c . /proc/self/status > /dev/null && echo proc",
        );
        let owner = if rustix::process::geteuid().is_root() { "root" } else { "box" };
        let expected = format!(
            "/tmp directory\n/proc directory\n/workspace directory\n/home/box directory\n/dev directory\n/etc directory\n\
             x\n755 {owner}\ninside\nnameserver 192.0.0.1\nproc\n"
        );
        assert_eq!(seen.stdout, expected, "{seen:?}");
        assert_eq!(seen.stderr.matches("Read-only file system").count(), 3, "{seen:?}");
    }
}

#[test]
fn archives_that_no_image_needs_are_refused_and_leave_nothing() {
    if skip_without(&NEEDED) {
        return;
    }
    let bench = Bench::new();
    for (script, said) in [
        ("add('disk', tarfile.BLKTYPE)", "device node"),
        ("add('etc/null', tarfile.CHRTYPE)", "device node"),
        ("add('../../tmp/sandcrate-escape', data=b'x')", "`..`"),
        ("add('link', tarfile.LNKTYPE, link='/etc/../../shadow')", "`..`"),
        ("add('link', tarfile.LNKTYPE, link='nothing')", "not there"),
        ("add('l', tarfile.SYMTYPE, link='/nowhere'); add('l/x', data=b'')", "leads nowhere"),
    ] {
        let archive = bench.python_tar("bad.tar", &format!("root()\n{script}"));
        let output = bench.import("bad", &archive);
        assert!(output.code == 125 && output.stderr.contains(said), "{script}: {output:?}");
        let output = bench.call(&["image", "import", "bad", archive.to_str().unwrap(), "-o", "json"]);
        assert_eq!((output.code, &output.json()["error"]["kind"]), (125, &json!("validation")), "{output:?}");
    }
    fs::write(bench.path("text"), "no archive at all").unwrap();
    let output = bench.import("bad", &bench.path("text"));
    assert!(output.code == 125 && output.stderr.contains("hint: SOURCE is"), "{output:?}");
    let output = bench.import("bad", &bench.path("missing"));
    assert!(output.code == 125 && output.stderr.contains("no such file"), "{output:?}");
    let output = bench.import("b/../d", &bench.path("text"));
    assert!(output.code == 125 && output.stderr.contains("`b/../d` must not"), "{output:?}");
    let root = bench.python_tar("many.tar", "root()\nfor i in range(100): add(f'f{i}')");
    let output = bench.call(&["image", "import", "bad", root.to_str().unwrap(), "--max-entries", "50"]);
    assert!(output.code == 125 && output.stderr.contains("--max-entries"), "{output:?}");
    let output = bench.call(&["image", "import", "bad", root.to_str().unwrap(), "--max-size", "1M"]);
    assert!(output.code == 125 && output.stderr.contains("--max-size"), "{output:?}");
    // A gigabyte of zeros, packed small: ended by the bound, not by the disk.
    let bomb = bench.python_tar("bomb.tar", "root()\nadd('zeros', data=bytes(200 << 20))");
    let packed = std::process::Command::new("gzip").arg("-1").arg(&bomb).status().unwrap();
    assert!(packed.success());
    let output = bench.call(&[
        "image",
        "import",
        "bad",
        bench.path("bomb.tar.gz").to_str().unwrap(),
        "--max-size",
        "50M",
    ]);
    assert!(output.code == 125 && output.stderr.contains("--max-size"), "{output:?}");
    assert_eq!(bench.roots(), 0);
    assert_eq!(bench.call(&["image", "ls", "-o", "json"]).json(), json!({"images": []}));
}

#[test]
fn a_box_of_an_image_writes_to_itself_only() {
    if skip_without(&[Feature::Root, Feature::Box, Feature::Program("busybox")]) {
        return;
    }
    let bench = Bench::new();
    bench.import("bb", &bench.busybox()).ok();
    let script = "id -u; echo new > /etc/mark; rm /bin/ls; mkdir /made && touch /made/x; cat /etc/mark; ls /made /bin/ls";
    let seen = bench.run("bb", &["--writable-root"], script);
    assert_eq!(seen.stdout, "0\nnew\n/made:\nx\n", "{seen:?}");
    let after =
        bench.run("bb", &["--writable-root"], "cat /etc/mark; ls /bin/ls; ls -d /made 2>/dev/null; echo .");
    assert_eq!(after.stdout, "image/bin/ls\n.\n", "{after:?}");
}

#[test]
fn mounts_and_the_hosts_network_work_with_an_image() {
    if skip_without(&NEEDED) {
        return;
    }
    let bench = Bench::new();
    bench.import("bb", &bench.busybox()).ok();
    let shared = bench.path("shared");
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(shared.join("file"), "shared\n").unwrap();
    let volume = format!("{}:/srv/a/b", shared.display());
    let seen =
        bench.run("bb", &["-v", &volume], "cat /srv/a/b/file; echo mine > /srv/a/b/new; touch /srv/a/c");
    assert!(seen.stdout == "shared\n" && seen.stderr.contains("Read-only"), "{seen:?}");
    assert_eq!(fs::read_to_string(shared.join("new")).unwrap(), "mine\n");
    let resolver = fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    for flags in [&["-q", "--network", "host"][..], &["-q", "--network", "host", "-v", &volume]] {
        assert_eq!(bench.run("bb", flags, "cat /etc/resolv.conf").ok(), resolver);
    }
    let mounts = bench.run("bb", &[], "cat /proc/self/mountinfo").ok();
    let state = bench.state.path().file_name().unwrap().to_str().unwrap();
    assert!(!mounts.contains(state), "the mount table tells where the image lies: {mounts}");
    let root: Vec<&str> = mounts.lines().filter(|line| line.split(' ').nth(4) == Some("/")).collect();
    assert!(root.len() == 1 && root[0].contains(" ro,nosuid,nodev"), "{root:?}");
}

#[test]
fn a_name_that_is_not_imported_is_an_error_of_run() {
    if skip_without(&NEEDED) {
        return;
    }
    let bench = Bench::new();
    for name in ["missing", "../etc", "a b"] {
        let output = bench.run(name, &[], "true");
        assert!(
            output.code == 125 && output.stderr.contains("image `") && output.stdout.is_empty(),
            "{output:?}"
        );
    }
}

fn filesystem(session: &Value) -> String {
    let findings = session["enforcement"].as_array().unwrap_or_else(|| panic!("no record: {session}"));
    let finding = findings.iter().find(|finding| finding["control"] == "filesystem").unwrap();
    finding["by"].as_str().unwrap().to_owned()
}

#[test]
fn sessions_use_what_is_mapped_and_say_when_they_do_not() {
    if skip_without(&NEEDED) {
        return;
    }
    let bench = Bench::new();
    bench.import("bb", &bench.busybox()).ok();
    let config = bench.path("sandcrate.toml");
    fs::write(&config, "[images]\n\"rockchin/langbot-sandbox:latest\" = \"bb\"\n\"ghost:1\" = \"gone\"\n")
        .unwrap();
    let server = Server::start(serve(&["--config", config.to_str().unwrap()], bench.state.path()));
    let create =
        |id: &str, body: Value| server.request("POST", &format!("/v1/sessions/{id}"), "", &body.to_string());
    // LangBot's own default is mapped; `bb` is an image by its own name; nobody has the third.
    for (id, image, has) in [("a", None, true), ("b", Some("bb"), true), ("c", Some("debian:13"), false)] {
        let (status, session) = create(id, image.map_or(json!({}), |image| json!({"image": image})));
        assert!(status == 200 || status == 201, "{session}");
        let by = filesystem(&session);
        assert_eq!(by.contains("image `bb`") && by.contains("sha256:"), has, "{by}");
        assert_eq!(by.contains("image `debian:13` is not imported"), !has, "{by}");
        let mark = server.exec(id, "cat /etc/mark 2>/dev/null || echo host");
        assert_eq!(mark["stdout"], if has { "image" } else { "host\n" }, "{mark}");
    }
    let (status, refusal) = create("d", json!({"image": "ghost:1"}));
    assert!(status == 400 && refusal.to_string().contains("`gone`"), "{status} {refusal}");
    let shown = bench.call(&["config", "show", "--config", config.to_str().unwrap()]).ok();
    assert!(
        shown.contains(r#"images = {"ghost:1" = "gone", "rockchin/langbot-sandbox:latest" = "bb"}"#),
        "{shown}"
    );
    fs::write(&config, "[images]\nx = \"../etc\"\n").unwrap();
    let output = bench.call(&["config", "show", "--config", config.to_str().unwrap()]);
    assert!(
        output.code == 125 && output.stderr.contains("images") && output.stderr.contains("../etc"),
        "{output:?}"
    );
}

#[test]
fn an_image_in_use_is_not_removed_under_its_boxes() {
    if skip_without(&NEEDED) {
        return;
    }
    let bench = Bench::new();
    bench.import("bb", &bench.busybox()).ok();
    let server = Server::start(serve(&[], bench.state.path()));
    let create = |id: &str| server.request("POST", &format!("/v1/sessions/{id}"), "", r#"{"image": "bb"}"#);
    assert!(filesystem(&create("s").1).contains("image `bb`"));
    let (status, listed) = server.get("/v1/images");
    assert_eq!(
        (status, &listed["images"][0]["name"], &listed["images"][0]["backend"]),
        (200, &json!("bb"), &json!("native"))
    );
    let (status, refusal) = server.request("DELETE", "/v1/images/bb", "", "");
    assert!(status == 409 && refusal["error"]["message"].as_str().unwrap().contains("in use"), "{refusal}");
    assert_eq!(server.request("DELETE", "/v1/images/none%2Fsuch", "", "").0, 404);
    let refused = bench.call(&["image", "rm", "bb"]);
    assert!(refused.code == 125 && refused.stderr.contains("in use"), "{refused:?}");
    // Replaced and then removed by force: the box has what it had.
    fs::write(bench.path("busybox/etc/mark"), "second").unwrap();
    let said = bench.import("bb", &bench.path("busybox")).ok();
    assert!(said.contains("in the place of an earlier one"), "{said}");
    assert_eq!(server.exec("s", "cat /etc/mark")["stdout"], "image");
    create("t");
    assert_eq!(server.exec("t", "cat /etc/mark")["stdout"], "second");
    let (status, removed) = server.request("DELETE", "/v1/images/bb?force=true", "", "");
    assert_eq!((status, removed), (200, json!({"removed": "bb"})));
    assert_eq!(bench.roots(), 2);
    for (id, mark) in [("s", "image"), ("t", "second")] {
        assert_eq!(server.exec(id, "cat /etc/mark; ls /bin/sh")["stdout"], format!("{mark}/bin/sh\n"));
        assert_eq!(server.request("DELETE", &format!("/v1/sessions/{id}"), "", "").0 / 100, 2);
    }
    let (_, session) = create("s");
    assert!(filesystem(&session).contains("is not imported"));
    // Swept by whoever comes next, when nothing of their boxes is left.
    until("nothing but the new image is there", || {
        bench.import("other", &bench.path("busybox")).ok();
        (bench.roots() == 1).then_some(())
    });
}

#[test]
fn an_import_that_is_killed_leaves_nothing_that_is_used() {
    if skip_without(&NEEDED) {
        return;
    }
    let bench = Bench::new();
    bench.import("bb", &bench.busybox()).ok();
    let big = bench
        .python_tar("big.tar", "root()\nfor i in range(3000): add(f'd{i % 50}/f{i}', data=bytes(20000))");
    let roots = bench.state.path().join("images/roots");
    for _ in 0..5 {
        let args = ["image", "import", "bb", big.to_str().unwrap()];
        let running = sandcrate(&args).env("SANDCRATE_STATE_DIR", bench.state.path()).start();
        // Under way: its root is there, and has something in it.
        until("the import to begin", || {
            let dirs = fs::read_dir(&roots).ok()?.flatten().map(|entry| entry.path().join("rootfs/d1"));
            dirs.into_iter().any(|dir| dir.exists()).then_some(())
        });
        running.signal(Signal::KILL);
        drop(running);
        assert_eq!(bench.run("bb", &[], "cat /etc/mark").ok(), "image", "the one that was there is used");
    }
    bench.import("other", &bench.path("busybox")).ok();
    assert_eq!(bench.roots(), 2);
}

#[test]
fn many_boxes_of_one_image_at_once_share_it() {
    if skip_without(&NEEDED) {
        return;
    }
    let bench = Bench::new();
    bench.import("bb", &bench.busybox()).ok();
    let server = Server::start(serve(&[], bench.state.path()));
    std::thread::scope(|scope| {
        for worker in 0..8 {
            let server = &server;
            scope.spawn(move || {
                for round in 0..5 {
                    let id = format!("s-{worker}-{round}");
                    let body = json!({"image": "bb", "read_only_rootfs": worker % 2 == 0});
                    let (status, answer) =
                        server.request("POST", &format!("/v1/sessions/{id}"), "", &body.to_string());
                    // A writable root needs root; what else may fail is a failure.
                    if status / 100 != 2 {
                        assert!(!rustix::process::geteuid().is_root() && worker % 2 == 1, "{answer}");
                        continue;
                    }
                    assert_eq!(server.exec(&id, "cat /etc/mark")["stdout"], "image");
                    server.request("DELETE", &format!("/v1/sessions/{id}"), "", "");
                }
            });
        }
    });
    bench.call(&["image", "rm", "bb"]).ok();
    assert_eq!(bench.roots(), 0);
}

#[test]
fn an_archive_is_imported_by_rest() {
    if skip_without(&NEEDED) {
        return;
    }
    let bench = Bench::new();
    let archive = fs::read(bench.docker_archive()).unwrap();
    let server = Server::start(serve(&[], bench.state.path()));
    let send = |name: &str, body: &[u8], length: usize| {
        let mut stream = std::net::TcpStream::connect(&server.address).unwrap();
        let head = format!(
            "POST /v1/images/{name} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body).unwrap();
        if body.len() < length {
            // The connection breaks off.
            stream.shutdown(std::net::Shutdown::Write).unwrap();
        }
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    };
    let answer = send("a%2Fb", &archive, archive.len());
    assert!(answer.starts_with("HTTP/1.1 201") && answer.contains("\"name\":\"a/b\""), "{answer}");
    let answer = send("broken", &archive[..archive.len() / 2], archive.len());
    assert!(!answer.starts_with("HTTP/1.1 2"), "{answer}");
    for (name, body) in [("junk", &b"no archive"[..]), ("..", &archive)] {
        let answer = send(name, body, body.len());
        assert!(answer.starts_with("HTTP/1.1 400") || answer.starts_with("HTTP/1.1 404"), "{answer}");
    }
    assert_eq!(bench.roots(), 1);
    server.request("POST", "/v1/sessions/s", "", r#"{"image": "a/b"}"#);
    assert_eq!(server.exec("s", "cat /etc/mark")["stdout"], "image");
}
