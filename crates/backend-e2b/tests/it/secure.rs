//! An endpoint behind TLS, and who is believed to be it.

use std::path::{Path, PathBuf};

use sandcrate_backend::{Backend, ExecRequest};
use sandcrate_backend_e2b::{E2bBackend, E2bConfig, E2bSettings};
use sandcrate_server::{Listener, TlsIdentity};

use crate::golden::spec;
use crate::suite::{KEY, Peer};

fn config(state: &Path, url: String, ca_file: Option<PathBuf>) -> E2bConfig {
    let operator =
        E2bSettings { api_key: Some(KEY.to_owned()), api_url: Some(url), ..E2bSettings::default() };
    E2bConfig { environment: E2bSettings::default(), operator, ca_file, ..E2bConfig::new(state) }
}

pub(crate) async fn an_endpoint_is_believed_by_the_authority_that_is_named_and_by_no_other() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let [cert, key] = ["cert.pem", "key.pem"].map(|name| dir.path().join(name));
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let identity = TlsIdentity::read(&cert, &key).unwrap();
    let peer = Peer::behind(dir.path(), |listener| Listener::Tls(listener, identity)).await;
    let url = format!("https://localhost:{}", peer.address.port());

    let trusting = E2bBackend::open(config(&dir.path().join("a"), url.clone(), Some(cert))).await.unwrap();
    trusting.probe().await.unwrap();
    let id = trusting.start(spec("secure")).await.unwrap().id;
    let done = trusting.exec(&id, ExecRequest::shell("echo hidden; exit 3")).await.unwrap();
    let done = done.collect(1 << 10).await.unwrap();
    assert_eq!(
        (&done.stdout[..], done.exit.status),
        (&b"hidden\n"[..], sandcrate_backend::ExitStatus::Code(3))
    );
    trusting.shutdown().await;

    let doubting = E2bBackend::open(config(&dir.path().join("b"), url, None)).await.unwrap();
    let refused = doubting.probe().await.unwrap_err().to_string();
    // With the system's certificates it is a stranger; without any the fix is named.
    assert!(refused.contains("certificate") || refused.contains("e2b_backend.ca_file"), "{refused}");
    doubting.shutdown().await;
    peer.stop().await.unwrap();
}

pub(crate) async fn a_file_without_certificates_is_refused_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("ca.pem");
    let refused = E2bBackend::open(config(dir.path(), "https://localhost".to_owned(), Some(missing))).await;
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("e2b_backend.ca_file") && refused.contains("ca.pem"), "{refused}");
}
