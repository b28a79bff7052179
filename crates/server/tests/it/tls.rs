//! The same faces behind TLS.

use std::sync::Arc;
use std::time::Duration;

use sandcrate_server::{App, Listener, ServerConfig, ServerLimits, TlsIdentity, serve_app};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tokio_util::sync::CancellationToken;

use crate::support::{PATIENCE, Server, TOKEN};

const NAME: &str = "box.example";

/// A second server over the runtime of the first, behind TLS, with room for one connection.
struct Secured {
    plain: Server,
    address: std::net::SocketAddr,
    client: TlsConnector,
    shutdown: CancellationToken,
    serving: tokio::task::JoinHandle<()>,
}

impl Secured {
    async fn start() -> Self {
        let plain = Server::start().await;
        let dir = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed([NAME.to_owned(), format!("*.{NAME}")]).unwrap();
        let [cert, key] = ["cert.pem", "key.pem"].map(|name| dir.path().join(name));
        std::fs::write(&cert, made.cert.pem()).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        let identity = TlsIdentity::read(&cert, &key).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let limits = ServerLimits {
            max_connections: 1,
            header_timeout: Duration::from_millis(300),
            ..ServerLimits::default()
        };
        let token = Some(TOKEN.parse().unwrap());
        let config = ServerConfig { limits, token, ..ServerConfig::default() };
        let shutdown = CancellationToken::new();
        let app = App::new(plain.app.runtime.clone(), config, shutdown.clone());
        let serving =
            tokio::spawn(
                async move { serve_app(vec![Listener::Tls(listener, identity)], app).await.unwrap() },
            );
        let mut roots = RootCertStore::empty();
        roots.add(made.cert.der().clone()).unwrap();
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Self { plain, address, client: TlsConnector::from(Arc::new(config)), shutdown, serving }
    }

    async fn connect(&self, name: &str) -> std::io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let name = name.to_owned().try_into().unwrap();
        timeout(PATIENCE, self.client.connect(name, stream)).await.expect("a handshake ends")
    }

    async fn get(&self, name: &str, path: &str, token: &str) -> String {
        let mut stream = self.connect(name).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
        let head = format!(
            "GET {path} HTTP/1.1\r\nHost: {name}\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        timeout(PATIENCE, stream.read_to_end(&mut answer)).await.unwrap().unwrap();
        String::from_utf8(answer).unwrap()
    }

    async fn stop(self) {
        self.shutdown.cancel();
        timeout(PATIENCE, self.serving).await.expect("the server ends").unwrap();
        self.plain.stop().await;
    }
}

#[tokio::test]
async fn a_client_that_trusts_the_certificate_is_served_under_every_name_of_it() {
    let server = Secured::start().await;
    for name in [NAME, "api.box.example", "49983-i0123.box.example"] {
        assert!(server.get(name, "/v1/sessions", TOKEN).await.starts_with("HTTP/1.1 200 "));
    }
    assert!(server.get(NAME, "/v1/sessions", "wrong").await.starts_with("HTTP/1.1 401 "));
    assert!(server.connect("other.example").await.is_err(), "a name that is not in it");
    server.stop().await;
}

#[tokio::test]
async fn whoever_speaks_no_tls_is_dropped_and_keeps_no_place() {
    let server = Secured::start().await;
    let mut silent = TcpStream::connect(server.address).await.unwrap();
    let mut plain = TcpStream::connect(server.address).await.unwrap();
    plain.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    for stream in [&mut silent, &mut plain] {
        let mut answer = Vec::new();
        let _ = timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("it is dropped");
        assert!(!answer.starts_with(b"HTTP/"));
    }
    assert!(server.get(NAME, "/healthz", TOKEN).await.starts_with("HTTP/1.1 200 "));
    server.stop().await;
}

#[tokio::test]
async fn a_handshake_under_way_does_not_hold_up_the_end() {
    let server = Secured::start().await;
    let silent = TcpStream::connect(server.address).await.unwrap();
    server.stop().await;
    drop(silent);
}
