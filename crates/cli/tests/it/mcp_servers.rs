//! Many MCP servers in real boxes, the gateway over them, and `sandcrate mcp` as their client.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::driver::{Output, sandcrate};
use crate::server::{Server, serve};
use crate::skip::{Feature, skip_without};

/// A whole MCP server of the standard library. Its first argument is a mark that the host's process list shows.
const SERVER: &str = r#"
import json, os, signal, socket, sys, time
mark = sys.argv[1]
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sys.stderr.write("started as %s\n" % mark); sys.stderr.flush()
def say(message):
    sys.stdout.write(json.dumps(dict(message, jsonrpc="2.0")) + "\n"); sys.stdout.flush()
def text(words, error=False):
    return {"content": [{"type": "text", "text": words}], "isError": error}
TOOLS = [{"name": name, "description": "d", "inputSchema": {"type": "object"}} for name in ("echo", "read", "fail", "die", "slow", "connect")]
for line in sys.stdin:
    request = json.loads(line)
    method, params = request.get("method"), request.get("params") or {}
    if method == "initialize":
        result = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": {"name": mark, "version": "1"}}
    elif method == "tools/list":
        result = {"tools": TOOLS}
    elif method == "tools/call":
        arguments = params.get("arguments") or {}
        name = params["name"]
        if name == "echo":
            result = text("%s said %s in pid %d" % (mark, arguments.get("word"), os.getpid()))
        elif name == "read":
            try:
                result = text(open(arguments["path"]).read())
            except OSError as error:
                result = text("cannot read: %s" % error, True)
        elif name == "connect":
            try:
                socket.create_connection(("10.1.2.3", 5432), 20)
                result = text("connected")
            except OSError as error:
                result = text("cannot connect: %s" % error, True)
        elif name == "fail":
            result = text("it failed", True)
        elif name == "slow":
            token = (params.get("_meta") or {}).get("progressToken")
            say({"method": "notifications/progress", "params": {"progressToken": token, "progress": 1}})
            time.sleep(60)
            result = text("late")
        else:
            os._exit(7)
    elif request.get("id") is None:
        continue
    else:
        result = {}
    say({"id": request["id"], "result": result})
"#;

/// What a server's table says, as TOML.
fn table(name: &str, mark: &str) -> String {
    let args = json!(["-c", SERVER, mark]);
    format!("[mcp.servers.{name}]\ncommand = \"python3\"\nargs = {args}\n")
}

struct Case {
    server: Server,
    dir: tempfile::TempDir,
    mark: String,
}

impl Case {
    /// A server with these tables, in which `MARK` is a word that no other process has.
    fn start(config: &str) -> Self {
        let dir = tempfile::Builder::new().prefix("sandcrate-test-").tempdir().unwrap();
        let mark = format!("mark-{}", dir.path().file_name().unwrap().to_str().unwrap());
        let file = dir.path().join("sandcrate.toml");
        std::fs::write(&file, config.replace("MARK", &mark)).unwrap();
        let flags = ["--config", file.to_str().unwrap()];
        let server = Server::start(serve(&flags, &dir.path().join("state")));
        Self { server, dir, mark }
    }

    fn mcp(&self, args: &[&str]) -> Output {
        let url = format!("http://{}", self.server.address);
        let all: Vec<&str> = ["mcp"].iter().chain(args).copied().collect();
        sandcrate(&all).env("SANDCRATE_URL", url).run()
    }

    fn info(&self, name: &str) -> Value {
        self.server.get(&format!("/v1/mcp/servers/{name}")).1["runtime_info"].clone()
    }

    fn until(&self, name: &str, status: &str) -> Value {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let info = self.info(name);
            if info["status"] == status {
                return info;
            }
            assert!(Instant::now() < deadline, "{name} is never {status}: {info}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// A session of the gateway at this path.
    fn client(&self, path: &'static str) -> Client<'_> {
        let mut client = Client { case: self, path, session: String::new() };
        let params = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
        let (head, _) =
            client.post(&json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}));
        let session = head.lines().find_map(|line| line.strip_prefix("mcp-session-id: "));
        client.session = session.unwrap_or_else(|| panic!("no session: {head}")).to_owned();
        client.post(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        client
    }
}

/// Servers on the host that have the mark.
fn processes(mark: &str) -> usize {
    let marked = |entry: &std::fs::DirEntry| {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        line.starts_with("python3") && line.contains(mark)
    };
    std::fs::read_dir("/proc").unwrap().filter_map(Result::ok).filter(marked).count()
}

struct Client<'a> {
    case: &'a Case,
    path: &'static str,
    session: String,
}

impl Client<'_> {
    fn post(&self, body: &Value) -> (String, String) {
        let mut stream = TcpStream::connect(&self.case.server.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let body = body.to_string();
        let session = match self.session.as_str() {
            "" => String::new(),
            session => format!("Mcp-Session-Id: {session}\r\n"),
        };
        let head = format!(
            "POST {} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAccept: application/json, text/event-stream\r\n\
             Content-Type: application/json\r\n{session}Content-Length: {}\r\n\r\n",
            self.path,
            body.len()
        );
        stream.write_all((head + &body).as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), body.to_owned())
    }

    fn ask(&self, method: &str, params: &Value) -> Value {
        let (head, body) = self.post(&json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params}));
        let messages = body.lines().filter_map(|line| line.strip_prefix("data:"));
        let mut messages = messages.filter_map(|data| serde_json::from_str::<Value>(data.trim()).ok());
        messages.find(|message| message["id"] == 7).unwrap_or_else(|| panic!("{head}\n{body}"))
    }

    fn call(&self, name: &str, arguments: &Value) -> Value {
        self.ask("tools/call", &json!({"name": name, "arguments": arguments}))["result"].clone()
    }

    fn tools(&self) -> Vec<String> {
        let listed = self.ask("tools/list", &json!({}));
        let tools = listed["result"]["tools"].as_array().unwrap_or_else(|| panic!("{listed}"));
        tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
    }
}

fn said(result: &Value) -> &str {
    result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{result}"))
}

#[test]
fn tools_of_all_servers_are_called_in_their_boxes_through_one_address() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let config = format!(
        "[mcp]\ndeny = [\"two__fail\"]\ncall_timeout_sec = 2\n{}{}",
        table("one", "MARK-1"),
        table("two", "MARK-2")
    );
    let case = Case::start(&config);
    for name in ["one", "two"] {
        let info = case.until(name, "connected");
        assert_eq!(
            (&info["tool_count"], &info["box_session_id"]),
            (&json!(6), &json!(format!("mcp-{name}")))
        );
    }
    assert_eq!(processes(&case.mark), 2);
    let all = case.client("/mcp");
    let names = all.tools();
    assert!(names.contains(&"one__fail".to_owned()) && names.contains(&"two__echo".to_owned()), "{names:?}");
    assert!(!names.contains(&"two__fail".to_owned()), "{names:?}");
    let told = all.call("two__echo", &json!({"word": "hello"}));
    assert!(said(&told).starts_with(&format!("{}-2 said hello in pid ", case.mark)), "{told}");
    // It is in a box: neither our files nor another server's are there.
    let secret = case.dir.path().join("secret");
    std::fs::write(&secret, "of the host").unwrap();
    for path in [secret.to_str().unwrap(), "/etc/shadow"] {
        let refused = all.call("one__read", &json!({"path": path}));
        assert!(refused["isError"] == true && said(&refused).starts_with("cannot read"), "{refused}");
    }
    assert_eq!(said(&all.call("one__fail", &json!({}))), "it failed");
    let denied = all.call("two__fail", &json!({}));
    assert!(denied["isError"] == true && said(&denied).contains("`mcp.deny` names it"), "{denied}");
    let late = all.call("one__slow", &json!({}));
    assert_eq!(said(&late), "the call took longer than 2 seconds and was cancelled");
    let one = case.client("/mcp/one");
    assert!(one.tools().contains(&"echo".to_owned()));
    // It sleeps in a call that nobody waits for; its neighbour does not mind, and it is restarted.
    case.mcp(&["restart", "one"]).ok();
    case.until("one", "connected");
    assert!(said(&one.call("echo", &json!({"word": "again"}))).contains("said again"));
    // A death in a call is an answer, then an attempt.
    let dead = all.call("two__die", &json!({}));
    assert!(dead["isError"] == true && said(&dead).contains("not connected"), "{dead}");
    let back = Instant::now() + Duration::from_secs(30);
    while all.call("two__echo", &json!({}))["isError"] == true {
        assert!(Instant::now() < back, "it does not come back");
        std::thread::sleep(Duration::from_millis(100));
    }
    let mark = case.mark.clone();
    case.server.running.signal(Signal::TERM);
    let ended = case.server.running.finish();
    assert_eq!(ended.code, 0, "{ended:?}");
    assert_eq!(processes(&mark), 0, "a server that ignores SIGTERM is left");
}

#[test]
fn what_a_box_refused_is_told_with_the_result_of_the_call() {
    if skip_without(&[Feature::Box, Feature::IsolatedNetwork]) {
        return;
    }
    let case = Case::start(&format!("{}box = {{network = \"on\"}}\n", table("web", "MARK")));
    case.until("web", "connected");
    let all = case.client("/mcp");
    let fine = all.call("web__echo", &json!({"word": "x"}));
    assert_eq!(fine["_meta"]["sandcrate/denials"], Value::Null, "{fine}");
    let refused = all.call("web__connect", &json!({}));
    assert!(refused["isError"] == true && said(&refused).starts_with("cannot connect"), "{refused}");
    let denials = refused["_meta"]["sandcrate/denials"].as_array().unwrap_or_else(|| panic!("{refused}"));
    assert!(denials[0]["target"].as_str().unwrap().contains("10.1.2.3:5432"), "{denials:?}");
    let words = refused["content"][1]["text"].as_str().unwrap();
    assert!(words.starts_with("The box refused ") && words.contains("10.1.2.3:5432"), "{words}");
}

#[test]
fn without_boxes_no_server_is_started_anywhere() {
    let config = format!(
        "[runtime]\nbackend = \"docker\"\n{}box = {{startup_timeout_sec = 2}}\n",
        table("one", "MARK")
    );
    let dir = tempfile::Builder::new().prefix("sandcrate-test-").tempdir().unwrap();
    let mark = format!("mark-{}", dir.path().file_name().unwrap().to_str().unwrap());
    let file = dir.path().join("sandcrate.toml");
    std::fs::write(&file, config.replace("MARK", &mark)).unwrap();
    let flags = ["--config", file.to_str().unwrap()];
    let nowhere = format!("unix://{}", dir.path().join("no-daemon").display());
    let call = serve(&flags, &dir.path().join("state")).env("DOCKER_HOST", nowhere);
    let case = Case { server: Server::start(call), dir, mark };
    let info = case.until("one", "error");
    assert_eq!(info["error_phase"], "box_unavailable", "{info}");
    let words = info["error_message"].as_str().unwrap();
    assert!(words.contains("Box runtime is not available after 2 seconds"), "{words}");
    assert_eq!(processes(&case.mark), 0, "it is never started on the host instead");
}

#[test]
fn a_server_that_dies_is_reported_with_the_phase_it_died_in() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let place = tempfile::Builder::new().prefix("sandcrate-test-").tempdir().unwrap();
    let project = place.path().join("project");
    std::fs::create_dir(&project).unwrap();
    std::fs::write(project.join("server.py"), "").unwrap();
    std::fs::write(project.join("requirements.txt"), "--no-index\nno-such-thing==9\n").unwrap();
    let case = Case::start(&format!("[mounts]\nroots = [{:?}]\n", place.path()));
    let init = r#"{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-06-18","capabilities":{},"serverInfo":{"name":"x","version":"1"}}}"#;
    let dies_later = format!("read line; echo '{init}'; sleep 1; exit 3");
    let shell = |script: &str| json!({"command": "sh", "args": ["-c", script]});
    let flood = shell("yes x | head -c 40000000 | tr -d '\\n'; sleep 60");
    let tests = [
        ("session_create", json!({"command": "true", "box": {"network": "host"}})),
        ("staging", json!({"command": "true", "box": {"host_path": "/nonexistent/project"}})),
        (
            "dep_install",
            json!({"command": "python3", "args": [project.join("server.py")], "box": {"install_network": "off"}}),
        ),
        ("process_start", json!({"command": "no-such-program-here"})),
        ("mcp_init", shell("echo told why >&2; exit 3")),
        (
            "mcp_init",
            json!({"command": "sh", "args": ["-c", "echo garbage; sleep 60"], "box": {"startup_timeout_sec": 2}}),
        ),
        ("mcp_init", json!({"command": "sh", "args": flood["args"], "box": {"startup_timeout_sec": 3}})),
        ("runtime", shell(&dies_later)),
    ];
    std::thread::scope(|scope| {
        for (phase, body) in &tests {
            let case = &case;
            scope.spawn(move || {
                let (status, mut report) = case.server.request("POST", "/v1/mcp/test", "", &body.to_string());
                assert_eq!(status, 200, "{body}: {report}");
                if *phase == "runtime" {
                    // It was connected once, and that is what a test asks for; its end is a server's affair.
                    assert_eq!(report["ok"], true, "{report}");
                    return;
                }
                let info = report["runtime_info"].take();
                assert_eq!(
                    (&report["ok"], info["error_phase"].as_str()),
                    (&json!(false), Some(*phase)),
                    "{body}: {info}"
                );
                let text = info["error_message"].as_str().unwrap();
                assert!(
                    text.starts_with("Failed after 4 attempts: ")
                        || text.starts_with("Connection timeout")
                        || (*phase == "staging" && text.contains("/nonexistent/project")),
                    "{text}"
                );
            });
        }
    });
    let body = json!({"name": "dies", "command": "sh", "args": ["-c", dies_later]});
    assert_eq!(case.server.request("POST", "/v1/mcp/servers", "", &body.to_string()).0, 201);
    let info = case.until("dies", "error");
    assert_eq!(info["error_phase"], "runtime", "{info}");
    let expected = "Failed after 4 attempts: runtime: Box managed process exited unexpectedly";
    assert_eq!(info["error_message"], expected);
    let (_, sessions) = case.server.get("/v1/sessions");
    assert_eq!(sessions["sessions"], json!([]), "no box is left");
}

#[test]
fn a_file_of_another_program_is_imported_and_managed() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let case = Case::start("");
    let file = case.dir.path().join("claude.json");
    let entry = json!({"command": "python3", "args": ["-c", SERVER, case.mark], "env": {"KEY": "secret"}});
    let text = json!({"mcpServers": {"My Tools": entry, "net": {"url": "https://example.com"}}});
    std::fs::write(&file, format!("// mine\n{text}")).unwrap();
    let imported = case.mcp(&["import", file.to_str().unwrap()]);
    // All that can be started was taken; what is on the network is told, and no failure.
    assert_eq!((imported.code, imported.stdout.as_str()), (0, "My-Tools\n"), "{imported:?}");
    let asked = case.mcp(&["import", "--only", "net", file.to_str().unwrap()]);
    assert!(asked.code == 125 && asked.stderr.contains("not imported: net"), "{asked:?}");
    assert!(
        imported.stderr.contains("not imported: net: it is reached over the network (url)"),
        "{imported:?}"
    );
    assert!(imported.stderr.contains("My Tools is called My-Tools here"), "{imported:?}");
    let again = case.mcp(&["import", "--only", "My Tools", file.to_str().unwrap()]);
    assert!(again.code == 125 && again.stderr.contains("mcp_server_conflict"), "{again:?}");
    case.mcp(&["import", "--replace", "--only", "My Tools", file.to_str().unwrap()]).ok();
    assert_eq!(case.mcp(&["test", "My-Tools"]).ok(), "My-Tools: connected, 6 tools\n");
    let table = case.mcp(&["ls"]).ok();
    assert!(table.contains("My-Tools  connected  6      stored  python3"), "{table}");
    let shown = case.mcp(&["show", "My-Tools"]).ok();
    assert!(shown.contains("session   mcp-My-Tools\n") && shown.contains("tool      echo  d\n"), "{shown}");
    assert!(!case.mcp(&["show", "-o", "json", "My-Tools"]).ok().contains("secret"));
    assert_eq!(case.mcp(&["logs", "My-Tools"]).ok(), format!("started as {}\n", case.mark));
    assert_eq!(case.mcp(&["rm", "My-Tools"]).ok(), "My-Tools\n");
    let gone = case.mcp(&["show", "My-Tools"]);
    assert!(gone.code == 125 && gone.stderr.contains("sandcrate mcp ls"), "{gone:?}");
    assert_eq!(processes(&case.mark), 0);
}

#[test]
fn a_directory_is_in_the_box_by_the_entry_of_the_guide() {
    if skip_without(&[Feature::Box, Feature::Program("python3")]) {
        return;
    }
    let place = tempfile::Builder::new().prefix("sandcrate-test-").tempdir().unwrap();
    std::fs::write(place.path().join("a.txt"), "of the host").unwrap();
    let case = Case::start(&format!("[mounts]\nroots = [{:?}]\n", place.path()));
    let file = case.dir.path().join("claude.json");
    let entry = json!({"command": "python3", "args": ["-c", SERVER, case.mark, "/data"], "box": {"host_path_mode": "none"}});
    let mut with_mount = entry.clone();
    with_mount["box"]["mounts"] = json!([{"host_path": place.path(), "mount_path": "/data", "mode": "ro"}]);
    let text = json!({"mcpServers": {"files": with_mount, "without": entry}});
    std::fs::write(&file, text.to_string()).unwrap();
    case.mcp(&["import", file.to_str().unwrap()]).ok();
    case.until("files", "connected");
    case.until("without", "connected");
    let read = json!({"path": "/data/a.txt"});
    assert_eq!(said(&case.client("/mcp/files").call("read", &read)), "of the host");
    assert!(!case.mcp(&["show", "files"]).ok().contains("not in the box"));
    assert!(said(&case.client("/mcp/without").call("read", &read)).starts_with("cannot read"));
    for verb in ["show", "logs"] {
        let told = case.mcp(&[verb, "without"]).ok();
        assert!(told.contains("/data is not in the box; box.mounts [{\"host_path\":\"/data\""), "{told}");
    }
}

#[test]
fn every_name_that_is_to_go_is_tried() {
    let case = Case::start("");
    for name in ["a", "b"] {
        let body = json!({"name": name, "command": "true", "enabled": false});
        assert_eq!(case.server.request("POST", "/v1/mcp/servers", "", &body.to_string()).0, 201);
    }
    let gone = case.mcp(&["rm", "a", "nosuch", "b"]);
    assert_eq!((gone.code, gone.stdout.as_str()), (125, "a\nb\n"), "{gone:?}");
    assert!(gone.stderr.contains("error: Server not found: nosuch"), "{gone:?}");
    let none = case.mcp(&["rm", "-o", "json", "a", "b"]);
    let document: Value = serde_json::from_str(&none.stdout).unwrap();
    assert_eq!((none.code, &document["removed"]), (125, &json!([])), "{none:?}");
    assert_eq!(document["failed"][1]["name"], "b", "{document}");
}

#[test]
fn a_file_is_rewritten_for_people_without_a_server() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("mcp.json");
    let text = r#"{"mcpServers": {"a": {"command": "npx", "args": ["-y", "x"], "env": {"K": "1"}}}} // end"#;
    std::fs::write(&file, text).unwrap();
    let done = sandcrate(&["mcp", "import", "--rewrite", file.to_str().unwrap()]).run();
    assert!(!done.stderr.contains("warning"), "{done:?}");
    assert!(done.ok().starts_with("1 servers of "), "rewritten");
    let expected = r#"{"mcpServers": {"a": {"command": "sandcrate", "args": ["mcp","run","-e","K","--","npx","-y","x"], "env": {"K": "1"}}}} // end"#;
    assert_eq!(std::fs::read_to_string(&file).unwrap(), expected);
    assert_eq!(std::fs::read_to_string(Path::new(&file).with_extension("json.bak")).unwrap(), text);
    let lacking = json!({"mcpServers": {"files": {"command": "npx", "args": ["-y", "x", dir.path()]},
        "old": {"command": "docker", "args": ["run", "-i", "x"]}}});
    let told = sandcrate(&["mcp", "import", "--rewrite", "-"]).input(lacking.to_string()).run();
    let flag = format!("-v {0}:{0}:ro", dir.path().display());
    for words in ["warning: files: ", &flag, "warning: old: ", "container engine", "in front of `--`"] {
        assert!(told.code == 0 && told.stderr.contains(words), "{words}: {told:?}");
    }
    let piped = sandcrate(&["mcp", "import", "--rewrite", "-"]).input(text).run();
    assert_eq!(piped.ok(), expected);
    let bad = sandcrate(&["mcp", "import", "--rewrite", "-"]).input("{}").run();
    assert!(bad.code == 125 && bad.stderr.contains("neither `mcpServers`"), "{bad:?}");
}
