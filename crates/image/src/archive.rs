//! Archives of images: what `docker save` writes, and OCI layouts, as a tar archive or as a directory. Members are
//! found by name in an index, so no name of an archive is ever a path on this machine.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::config::Document;
use crate::decompress::expand;
use crate::error::{ImageError, Step, shown};
use crate::layer::digest;
use crate::limits::Allowance;
use crate::name::ImageName;
use crate::record::ImageSource;
use crate::tar::{Kind, Tar};

/// Manifests and configurations.
const MAX_DOCUMENT: u64 = 8 << 20;
/// Engines have 127 at most.
const MAX_LAYERS: usize = 512;
/// A layer has a handful of members beside it.
const MAX_MEMBERS: usize = 16 << 10;
/// Of a member's name and of where it leads: digests, and a word or two.
const MAX_MEMBER_NAME: usize = 512;

/// Where the members of an image are.
#[derive(Debug)]
pub(crate) enum Members {
    Archive { file: File, index: HashMap<Vec<u8>, Member> },
    Directory(PathBuf),
}

#[derive(Debug, Clone)]
pub(crate) enum Member {
    Data { offset: u64, size: u64 },
    Link(Vec<u8>),
}

/// An image that is not a root by itself.
#[derive(Debug)]
pub(crate) struct Bundle {
    pub(crate) members: Members,
    pub(crate) source: ImageSource,
    pub(crate) digest: String,
    pub(crate) document: Document,
    /// Names of members, lowest first.
    pub(crate) layers: Vec<String>,
}

/// What a tar archive is, by the names in it.
#[derive(Debug)]
pub(crate) enum Found {
    Root,
    Members(HashMap<Vec<u8>, Member>),
}

/// Reads names until it is clear that this is a root; an archive of an image is read to its end.
pub(crate) fn look(archive: impl Read) -> Result<Found, ImageError> {
    let mut tar = Tar::new(archive);
    let mut index = HashMap::new();
    while let Some(entry) = tar.next()? {
        let name = entry.path.strip_prefix(b"./").unwrap_or(&entry.path).to_vec();
        if matches!(&name[..], b"" | b".") {
            continue;
        }
        let is_long = name.len() > MAX_MEMBER_NAME || entry.link.len() > MAX_MEMBER_NAME;
        if !is_of_bundle(&name) || is_long || index.len() == MAX_MEMBERS {
            return Ok(Found::Root);
        }
        match entry.kind {
            Kind::File => {
                index.insert(name, Member::Data { offset: tar.data_position(), size: entry.size });
            }
            Kind::Hardlink => {
                index.insert(name, Member::Link(entry.link));
            }
            // Older engines have a layer that occurs twice as a link to its first directory.
            Kind::Symlink => {
                let directory =
                    name.iter().rposition(|byte| *byte == b'/').map_or(&b""[..], |at| &name[..at]);
                let target = join(directory, &entry.link);
                index.insert(name, Member::Link(target));
            }
            _ => {}
        }
    }
    let has = |name: &[u8]| index.contains_key(name);
    Ok(if has(b"manifest.json") || has(b"index.json") { Found::Members(index) } else { Found::Root })
}

/// `a/b` and `../c/d` is `a/c/d`. What leads up too far is found nowhere.
fn join(directory: &[u8], link: &[u8]) -> Vec<u8> {
    let mut parts: Vec<&[u8]> =
        directory.split(|byte| *byte == b'/').filter(|part| !part.is_empty()).collect();
    for part in link.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join(&b'/')
}

/// Whether a name can be that of a member; no root has only such.
fn is_of_bundle(name: &[u8]) -> bool {
    let first = name.split(|byte| *byte == b'/').next().unwrap_or_default();
    let is_digest = |text: &[u8]| text.len() == 64 && text.iter().all(u8::is_ascii_hexdigit);
    matches!(first, b"manifest.json" | b"repositories" | b"index.json" | b"oci-layout" | b"blobs")
        || is_digest(first)
        || first.strip_suffix(b".json").or_else(|| first.strip_suffix(b".tar")).is_some_and(is_digest)
}

impl Members {
    pub(crate) fn open(&self, name: &str) -> Result<Box<dyn Read + '_>, ImageError> {
        let missing = || ImageError::archive(format!("`{}` is not in it", shown(name.as_bytes())));
        match self {
            Self::Archive { file, index } => {
                let mut member = index.get(name.as_bytes()).ok_or_else(missing)?;
                // One step: no engine writes chains of links.
                if let Member::Link(target) = member {
                    member = index.get(target).ok_or_else(missing)?;
                }
                let Member::Data { offset, size } = member else { return Err(missing()) };
                Ok(Box::new(Part { file, at: *offset, left: *size }))
            }
            Self::Directory(directory) => {
                let file = File::open(directory.join(name)).step(|| format!("opening {name}"))?;
                if !file.metadata().is_ok_and(|facts| facts.is_file()) {
                    return Err(missing());
                }
                Ok(Box::new(file))
            }
        }
    }

    fn document(&self, name: &str) -> Result<Vec<u8>, ImageError> {
        let mut bytes = Vec::new();
        let mut input = self.open(name)?.take(MAX_DOCUMENT + 1);
        input.read_to_end(&mut bytes).step(|| format!("reading {}", shown(name.as_bytes())))?;
        if bytes.len() as u64 > MAX_DOCUMENT {
            return Err(ImageError::archive(format!("`{}` is longer than 8 MiB", shown(name.as_bytes()))));
        }
        Ok(bytes)
    }

    /// The expanded stream of a layer, as far as what is left for all layers goes.
    pub(crate) fn layer<'a>(
        &'a self,
        name: &str,
        allowance: &'a mut Allowance,
    ) -> Result<impl Read + 'a, ImageError> {
        let expanded = expand(self.open(name)?).step(|| format!("reading {}", shown(name.as_bytes())))?;
        Ok(allowance.of(expanded))
    }

    /// A document by its digest, which must be right.
    fn blob(&self, wanted: &str) -> Result<Vec<u8>, ImageError> {
        let bytes = self.document(&blob_name(wanted)?)?;
        let found = digest(Sha256::new().chain_update(&bytes));
        if found != wanted {
            return Err(ImageError::Digest { what: "a manifest".into(), expected: wanted.into(), found });
        }
        Ok(bytes)
    }
}

/// Only a digest of the one kind in use becomes part of a path.
fn blob_name(digest: &str) -> Result<String, ImageError> {
    match digest.strip_prefix("sha256:") {
        Some(hex)
            if hex.len() == 64
                && hex.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte)) =>
        {
            Ok(format!("blobs/sha256/{hex}"))
        }
        _ => Err(ImageError::archive(format!("`{}` is no sha256 digest", shown(digest.as_bytes())))),
    }
}

/// A part of a file, read without moving its position.
struct Part<'a> {
    file: &'a File,
    at: u64,
    left: u64,
}

impl Read for Part<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let count = self.file.read_at(&mut buffer[..most], self.at)?;
        self.at += count as u64;
        self.left -= count as u64;
        Ok(count)
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerImage {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    #[serde(default)]
    layers: Option<Vec<String>>,
}

#[derive(Debug, Deserialize)]
struct Descriptor {
    digest: String,
    #[serde(default, rename = "mediaType")]
    media_type: Option<String>,
    #[serde(default)]
    platform: Option<Platform>,
    #[serde(default)]
    annotations: HashMap<String, String>,
}

#[derive(Debug, Deserialize)]
struct Platform {
    architecture: String,
}

#[derive(Debug, Deserialize)]
struct Index {
    manifests: Vec<Descriptor>,
}

#[derive(Debug, Deserialize)]
struct Manifest {
    config: Descriptor,
    layers: Vec<Descriptor>,
}

fn read<T: serde::de::DeserializeOwned>(bytes: &[u8], what: &str) -> Result<T, ImageError> {
    serde_json::from_slice(bytes)
        .map_err(|error| ImageError::archive(format!("{what} cannot be read: {error}")))
}

impl Bundle {
    pub(crate) fn open(members: Members, name: &ImageName) -> Result<Self, ImageError> {
        let docker =
            matches!(&members, Members::Archive { index, .. } if index.contains_key(&b"manifest.json"[..]));
        let bundle = if docker { Self::docker(members, name)? } else { Self::oci(members, name)? };
        bundle.document.check()?;
        if bundle.layers.len() > MAX_LAYERS {
            return Err(ImageError::archive(format!(
                "it has {} layers, {MAX_LAYERS} at most are read",
                bundle.layers.len()
            )));
        }
        if bundle.layers.len() != bundle.document.diff_ids().len() {
            return Err(ImageError::archive(
                "its configuration names another number of layers than its manifest",
            ));
        }
        Ok(bundle)
    }

    fn docker(members: Members, name: &ImageName) -> Result<Self, ImageError> {
        let mut images: Vec<DockerImage> = read(&members.document("manifest.json")?, "manifest.json")?;
        let tags: Vec<String> = images
            .iter()
            .flat_map(|image| image.repo_tags.iter().flatten())
            .map(|tag| shown(tag.as_bytes()))
            .collect();
        let at = match images.len() {
            1 => Some(0),
            _ => images
                .iter()
                .position(|image| image.repo_tags.iter().flatten().any(|tag| tag == name.as_str())),
        };
        let Some(at) = at else { return Err(which(&tags)) };
        let DockerImage { config, layers, .. } = images.swap_remove(at);
        let bytes = members.document(&config)?;
        let digest = digest(Sha256::new().chain_update(&bytes));
        let document = Document::read(&bytes)?;
        Ok(Self {
            members,
            source: ImageSource::Docker,
            digest,
            document,
            layers: layers.unwrap_or_default(),
        })
    }

    fn oci(members: Members, name: &ImageName) -> Result<Self, ImageError> {
        let mut chosen = choose(read(&members.document("index.json")?, "index.json")?, name)?;
        // An index may lead to one index more: one for each architecture.
        if chosen.media_type.as_deref().is_some_and(|kind| kind.contains("index") || kind.contains("list")) {
            chosen = choose(read(&members.blob(&chosen.digest)?, "its index")?, name)?;
        }
        let manifest: Manifest = read(&members.blob(&chosen.digest)?, "its manifest")?;
        let document = Document::read(&members.blob(&manifest.config.digest)?)?;
        let layers =
            manifest.layers.iter().map(|layer| blob_name(&layer.digest)).collect::<Result<_, _>>()?;
        Ok(Self { members, source: ImageSource::Oci, digest: chosen.digest, document, layers })
    }
}

/// The only one, or the one of that name, or the one for this machine.
fn choose(index: Index, name: &ImageName) -> Result<Descriptor, ImageError> {
    let mut manifests = index.manifests;
    let label = |found: &Descriptor| {
        ["org.opencontainers.image.ref.name", "io.containerd.image.name"]
            .iter()
            .find_map(|key| found.annotations.get(*key).cloned())
    };
    let host = if std::env::consts::ARCH == "x86_64" {
        "amd64"
    } else if std::env::consts::ARCH == "aarch64" {
        "arm64"
    } else {
        std::env::consts::ARCH
    };
    let fits =
        |found: &Descriptor| found.platform.as_ref().is_some_and(|platform| platform.architecture == host);
    let at = match manifests.len() {
        1 => Some(0),
        _ => manifests
            .iter()
            .position(|found| label(found).as_deref() == Some(name.as_str()))
            .or_else(|| manifests.iter().position(fits)),
    };
    let Some(at) = at else {
        return Err(which(
            &manifests.iter().filter_map(label).map(|label| shown(label.as_bytes())).collect::<Vec<_>>(),
        ));
    };
    Ok(manifests.swap_remove(at))
}

fn which(tags: &[String]) -> ImageError {
    let tags =
        if tags.is_empty() { "none with a name".to_owned() } else { tags[..tags.len().min(10)].join(", ") };
    ImageError::archive(format!(
        "it holds several images ({tags}): save one, or import it under its own name"
    ))
}

/// The members of a directory that is an OCI layout.
pub(crate) fn layout(directory: &Path) -> Members {
    Members::Directory(directory.to_owned())
}
