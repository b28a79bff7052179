//! Whom the client believes: the authorities of this machine, and those that the operator names besides.

use std::path::Path;
use std::sync::Arc;

use reqwest::{Client, redirect};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::http::CONNECT_LIMIT;

/// Who may vouch for an endpoint, besides those that this machine knows.
pub(crate) type Authorities = Vec<CertificateDer<'static>>;

/// Reads certificates; or says, in words for an operator, why there are none.
pub(crate) fn read(path: &Path) -> Result<Authorities, String> {
    let unreadable =
        |error| format!("`{}` has no certificate in PEM that can be read: {error}", path.display());
    let read: Authorities = CertificateDer::pem_file_iter(path)
        .map_err(unreadable)?
        .collect::<Result<_, _>>()
        .map_err(unreadable)?;
    let mut roots = RootCertStore::empty();
    for certificate in &read {
        roots.add(certificate.clone()).map_err(|error| {
            format!("`{}` has a certificate that vouches for nobody: {error}", path.display())
        })?;
    }
    match read.is_empty() {
        true => Err(format!("`{}` has no certificate", path.display())),
        false => Ok(read),
    }
}

/// A client, and whether it can believe anybody at all. Reads files: not for a task.
pub(crate) fn client(named: Authorities) -> Result<(Client, bool), String> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(named);
    // Among a machine's hundred some may be of a kind that is not understood; the others count.
    let native = rustls_native_certs::load_native_certs();
    for error in &native.errors {
        tracing::debug!(
            error = error as &dyn std::error::Error,
            "certificates of this machine cannot be read"
        );
    }
    roots.add_parsable_certificates(native.certs);
    let believes = !roots.is_empty();
    let mut tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    let client = Client::builder()
        .tls_backend_preconfigured(tls)
        .connect_timeout(CONNECT_LIMIT)
        .redirect(redirect::Policy::none())
        .user_agent(concat!("sandcrate/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(|error| error.to_string())?;
    Ok((client, believes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_authorities_is_refused_by_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ca.pem");
        assert!(read(&path).unwrap_err().contains("ca.pem"));
        std::fs::write(&path, "none").unwrap();
        assert!(read(&path).unwrap_err().contains("has no certificate"));
        let made = rcgen::generate_simple_self_signed(["a.example".to_owned()]).unwrap();
        std::fs::write(&path, made.cert.pem()).unwrap();
        assert_eq!(read(&path).unwrap().len(), 1);
        let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        std::fs::write(&path, broken).unwrap();
        assert!(read(&path).unwrap_err().contains("vouches for nobody"));
    }
}
