//! Ports of boxes: who may publish what, what comes through, and the end.

use sandcrate_protocol::ErrorKind;
use sandcrate_protocol::network::PortRequest;
use sandcrate_runtime::{PublishOn, SessionOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::bench::Bench;

fn port(text: &str) -> PortRequest {
    text.parse().unwrap()
}

async fn echoed(address: (std::net::IpAddr, u16)) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(b"ping").await?;
    stream.shutdown().await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    Ok(text)
}

async fn networked() -> Bench {
    let bench = Bench::networked(|config| config.network.ports = 2).await;
    let on = SessionOptions { network: Some("on".parse().unwrap()), ..SessionOptions::default() };
    bench.runtime.create_session(&Bench::spec("s", ""), on).await.unwrap();
    bench
}

#[tokio::test]
async fn a_published_port_leads_into_the_box_until_the_session_ends() {
    let bench = networked().await;
    let view = bench.runtime.publish_port("s", port("0:80")).await.unwrap();
    assert!(view.address.is_loopback() && view.host_port > 0 && view.box_port == 80);
    assert_eq!(echoed((view.address, view.host_port)).await.unwrap(), "ping");
    assert_eq!(bench.runtime.publish_port("s", port("0:80")).await.unwrap(), view, "the one that is there");
    assert_eq!(bench.runtime.session("s").unwrap().ports, [view]);
    let other = bench.runtime.publish_port("s", port("0:81")).await.unwrap();
    let error = bench.runtime.publish_port("s", port("0:82")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    assert_eq!(bench.runtime.close_ports("s", Some(other.host_port), None).unwrap(), 1);
    assert_eq!(bench.runtime.ports("s").unwrap(), [view]);
    bench.runtime.delete_session("s").await.unwrap();
    assert!(TcpStream::connect((view.address, view.host_port)).await.is_err(), "gone with the session");
}

#[tokio::test]
async fn ports_are_refused_by_name_and_reason() {
    let bench = networked().await;
    for (text, kind, part) in [
        ("0.0.0.0:0:80", ErrorKind::Denied, "publish = \"any\""),
        ("80:80", ErrorKind::Validation, "from 1024"),
    ] {
        let error = bench.runtime.publish_port("s", port(text)).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{text}: {error}");
        assert!(error.to_string().contains(part), "{text}: {error}");
    }
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let wanted = format!("{}:80", taken.local_addr().unwrap().port());
    let error = bench.runtime.publish_port("s", port(&wanted)).await.unwrap_err();
    assert!(error.to_string().contains("cannot have"), "{error}");
    bench.runtime.create_session(&Bench::spec("off", ""), SessionOptions::default()).await.unwrap();
    let error = bench.runtime.publish_port("off", port("0:80")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("create it with `ports`"), "{error}");
}

#[tokio::test]
async fn a_box_made_with_ports_is_reached_without_reaching_out() {
    let bench = Bench::networked(|config| config.network.publish = PublishOn::Any).await;
    let options = SessionOptions { ports: vec![port("127.0.0.2:0:80")], ..SessionOptions::default() };
    let view = bench.runtime.create_session(&Bench::spec("s", ""), options.clone()).await.unwrap();
    let [published] = view.ports[..] else { panic!("{:?}", view.ports) };
    assert_eq!(echoed((published.address, published.host_port)).await.unwrap(), "ping");
    let network = bench.backend.spec(&sandcrate_backend::SessionId::new("s").unwrap()).unwrap().network;
    let sandcrate_backend::Network::Isolated(isolation) = network else { panic!("{network:?}") };
    assert!(isolation.policy.is_off());
    let again = bench.runtime.create_session(&Bench::spec("s", ""), options).await.unwrap();
    assert_eq!(again.ports, [published]);
    let (mut stream, _in_use) = bench.runtime.connect_port("s", 8080).await.unwrap();
    stream.write_all(b"in").await.unwrap();
    let mut back = [0; 2];
    stream.read_exact(&mut back).await.unwrap();
    assert_eq!(&back, b"in");
}
