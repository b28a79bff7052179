//! `sandcrate tls init`: a certificate for one domain and everything below it, and the authority that vouches for it.
//!
//! The authority's key signs that one certificate and is then forgotten, so trusting it trusts nothing else.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Subcommand};
use jiff::civil::Date;
use jiff::{Timestamp, ToSpan, tz::TimeZone};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, date_time_ymd,
};

use crate::args::OutputFormat;
use crate::failure::{self, Failure};
use crate::native::NativeConfig;
use crate::output;

/// What clients of every kind accept for a certificate that a person chose to trust.
const DAYS: i64 = 820;
const DEFAULT_DOMAIN: &str = "sandcrate.localhost:8443";

#[derive(Debug, Subcommand)]
pub(crate) enum TlsVerb {
    /// Make a certificate for a domain and all names below it, and print how to use it
    #[command(after_help = "\
Examples:
  sandcrate tls init                                        for programs on this machine
  sandcrate tls init --domain sandbox.example.com           for others; point *.sandbox.example.com here
  sandcrate tls init --domain sandbox.example.com:8443 --dir /etc/sandcrate/tls

It writes ca.pem, which clients are told to trust, cert.pem and key.pem, which the server reads. Files
that are there already are kept, and the command fails with exit code 125.")]
    Init(InitArgs),
}

#[derive(Debug, Args)]
pub(crate) struct InitArgs {
    /// The domain, with the port that clients use if it is not 443
    #[arg(long, value_name = "NAME[:PORT]", default_value = DEFAULT_DOMAIN)]
    domain: String,

    /// Where the files are written [tls in the state directory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub(crate) fn main(verb: TlsVerb) -> ExitCode {
    let TlsVerb::Init(args) = verb;
    match init(args) {
        Ok(text) => output::print(&text),
        Err(error) => failure::report(&error, OutputFormat::Raw),
    }
}

fn init(args: InitArgs) -> anyhow::Result<String> {
    let (name, port) = parse_domain(&args.domain)?;
    let dir = args.dir.unwrap_or_else(|| NativeConfig::for_this_user().state_dir.join("tls"));
    let dir = std::path::absolute(dir).context("finding the directory")?;
    DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(&dir)
        .with_context(|| format!("cannot make {}", dir.display()))?;
    let made = make(name, Timestamp::now()).context("making a certificate")?;
    let [ca, cert, key] = ["ca.pem", "cert.pem", "key.pem"].map(|file| dir.join(file));
    for (file, text, mode) in [(&key, &made.key, 0o600), (&cert, &made.cert, 0o644), (&ca, &made.ca, 0o644)] {
        write_new(file, text, mode)?;
    }
    let (domain, ca, cert, key) = (&args.domain, ca.display(), cert.display(), key.display());
    Ok(format!(
        "Wrote {ca}, {cert} and {key}: for {name} and *.{name}, {DAYS} days.\n\n\
         The server, with a token:\n\n  \
         SANDCRATE__E2B__DOMAIN={domain} sandcrate serve --listen tls:0.0.0.0:{port} \\\n    \
         --tls-cert {cert} --tls-key {key}\n\n\
         Programs that use E2B's SDKs, on machines where *.{name} leads here:\n\n  \
         export E2B_DOMAIN={domain}\n  \
         export SSL_CERT_FILE={ca}          # Python\n  \
         export NODE_EXTRA_CA_CERTS={ca}    # JavaScript\n"
    ))
}

/// The name to certify and the port.
fn parse_domain(text: &str) -> anyhow::Result<(&str, u16)> {
    let (name, port) = match text.split_once(':') {
        Some((name, port)) => (name, port.parse().ok().filter(|port| *port > 0)),
        None => (text, Some(443)),
    };
    let label = |part: &str| {
        !part.is_empty()
            && part.len() < 64
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    match port {
        // A wildcard below a single label is one that clients refuse.
        Some(port) if name.contains('.') && name.split('.').all(label) => Ok((name, port)),
        _ => Err(Failure::invalid(format!("--domain {text}: is no domain of at least two parts"))
            .hint(format!("name one such as sandbox.example.com or {DEFAULT_DOMAIN}"))
            .into()),
    }
}

/// What a server and its clients need, in PEM.
struct Made {
    ca: String,
    cert: String,
    key: String,
}

fn make(name: &str, now: Timestamp) -> anyhow::Result<Made> {
    let today = now.to_zoned(TimeZone::UTC).date();
    let mut authority = CertificateParams::new(Vec::new())?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    authority.distinguished_name = called(&format!("Sandcrate for {name}"));
    hold(&mut authority, today)?;
    let authority_key = KeyPair::generate()?;
    let ca = authority.self_signed(&authority_key)?;

    let mut params = CertificateParams::new(vec![name.to_owned(), format!("*.{name}")])?;
    params.distinguished_name = called(name);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    hold(&mut params, today)?;
    let key = KeyPair::generate()?;
    let cert = params.signed_by(&key, &Issuer::new(authority, authority_key))?;
    Ok(Made { ca: ca.pem(), cert: cert.pem(), key: key.serialize_pem() })
}

fn called(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

/// From yesterday, for clocks that are behind.
fn hold(params: &mut CertificateParams, today: Date) -> anyhow::Result<()> {
    let (from, to) = (today.checked_sub(1.day())?, today.checked_add(DAYS.days())?);
    let date = |date: Date| {
        date_time_ymd(date.year().into(), date.month().unsigned_abs(), date.day().unsigned_abs())
    };
    (params.not_before, params.not_after) = (date(from), date(to));
    Ok(())
}

fn write_new(path: &Path, text: &str, mode: u32) -> anyhow::Result<()> {
    let opened = OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
    opened.and_then(|mut file| file.write_all(text.as_bytes())).map_err(|error| {
        let hint = match error.kind() {
            io::ErrorKind::AlreadyExists => "remove it, or name another directory: --dir DIR",
            _ => "name another directory: --dir DIR",
        };
        Failure::invalid(format!("cannot write {}: {error}", path.display())).hint(hint).into()
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_domain_has_parts_and_perhaps_a_port() {
        assert_eq!(parse_domain("sandbox.example.com").unwrap(), ("sandbox.example.com", 443));
        assert_eq!(parse_domain("a.localhost:8443").unwrap(), ("a.localhost", 8443));
        for bad in ["", "localhost", "a.b:0", "a.b:x", "https://a.b", "a..b", "*.a.b", "a.b/c"] {
            assert!(parse_domain(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn files_are_private_and_never_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let args = |dir: &Path| InitArgs { domain: "box.example".to_owned(), dir: Some(dir.join("new")) };
        let said = init(args(dir.path())).unwrap();
        assert!(said.contains("E2B_DOMAIN=box.example\n") && said.contains("ca.pem"), "{said}");
        let mode =
            |name: &str| dir.path().join("new").join(name).metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(
            (mode("key.pem"), mode("cert.pem") & 0o600, mode("ca.pem") & 0o600),
            (0o600, 0o600, 0o600)
        );
        let before = std::fs::read(dir.path().join("new/key.pem")).unwrap();
        let refused = init(args(dir.path())).unwrap_err().to_string();
        assert!(refused.contains("key.pem"), "{refused}");
        assert_eq!(std::fs::read(dir.path().join("new/key.pem")).unwrap(), before);
    }
}
