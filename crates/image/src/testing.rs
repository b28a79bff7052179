//! Archives for tests, written byte by byte: also such as no program would write.

use std::path::Path;

use rustix::fs::{Mode, OFlags, open};
use sha2::{Digest, Sha256};

use crate::limits::{ImportLimits, Progress};
use crate::record::Ownership;
use crate::root::Root;

/// A tar archive that grows.
#[derive(Debug, Default, Clone)]
pub(crate) struct Archive(pub(crate) Vec<u8>);

impl Archive {
    pub(crate) fn entry(self, kind: u8, path: &str, link: &str, data: &[u8]) -> Self {
        self.entry_of(kind, path, link, data, 0o755, (0, 0))
    }

    pub(crate) fn entry_of(
        mut self,
        kind: u8,
        path: &str,
        link: &str,
        data: &[u8],
        mode: u32,
        (uid, gid): (u32, u32),
    ) -> Self {
        let mut block = [0_u8; 512];
        let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &path.as_bytes()[..path.len().min(100)]);
        put(
            100,
            format!("{mode:07o}\0{uid:07o}\0{gid:07o}\0{:011o}\0{:011o}\0", data.len(), 1_000_000_000)
                .as_bytes(),
        );
        put(156, &[kind]);
        put(157, &link.as_bytes()[..link.len().min(100)]);
        put(257, b"ustar\x0000");
        put(148, b"        ");
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.0.extend_from_slice(&block);
        self.0.extend_from_slice(data);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    pub(crate) fn file(self, path: &str, data: &str) -> Self {
        self.entry(b'0', path, "", data.as_bytes())
    }

    pub(crate) fn dir(self, path: &str) -> Self {
        self.entry(b'5', path, "", b"")
    }

    pub(crate) fn symlink(self, path: &str, target: &str) -> Self {
        self.entry(b'2', path, target, b"")
    }

    pub(crate) fn pax(self, records: &[(&str, &str)]) -> Self {
        let mut body = String::new();
        for (key, value) in records {
            let rest = key.len() + value.len() + 3;
            let mut length = rest + 1;
            while length != rest + length.to_string().len() {
                length = rest + length.to_string().len();
            }
            body.push_str(&format!("{length} {key}={value}\n"));
        }
        self.entry(b'x', "pax", "", body.as_bytes())
    }

    pub(crate) fn end(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 1024, 0);
        self.0
    }
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    crate::layer::digest(Sha256::new().chain_update(bytes))
}

/// A root in a directory of the test's.
pub(crate) fn root_at<'a>(at: &Path, limits: ImportLimits, report: &'a mut dyn FnMut(Progress)) -> Root<'a> {
    let fd = open(at, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap();
    Root::new(fd, Ownership::of_this_user(), limits, report)
}

/// What `docker save` writes of these layers, lowest first.
pub(crate) fn docker_save(layers: &[Vec<u8>], config: &str) -> Vec<u8> {
    let diff_ids: Vec<_> = layers.iter().map(|layer| format!("{:?}", sha256(layer))).collect();
    let config = format!(
        r#"{{"os":"linux","config":{config},"rootfs":{{"type":"layers","diff_ids":[{}]}}}}"#,
        diff_ids.join(",")
    );
    let config_name = format!("{}.json", &sha256(config.as_bytes())[7..]);
    let mut archive = Archive::default().file(&config_name, &config);
    let mut names = Vec::new();
    for layer in layers {
        let name = format!("{}/layer.tar", &sha256(layer)[7..]);
        archive = archive.entry(b'0', &name, "", layer);
        names.push(format!("{name:?}"));
    }
    let manifest = format!(
        r#"[{{"Config":{config_name:?},"RepoTags":["test:latest"],"Layers":[{}]}}]"#,
        names.join(",")
    );
    archive.file("manifest.json", &manifest).end()
}
