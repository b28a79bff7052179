//! Uploads of any size, in bounded memory, that leave the old file when they break.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream;
use reqwest::{Body, Method};
use sandcrate_backend::fake::FakeBackend;
use sandcrate_backend::{
    Backend, BackendError, Capabilities, ExecRequest, Execution, FileReply, FileRequest, SessionId,
    SessionInfo, SessionSpec, SweepReport,
};
use serde_json::json;
use tokio::io::AsyncWriteExt;

use super::{Server, answer, script};

const FILES: &str = "/v1/sessions/demo/files";

/// A fake that looks at written bytes and forgets them.
#[derive(Debug)]
struct Sink {
    fake: FakeBackend,
    bytes: AtomicUsize,
    largest: AtomicUsize,
}

impl Sink {
    fn take(&self, data: &Bytes) {
        let offset = self.bytes.fetch_add(data.len(), Ordering::SeqCst);
        self.largest.fetch_max(data.len(), Ordering::SeqCst);
        let expected = (offset / PIECE) as u8;
        assert_eq!((data.first(), offset % PIECE), (Some(&expected), 0), "a piece out of order");
    }
}

#[async_trait]
impl Backend for Sink {
    fn name(&self) -> &'static str {
        self.fake.name()
    }
    fn capabilities(&self) -> Capabilities {
        self.fake.capabilities()
    }
    async fn probe(&self) -> Result<(), BackendError> {
        self.fake.probe().await
    }
    async fn start(&self, spec: SessionSpec) -> Result<SessionInfo, BackendError> {
        self.fake.start(spec).await
    }
    async fn restart(&self, spec: SessionSpec) -> Result<SessionInfo, BackendError> {
        self.fake.restart(spec).await
    }
    async fn exec(&self, session: &SessionId, request: ExecRequest) -> Result<Execution, BackendError> {
        self.fake.exec(session, request).await
    }
    async fn files(&self, session: &SessionId, request: FileRequest) -> Result<FileReply, BackendError> {
        let request = match request {
            FileRequest::Write { path, data } => {
                self.take(&data);
                FileRequest::Write { path, data: Bytes::new() }
            }
            FileRequest::Append { data, .. } => {
                self.take(&data);
                return Ok(FileReply::Done);
            }
            other => other,
        };
        self.fake.files(session, request).await
    }
    async fn is_alive(&self, session: &SessionId) -> bool {
        self.fake.is_alive(session).await
    }
    async fn stop(&self, session: &SessionId) -> Result<(), BackendError> {
        self.fake.stop(session).await
    }
    async fn remove_storage(&self, directory: &std::path::Path) -> Result<(), BackendError> {
        self.fake.remove_storage(directory).await
    }
    async fn sweep(&self) -> Result<SweepReport, BackendError> {
        self.fake.sweep().await
    }
    async fn shutdown(&self) {
        self.fake.shutdown().await;
    }
}

const PIECE: usize = 1 << 20;
const PIECES: usize = 200;

#[tokio::test]
async fn two_hundred_mebibytes_go_through_in_pieces() {
    let sink = Arc::new(Sink {
        fake: FakeBackend::new(script),
        bytes: AtomicUsize::new(0),
        largest: AtomicUsize::new(0),
    });
    let server = Server::over(sink.clone()).await;
    server.session("demo").await;
    let pieces = (0..PIECES).map(|number| Ok::<_, std::io::Error>(Bytes::from(vec![number as u8; PIECE])));
    let body = Body::wrap_stream(stream::iter(pieces));
    let (status, made) =
        answer(server.request(Method::PUT, &format!("{FILES}/workspace/big")).body(body)).await;
    assert_eq!((status, made), (201, json!({"path": "/workspace/big", "bytes": PIECES * PIECE})));
    assert_eq!(sink.bytes.load(Ordering::SeqCst), PIECES * PIECE);
    let largest = sink.largest.load(Ordering::SeqCst);
    assert!(largest <= 4 << 20, "one piece had {largest} bytes");
    let (_, list) = server.get(&format!("{FILES}/workspace?list=1")).await;
    let names: Vec<_> = list["entries"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
    assert_eq!(names, ["big"], "the file beside took its place");
}

#[tokio::test]
async fn a_large_file_comes_back_byte_for_byte() {
    let server = Server::start().await;
    server.session("demo").await;
    let data: Vec<u8> = (0..9_500_000_u32).map(|number| (number % 251) as u8).collect();
    let path = format!("{FILES}/workspace/big");
    let (status, _) = answer(server.request(Method::PUT, &path).body(data.clone())).await;
    assert_eq!(status, 201);
    let read = server.request(Method::GET, &path).send().await.unwrap();
    assert_eq!(read.content_length(), Some(data.len() as u64));
    assert!(read.bytes().await.unwrap() == data, "other bytes came back");
    let range = server.request(Method::GET, &path).header("range", "bytes=4000000-9000000");
    let part = range.send().await.unwrap().bytes().await.unwrap();
    assert!(part == data[4_000_000..=9_000_000], "another part came back");
}

#[tokio::test]
async fn an_upload_that_breaks_off_leaves_the_old_file() {
    let server = Server::start().await;
    server.session("demo").await;
    let path = format!("{FILES}/workspace/a");
    answer(server.request(Method::PUT, &path).body("old")).await;
    let address = server.base.strip_prefix("http://").unwrap();
    let mut connection = tokio::net::TcpStream::connect(address).await.unwrap();
    let head = format!("PUT {path} HTTP/1.1\r\nHost: {address}\r\nContent-Length: 20000000\r\n\r\n");
    connection.write_all(head.as_bytes()).await.unwrap();
    connection.write_all(&vec![b'n'; 6 << 20]).await.unwrap();
    let entries = async || {
        let (_, list) = server.get(&format!("{FILES}/workspace?list=1")).await;
        list["entries"].as_array().unwrap().len()
    };
    let until = async |count| {
        while entries().await != count {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), until(2)).await.expect("nothing is written beside");
    drop(connection);
    tokio::time::timeout(Duration::from_secs(10), until(1)).await.expect("the part is left behind");
    let read = server.request(Method::GET, &path).send().await.unwrap();
    assert_eq!(read.text().await.unwrap(), "old");
}
