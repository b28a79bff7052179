//! A server under test: started on a free port, spoken to over loopback, ended with the test.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::driver::{Call, Running, read_until, sandcrate};

const ANSWER_TIME: Duration = Duration::from_secs(60);

/// One that listens.
pub(crate) struct Server {
    pub(crate) running: Running,
    /// `HOST:PORT`.
    pub(crate) address: String,
    /// What stderr had up to and with the ready line.
    pub(crate) said: String,
}

/// `sandcrate serve` on a free port, with these flags and this state directory.
pub(crate) fn serve(flags: &[&str], state: &Path) -> Call {
    let args: Vec<&str> = ["serve", "--listen", "127.0.0.1:0"].iter().chain(flags).copied().collect();
    sandcrate(&args).env("SANDCRATE_STATE_DIR", state)
}

impl Server {
    /// Waits until the call listens.
    pub(crate) fn start(call: Call) -> Self {
        let mut running = call.start();
        let stderr = running.child.stderr.as_mut().unwrap();
        let mut said = read_until(stderr, "listening on http://");
        let line = read_until(stderr, "\n");
        let address: String =
            line.chars().take_while(|c| c.is_ascii_digit() || matches!(c, '.' | ':' | '[' | ']')).collect();
        said.push_str(&line);
        Self { running, address, said }
    }

    pub(crate) fn get(&self, path: &str) -> (u16, Value) {
        self.request("GET", path, "", "")
    }

    /// Runs a command by REST.
    pub(crate) fn exec(&self, session: &str, cmd: &str) -> Value {
        let (status, body) = self.exec_with(session, &json!({"cmd": cmd}));
        assert_eq!(status, 200, "{body}");
        body
    }

    pub(crate) fn exec_with(&self, session: &str, body: &Value) -> (u16, Value) {
        self.request("POST", &format!("/v1/sessions/{session}/exec"), "", &body.to_string())
    }

    /// Further header lines end with CRLF each.
    pub(crate) fn request(&self, method: &str, path: &str, headers: &str, body: &str) -> (u16, Value) {
        request(TcpStream::connect(&self.address).unwrap(), method, path, headers, body)
    }
}

/// The same over a unix socket.
pub(crate) fn get_unix(socket: impl AsRef<OsStr>, path: &str) -> (u16, Value) {
    request(UnixStream::connect(Path::new(socket.as_ref())).unwrap(), "GET", path, "", "")
}

fn request(mut stream: impl Stream, method: &str, path: &str, headers: &str, body: &str) -> (u16, Value) {
    stream.give_up_after(ANSWER_TIME);
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    );
    stream.write_all((head + body).as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(body).unwrap_or_default())
}

trait Stream: Read + Write {
    fn give_up_after(&self, time: Duration);
}

impl Stream for TcpStream {
    fn give_up_after(&self, time: Duration) {
        self.set_read_timeout(Some(time)).unwrap();
    }
}

impl Stream for UnixStream {
    fn give_up_after(&self, time: Duration) {
        self.set_read_timeout(Some(time)).unwrap();
    }
}
