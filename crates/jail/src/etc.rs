//! The generated /etc of a box: accounts of its own, and the few files of the host that programs need to find
//! their libraries, certificates and alternatives. Nothing that names people, hosts or secrets.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use crate::identity::{BOX_USER, INIT_USER};

/// Copied when the host has them: files, or directories as a whole.
const COPIED: [&str; 21] = [
    "alternatives",
    "bash.bashrc",
    "debian_version",
    "fonts",
    "gai.conf",
    "host.conf",
    "inputrc",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "locale.alias",
    "locale.conf",
    "lsb-release",
    "mime.types",
    "os-release",
    "perl",
    "pki",
    "protocols",
    "services",
    "terminfo",
];
/// Copied too: version-specific directories of language runtimes.
const COPIED_PREFIXES: [&str; 4] = ["java-", "python2", "python3", "openmpi"];
/// Of the certificates, the bundles: the hundreds of links beside them say the same once more.
const CERTIFICATES: [&str; 3] =
    ["ssl/openssl.cnf", "ssl/certs/ca-certificates.crt", "ssl/certs/java/cacerts"];
/// Private keys and the like have no place in a box, wherever they lie.
const NEVER: [&str; 1] = ["private"];
/// A runaway directory of the host is not copied into every launcher's memory.
const MAX_FILE_BYTES: u64 = 2 << 20;
const MAX_DEPTH: u32 = 4;

/// Writes the box's /etc to `out`.
pub(crate) fn generate(host: &Path, out: &Path) -> io::Result<()> {
    for entry in fs::read_dir(host)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(text) = name.to_str() else { continue };
        if COPIED.contains(&text) || COPIED_PREFIXES.iter().any(|prefix| text.starts_with(prefix)) {
            copy(&entry, &out.join(text), 0)?;
        }
    }
    for name in CERTIFICATES.iter().filter(|name| host.join(name).is_file()) {
        fs::create_dir_all(out.join(name).parent().unwrap_or(out))?;
        copy_file(&host.join(name), &out.join(name))?;
    }
    if out.join("ssl").is_dir() {
        // Where OpenSSL looks when it is told nothing.
        symlink("certs/ca-certificates.crt", out.join("ssl/cert.pem"))?;
    }
    for (name, content) in generated() {
        fs::write(out.join(name), content)?;
    }
    Ok(())
}

fn generated() -> Vec<(&'static str, String)> {
    let accounts = [
        ("root", 0, "/root", "/bin/sh"),
        ("box", BOX_USER, "/home/box", "/bin/sh"),
        ("sandcrate-init", INIT_USER, "/", "/usr/sbin/nologin"),
        ("nobody", 65534, "/", "/usr/sbin/nologin"),
    ];
    let passwd =
        accounts.iter().map(|(name, id, home, shell)| format!("{name}:x:{id}:{id}:{name}:{home}:{shell}\n"));
    let groups = accounts.iter().map(|(name, id, ..)| {
        let name = if *name == "nobody" { "nogroup" } else { name };
        format!("{name}:x:{id}:\n")
    });
    vec![
        ("passwd", passwd.collect()),
        ("group", groups.collect()),
        ("hostname", "sandbox\n".to_owned()),
        ("hosts", "127.0.0.1 localhost sandbox\n::1 localhost sandbox\n".to_owned()),
        // The resolver of isolated networks. With network off there is no way to it, and a lookup fails at once.
        ("resolv.conf", "nameserver 192.0.0.1\n".to_owned()),
        (
            "nsswitch.conf",
            "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n".to_owned(),
        ),
        ("mtab", String::new()),
        // A box's Python is nobody's system Python: what the distribution protects by marking it as
        // externally managed is not there to be broken.
        ("pip.conf", "[global]\nbreak-system-packages = true\ndisable-pip-version-check = true\n".to_owned()),
        ("profile", "export PATH=\"${PATH:-/usr/local/bin:/usr/bin:/bin}\"\n".to_owned()),
        ("machine-id", String::new()),
    ]
}

fn copy(from: &fs::DirEntry, to: &Path, depth: u32) -> io::Result<()> {
    let (kind, path) = (from.file_type()?, from.path());
    if kind.is_symlink() {
        let target = fs::read_link(&path)?;
        // What leads out of /etc and /usr is copied, the rest keeps its link.
        if target.is_relative() || target.starts_with("/etc") || target.starts_with("/usr") {
            return symlink(target, to);
        }
        return if fs::metadata(&path).is_ok_and(|facts| facts.is_file()) {
            copy_file(&path, to)
        } else {
            Ok(())
        };
    }
    if kind.is_file() {
        return copy_file(&path, to);
    }
    if !kind.is_dir() || depth == MAX_DEPTH || NEVER.iter().any(|name| from.file_name() == *name) {
        return Ok(());
    }
    let entries = match fs::read_dir(&path) {
        // What we cannot read (rootless), the box could not read either.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(()),
        entries => entries?,
    };
    fs::create_dir(to)?;
    for entry in entries {
        let entry = entry?;
        // Most alternatives are of manual pages.
        if !entry.file_name().as_encoded_bytes().ends_with(b".gz") {
            copy(&entry, &to.join(entry.file_name()), depth + 1)?;
        }
    }
    Ok(())
}

/// Copies a file unless it is large, or others cannot read it on the host: then a box does not get it either.
fn copy_file(from: &Path, to: &Path) -> io::Result<()> {
    let source = match fs::File::open(from) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(()),
        source => source?,
    };
    let facts = source.metadata()?;
    if facts.permissions().mode() & 0o004 == 0 || facts.len() > MAX_FILE_BYTES {
        return Ok(());
    }
    // Read and written in one piece each: most are tiny, and there are hundreds.
    let mut content = Vec::with_capacity(usize::try_from(facts.len()).unwrap_or(0));
    source.take(facts.len()).read_to_end(&mut content)?;
    fs::File::create(to)?.write_all(&content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_are_generated_and_secrets_stay_out() {
        let host = tempfile::tempdir().unwrap();
        let out = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str, mode: u32| {
            let path = host.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        };
        put("passwd", "alice:x:501:20::/home/alice:/bin/zsh\n", 0o644);
        put("shadow", "alice:secret", 0o640);
        put("hosts", "10.0.0.1 database.internal\n", 0o644);
        put("ssl/certs/ca-certificates.crt", "certificate", 0o644);
        put("ssl/private/key.pem", "key", 0o644);
        put("ssl/hidden.pem", "key", 0o600);
        put("java-17/hidden", "key", 0o600);
        put("gitconfig", "token", 0o644);
        put("ld.so.conf.d/x.conf", "/usr/lib/x", 0o644);
        symlink("/etc/alternatives/java", host.path().join("services")).unwrap();
        for (name, _) in generated() {
            let copied =
                COPIED.contains(&name) || COPIED_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
            assert!(!copied, "{name} would be written through what was copied");
        }
        generate(host.path(), out.path()).unwrap();
        let read = |name: &str| fs::read_to_string(out.path().join(name)).unwrap_or_default();
        assert!(read("passwd").contains("box:x:1000:1000:") && !read("passwd").contains("alice"));
        assert!(!read("hosts").contains("internal"));
        assert_eq!(read("ssl/cert.pem"), "certificate");
        assert_eq!(read("ld.so.conf.d/x.conf"), "/usr/lib/x");
        assert!(read("pip.conf").contains("break-system-packages"));
        for absent in ["shadow", "gitconfig", "ssl/private", "ssl/hidden.pem", "java-17/hidden"] {
            assert!(!out.path().join(absent).exists(), "{absent}");
        }
        assert!(out.path().join("services").is_symlink());
    }
}
