//! Who is let in: tokens, uids, origins, and what stays open.

use std::os::unix::process::CommandExt;

use sandcrate_server::{Legacy, Listener, ServeError, ServerConfig, serve};
use serde_json::Value;
use tokio::net::{TcpListener, UnixStream};
use tokio_util::sync::CancellationToken;

use crate::support::{Server, TOKEN, connect, http, refused, request};

const RELAY: &str = "/v1/sessions/s/managed-process/ws";

fn with_token() -> ServerConfig {
    ServerConfig { token: Some(TOKEN.parse().unwrap()), ..ServerConfig::default() }
}

/// S1 and AP-14: anybody who reached the port could run code.
#[tokio::test]
async fn s1_without_the_token_nothing_is_upgraded() {
    let server = Server::with(with_token()).await;
    for path in ["/rpc/ws", RELAY] {
        for headers in [&[][..], &[("x-api-key", "wrong")], &[("authorization", "Bearer ")]] {
            let (status, body) = refused(connect(request(server.url(path), headers)).await.unwrap_err());
            assert_eq!(status.as_u16(), 401, "{path} {headers:?}");
            assert_eq!(body["error"]["code"], "unauthorized");
        }
    }
    for (name, value) in [
        ("authorization", format!("Bearer {TOKEN}")),
        ("x-api-key", TOKEN.to_owned()),
        ("X-LangBot-Box-Control-Token", TOKEN.to_owned()),
    ] {
        let name = Box::leak(name.to_ascii_lowercase().into_boxed_str());
        connect(request(server.url("/rpc/ws"), &[(name, &value)])).await.unwrap();
    }
    server.stop().await;
}

#[tokio::test]
async fn health_is_open_and_metrics_follow_the_token() {
    let server = Server::with(with_token()).await;
    let (status, body) = server.http("GET", "/healthz", &[]).await;
    let body: serde_json::Value = serde_json::from_str(&body).unwrap();
    let expected = serde_json::json!({"status": "ok", "live": true,
        "resources": {"sessions": 0, "managed_processes": 0}});
    assert_eq!((status, body), (200, expected));
    assert_eq!(server.http("GET", "/readyz", &[]).await.0, 200);
    server.backend.set_unavailable(Some("gone"));
    assert_eq!(server.http("GET", "/readyz", &[]).await.0, 503);
    assert_eq!(server.http("GET", "/healthz", &[]).await.0, 200);
    assert_eq!(server.http("GET", "/metrics", &[]).await.0, 401);
    let (status, text) = server.http("GET", "/metrics", &[("x-api-key", TOKEN)]).await;
    assert!(status == 200 && text.contains("sandcrate_"), "{status} {text}");
    server.stop().await;
}

#[tokio::test]
async fn unknown_paths_tell_nothing_to_strangers() {
    let server = Server::with(with_token()).await;
    assert_eq!(server.http("GET", "/nope", &[]).await.0, 401);
    let (status, body) = server.http("GET", "/nope", &[("x-api-key", TOKEN)]).await;
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, body["error"]["code"].as_str()), (404, Some("not_found")));
    let (status, body) = server.http("POST", "/rpc/ws", &[("x-api-key", TOKEN)]).await;
    assert_eq!(status, 405);
    assert!(body.contains("method_not_allowed"), "{body}");
    server.stop().await;
}

/// AP-14: a page in a browser can reach loopback, with its user's rights.
#[tokio::test]
async fn ap14_a_foreign_origin_is_refused_before_the_upgrade() {
    let server = Server::start().await;
    for path in ["/rpc/ws", RELAY] {
        let foreign = request(server.url(path), &[("origin", "http://evil.example")]);
        let (status, body) = refused(connect(foreign).await.unwrap_err());
        assert_eq!((status.as_u16(), &body["error"]["code"]), (403, &"foreign_origin".into()));
    }
    let own = format!("http://{}", server.address);
    connect(request(server.url("/rpc/ws"), &[("origin", &own)])).await.unwrap();
    assert_eq!(server.http("DELETE", "/v1/sessions/x", &[("origin", "http://evil.example")]).await.0, 403);
    // DNS rebinding: Origin and Host agree, and both are the attacker's.
    let rebound = [("host", "evil.example"), ("origin", "http://evil.example")];
    assert_eq!(server.upgrade("/rpc/ws", &rebound).await, 403);
    assert_eq!(server.http("GET", "/metrics", &[("host", "evil.example")]).await.0, 403);
    assert_eq!(server.upgrade("/rpc/ws", &[("host", "127.0.0.1")]).await, 101);
    server.stop().await;
}

#[tokio::test]
async fn a_unix_socket_admits_its_own_user() {
    let server = Server::start().await;
    let stream = UnixStream::connect(&server.socket).await.unwrap();
    assert_eq!(http(stream, "GET", "/metrics", &[]).await.0, 200);
    server.stop().await;
}

/// Needs root, to become somebody else.
#[tokio::test]
async fn another_local_user_is_refused_and_can_be_listed() {
    if !rustix_is_root() {
        eprintln!("SKIP: needs root to run a client as another user");
        return;
    }
    let stranger = 65_533;
    let server = Server::start().await;
    assert_eq!(status_as(stranger, server.address.port()).await, "403");
    server.stop().await;
    let server = Server::with(ServerConfig { allow_uids: vec![stranger], ..ServerConfig::default() }).await;
    assert_eq!(status_as(stranger, server.address.port()).await, "200");
    server.stop().await;
}

fn rustix_is_root() -> bool {
    std::fs::read_to_string("/proc/self/status").unwrap().contains("\nUid:\t0\t")
}

/// The status that a client of this uid gets for `/metrics`.
async fn status_as(uid: u32, port: u16) -> String {
    let script = format!(
        "exec 3<>/dev/tcp/127.0.0.1/{port}; printf 'GET /metrics HTTP/1.1\\r\\nhost: localhost\\r\\nconnection: close\\r\\n\\r\\n' >&3; head -c 12 <&3"
    );
    let mut command = std::process::Command::new("bash");
    command.args(["-c", &script]).current_dir("/").uid(uid).gid(uid);
    let output = tokio::process::Command::from(command).output().await.unwrap();
    String::from_utf8_lossy(&output.stdout).rsplit(' ').next().unwrap_or_default().to_owned()
}

/// S1 in stdio mode: the reference opened the port to everybody there too.
#[tokio::test]
async fn s1_in_stdio_mode_the_rpc_is_off_and_the_relay_is_the_parents() {
    let server = Server::with(ServerConfig { stdio: true, ..ServerConfig::default() }).await;
    let (status, body) = refused(connect(server.url("/rpc/ws")).await.unwrap_err());
    assert_eq!(status.as_u16(), 403, "{body}");
    // This test's parent has its uid: the relay is open, and says that there is no such session.
    let (status, body) = refused(connect(server.url(RELAY)).await.unwrap_err());
    assert_eq!((status.as_u16(), &body["error"]["code"]), (400, &"BoxSessionNotFoundError".into()));
    server.stop().await;
}

#[tokio::test]
async fn an_address_that_others_reach_needs_somebody_to_be_asked() {
    for (config, served) in [
        (ServerConfig::default(), false),
        (with_token(), true),
        (ServerConfig { insecure_no_auth: true, ..ServerConfig::default() }, true),
        (
            ServerConfig {
                legacy: Some(Legacy::Cidrs(vec!["10.0.0.0/8".parse().unwrap()])),
                ..ServerConfig::default()
            },
            true,
        ),
    ] {
        let server = Server::start().await;
        // Bound, never connected to from anywhere.
        let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
        let stop = CancellationToken::new();
        stop.cancel();
        let result = serve(vec![Listener::Tcp(listener)], server.app.runtime.clone(), config, stop).await;
        match result {
            Ok(()) => assert!(served),
            Err(ServeError::Unprotected { .. }) => assert!(!served),
            Err(other) => panic!("{other}"),
        }
        server.stop().await;
    }
}
