//! Who we are to clients that speak TLS: a certificate and its key, read once from files.
//!
//! HTTP/1.1 is all that is offered: it is all that the faces speak, and clients that would take HTTP/2 do without.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig};
use tokio_rustls::server::TlsStream;

/// A certificate with its key. Clones share it.
#[derive(Clone)]
pub struct TlsIdentity(Arc<ServerConfig>);

/// Why a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    #[error("`{}` has no certificate in PEM that can be read: {source}", path.display())]
    Certificate { path: PathBuf, source: pem::Error },
    #[error("`{}` has no certificate", path.display())]
    NoCertificate { path: PathBuf },
    #[error("`{}` has no private key in PEM that can be read: {source}", path.display())]
    Key { path: PathBuf, source: pem::Error },
    #[error("the certificate in `{}` cannot be used with the key in `{}`: {source}", certificate.display(), key.display())]
    Unusable { certificate: PathBuf, key: PathBuf, source: rustls::Error },
}

impl TlsIdentity {
    /// Reads a certificate, perhaps with those that vouch for it behind it, and its private key.
    pub fn read(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let unreadable = |source| TlsError::Certificate { path: certificate.to_owned(), source };
        let chain = CertificateDer::pem_file_iter(certificate)
            .map_err(unreadable)?
            .collect::<Result<Vec<_>, _>>()
            .map_err(unreadable)?;
        if chain.is_empty() {
            return Err(TlsError::NoCertificate { path: certificate.to_owned() });
        }
        let private = PrivateKeyDer::from_pem_file(key)
            .map_err(|source| TlsError::Key { path: key.to_owned(), source })?;
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, private))
            .map_err(|source| TlsError::Unusable {
                certificate: certificate.to_owned(),
                key: key.to_owned(),
                source,
            })?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self(Arc::new(config)))
    }

    pub(crate) async fn accept<S>(&self, stream: S) -> io::Result<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        TlsAcceptor::from(Arc::clone(&self.0)).accept(stream).await
    }
}

impl std::fmt::Debug for TlsIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TlsIdentity(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(dir: &Path, name: &str, text: &str) -> PathBuf {
        let path = dir.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(["a.example".to_owned()]).unwrap();
        let other = rcgen::generate_simple_self_signed(["b.example".to_owned()]).unwrap();
        let cert = written(dir.path(), "cert.pem", &made.cert.pem());
        let key = written(dir.path(), "key.pem", &made.signing_key.serialize_pem());
        let foreign = written(dir.path(), "foreign.pem", &other.signing_key.serialize_pem());
        let text = written(dir.path(), "text", "no certificate");
        let missing = dir.path().join("missing");
        assert!(TlsIdentity::read(&cert, &key).is_ok());
        for (cert, key, words) in [
            (&missing, &key, ["missing", "no certificate"]),
            (&text, &key, ["text", "no certificate"]),
            (&cert, &missing, ["missing", "no private key"]),
            (&cert, &cert, ["cert.pem", "no private key"]),
            (&cert, &foreign, ["foreign.pem", "cannot be used"]),
        ] {
            let refused = TlsIdentity::read(cert, key).unwrap_err().to_string();
            for word in words {
                assert!(refused.contains(word), "`{word}` is not in: {refused}");
            }
        }
    }

    #[test]
    fn a_key_is_not_printed() {
        let dir = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(["a.example".to_owned()]).unwrap();
        let cert = written(dir.path(), "cert.pem", &made.cert.pem());
        let key = written(dir.path(), "key.pem", &made.signing_key.serialize_pem());
        let identity = TlsIdentity::read(&cert, &key).unwrap();
        assert_eq!(format!("{identity:?}"), "TlsIdentity(…)");
    }
}
