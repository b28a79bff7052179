//! A server for the tests of its clients, and what clients say when there is none.

use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use crate::driver::{Call, Output, Running, sandcrate, until};
use crate::skip::{Feature, skip_without};

/// `sandcrate serve` on a socket of its own; killed when dropped, and its boxes with it.
pub(crate) struct Server {
    pub(crate) running: Running,
    dir: tempfile::TempDir,
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    pub(crate) fn start_with(flags: &[&str]) -> Self {
        Self::start_as(flags, |call| call)
    }

    /// Where nothing can be reached.
    pub(crate) fn start_in_empty_network() -> Self {
        Self::start_as(&[], Call::in_empty_network)
    }

    fn start_as(flags: &[&str], change: impl FnOnce(Call) -> Call) -> Self {
        let dir = tempfile::Builder::new().prefix("sandcrate-test-").tempdir().unwrap();
        let listen = format!("unix:{}", dir.path().join("s").display());
        let args: Vec<&str> = ["serve", "--listen", &listen].iter().chain(flags).copied().collect();
        let running = change(sandcrate(&args)).start_on(Stdio::null(), Stdio::null(), Stdio::null());
        let mut server = Self { running, dir };
        until("the server's socket", || {
            assert!(server.running.child.try_wait().unwrap().is_none(), "the server ended: {args:?}");
            UnixStream::connect(server.socket()).ok()
        });
        server
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    pub(crate) fn url(&self) -> String {
        format!("unix:{}", self.socket().display())
    }

    /// A client of this server.
    pub(crate) fn call(&self, args: &[&str]) -> Call {
        sandcrate(args).env("SANDCRATE_URL", self.url())
    }

    pub(crate) fn run(&self, args: &[&str]) -> Output {
        self.call(args).run()
    }

    /// A shell script in session `s`.
    pub(crate) fn shell(&self, script: &str) -> Output {
        self.run(&["exec", "s", "--", "sh", "-c", script])
    }
}

/// A way to the server that can be cut.
pub(crate) struct Proxy {
    pub(crate) url: String,
    passing: Arc<Mutex<Vec<TcpStream>>>,
}

impl Proxy {
    pub(crate) fn to(server: &Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let passing: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
        let (socket, list) = (server.socket(), passing.clone());
        // Ends with the test's process.
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let client = client.unwrap();
                let Ok(server) = UnixStream::connect(&socket) else { return };
                list.lock().unwrap().push(client.try_clone().unwrap());
                let (mut up, mut down) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                let (mut client, mut server) = (client, server);
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut up, &mut server);
                    let _ = server.shutdown(Shutdown::Both);
                });
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut down, &mut client);
                    let _ = client.shutdown(Shutdown::Both);
                });
            }
        });
        Self { url, passing }
    }

    /// Cuts every connection that is open now, and says how many.
    pub(crate) fn cut(&self) -> usize {
        let cut = std::mem::take(&mut *self.passing.lock().unwrap());
        cut.iter().for_each(|client| drop(client.shutdown(Shutdown::Both)));
        cut.len()
    }
}

const VERBS: [&[&str]; 12] = [
    &["session", "ls"],
    &["session", "create"],
    &["exec", "s", "--", "true"],
    &["exec", "-t", "s", "--", "true"],
    &["ps"],
    &["logs", "s"],
    &["attach", "s"],
    &["stop", "s", "p"],
    &["cp", "s:/a", "/tmp/never"],
    &["skill", "ls"],
    &["skill", "rm", "x"],
    &["skill", "edit", "x", "--description", "y"],
];

#[test]
fn without_a_server_every_verb_says_how_to_start_one() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("unix:{}", dir.path().join("none").display());
    for verb in VERBS {
        let output = sandcrate(verb).env("SANDCRATE_URL", &url).run();
        assert_eq!((output.code, output.stdout.as_str()), (125, ""), "{verb:?}: {output:?}");
        let told = output.stderr.contains(&url) && output.stderr.contains("sandcrate serve");
        assert!(told, "{verb:?}: {output:?}");
    }
}

#[test]
fn programs_are_told_in_their_own_language() {
    let output = sandcrate(&["session", "ls", "-o", "json", "--url", "unix:/no/such/socket"]).run();
    assert_eq!((output.code, output.stderr.as_str()), (125, ""), "{output:?}");
    let document = output.json();
    assert_eq!((&document["ok"], &document["error"]["code"]), (&false.into(), &"server_unreachable".into()));
    // Arguments that cannot be read have the same document, and not that of `run`.
    for verb in [&["session", "ls"][..], &["mcp", "ls"]] {
        let output = sandcrate(&[verb, &["-o", "json", "--bogus"]].concat()).run();
        let document = output.json();
        assert_eq!((output.code, &document["exit_code"]), (125, &125.into()), "{output:?}");
        let error = &document["error"];
        assert!(error["code"].is_string() && error["message"].to_string().contains("--bogus"), "{document}");
        assert!(error["hint"].to_string().contains(&format!("sandcrate {} --help", verb[0])), "{document}");
        assert!(document.get("stdout").is_none(), "{document}");
    }
}

#[test]
fn a_bad_address_or_token_names_where_it_stands() {
    for (args, words) in [
        (&["ps", "--url", "127.0.0.1:5410"][..], &["--url", "http://HOST:PORT"][..]),
        (&["ps", "--url", "https://box"], &["--url", "TLS"]),
        (&["ps", "--url", "unix:rel"], &["--url", "absolute"]),
        (&["ps", "--token-file", "/no/such/file"], &["--token-file", "/no/such/file"]),
    ] {
        let output = sandcrate(args).run();
        assert_eq!(output.code, 125, "{args:?}: {output:?}");
        for word in words {
            assert!(output.stderr.contains(word), "{args:?}: `{word}` is not in {output:?}");
        }
    }
    let output = sandcrate(&["ps"]).env("SANDCRATE_URL", "nonsense").run();
    assert!(output.code == 125 && output.stderr.contains("$SANDCRATE_URL"), "{output:?}");
}

/// Something answers, and it is no server of ours.
#[test]
fn a_stranger_at_the_address_is_recognised() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let stranger = std::thread::spawn(move || {
        let (mut peer, _) = listener.accept().unwrap();
        std::io::Read::read(&mut peer, &mut [0; 4096]).unwrap();
        std::io::Write::write_all(&mut peer, b"HTTP/1.1 404 Not Found\r\ncontent-length: 4\r\n\r\nnope")
            .unwrap();
    });
    let output = sandcrate(&["session", "ls", "--url", &url]).run();
    assert_eq!(output.code, 125, "{output:?}");
    assert!(output.stderr.contains("404") && output.stderr.contains(&url), "{output:?}");
    stranger.join().unwrap();
}

#[test]
fn a_token_comes_from_the_environment_or_a_file() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    let token = "0123456789abcdef0123456789abcdef";
    std::fs::write(&file, format!("{token}\n")).unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let file = file.to_str().unwrap();
    let state = crate::driver::StateDir::new();
    let server = crate::server::Server::start(crate::server::serve(&["--token-file", file], state.path()));
    let url = format!("http://{}", server.address);
    let list = || sandcrate(&["session", "ls", "-q", "--url", &url]);
    let refused = list().run();
    assert_eq!(refused.code, 125, "{refused:?}");
    assert!(
        refused.stderr.contains("unauthorized") && refused.stderr.contains("SANDCRATE_TOKEN"),
        "{refused:?}"
    );
    assert_eq!(list().env("SANDCRATE_TOKEN", token).run().ok(), "");
    assert_eq!(list().env("SANDCRATE_TOKEN_FILE", file).run().ok(), "");
    assert_eq!(sandcrate(&["session", "ls", "-q", "--url", &url, "--token-file", file]).run().ok(), "");
    let over_websocket = sandcrate(&["exec", "-t", "s", "--url", &url, "--", "echo", "in"])
        .env("SANDCRATE_TOKEN", token)
        .run();
    assert_eq!(over_websocket.ok(), "in\r\n");
    let wrong = list().env("SANDCRATE_TOKEN", "f".repeat(32)).run();
    assert!(wrong.code == 125 && wrong.stderr.contains("unauthorized"), "{wrong:?}");
}
