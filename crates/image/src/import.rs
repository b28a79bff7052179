//! From a file or a directory to a root that is ready for boxes.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use sandcrate_protocol::Timestamp;
use sha2::{Digest, Sha256};

use crate::archive::{self, Bundle, Found, Members};
use crate::config::ImageConfig;
use crate::decompress::{Packing, expand, sniff};
use crate::directory;
use crate::error::{ImageError, Step};
use crate::layer::{self, Hashing, Role, digest};
use crate::limits::{Allowance, ImportLimits, Progress};
use crate::name::ImageName;
use crate::places;
use crate::record::{ImageRecord, ImageSource, Ownership};
use crate::root::Root;

/// Where an import reads from.
#[derive(Debug)]
pub(crate) enum Input<'a> {
    File(File),
    Directory(&'a Path),
}

/// What an import is told.
pub(crate) struct Order<'a> {
    pub(crate) name: &'a ImageName,
    pub(crate) limits: ImportLimits,
    /// A new file for what has to be expanded before it can be read.
    pub(crate) spool: &'a dyn Fn() -> Result<File, ImageError>,
    pub(crate) report: &'a mut dyn FnMut(Progress),
}

/// Unpacks `input` into the empty directory `into`. On an error what is in it is of no use.
pub(crate) fn unpack(
    input: Input<'_>,
    into: OwnedFd,
    root_name: &str,
    order: Order<'_>,
) -> Result<ImageRecord, ImageError> {
    let owners = Ownership::of_this_user();
    let Order { name, limits, spool, report } = order;
    let mut root = Root::new(into, owners, limits, report);
    let (source, digest, layers, config) = match input {
        Input::Directory(path) if directory::is_oci_layout(path) => {
            from_bundle(&mut root, Bundle::open(archive::layout(path), name)?, limits)?
        }
        Input::Directory(path) => {
            let digest = directory::copy(&mut root, path)?;
            (ImageSource::Directory, digest, 1, ImageConfig::default())
        }
        Input::File(file) => from_file(&mut root, file, name, limits, spool)?,
    };
    let (Progress { entries, bytes }, left_out) = (root.done, root.left_out);
    places::furnish(&mut root)?;
    // Before its name is: a name that survives a crash has its files.
    rustix::fs::syncfs(root.fd()).step(|| "writing the image to disk")?;
    let imported_at = Timestamp::now();
    let root = root_name.to_owned();
    let name = name.clone();
    Ok(ImageRecord {
        name,
        digest,
        source,
        imported_at,
        entries,
        bytes,
        left_out,
        layers,
        owners,
        config,
        root,
    })
}

type Unpacked = (ImageSource, String, u64, ImageConfig);

fn from_file(
    root: &mut Root<'_>,
    file: File,
    name: &ImageName,
    limits: ImportLimits,
    spool: &dyn Fn() -> Result<File, ImageError>,
) -> Result<Unpacked, ImageError> {
    let reading = || "reading the archive";
    let mut start = [0; 8];
    let count = file.read_at(&mut start, 0).step(reading)?;
    let packing = sniff(&start[..count]).step(reading)?;
    let index = match archive::look(Allowance::new(limits).of(stream(&file)?))? {
        Found::Root => {
            let digest = from_root(root, &file, limits)?;
            return Ok((ImageSource::Tar, digest, 1, ImageConfig::default()));
        }
        Found::Members(index) => index,
    };
    let file = if packing == Packing::Plain {
        file
    } else {
        // Members are read by their position, some more than once.
        let mut plain = spool()?;
        io::copy(&mut Allowance::new(limits).of(stream(&file)?), &mut plain)
            .step(|| "expanding the archive")?;
        plain.flush().step(|| "expanding the archive")?;
        plain
    };
    from_bundle(root, Bundle::open(Members::Archive { file, index }, name)?, limits)
}

/// The file from its beginning, expanded.
fn stream(mut file: &File) -> Result<impl Read + '_, ImageError> {
    file.seek(SeekFrom::Start(0)).step(|| "reading the archive")?;
    expand(file).step(|| "reading the archive")
}

/// The digest is that of the file as it was given, which everybody can check.
fn from_root(root: &mut Root<'_>, mut file: &File, limits: ImportLimits) -> Result<String, ImageError> {
    file.seek(SeekFrom::Start(0)).step(|| "reading the archive")?;
    let mut whole = Hashing { input: file, hash: Sha256::new() };
    {
        let expanded = expand(&mut whole).step(|| "reading the archive")?;
        layer::apply(root, Allowance::new(limits).of(expanded), Role::Whole)?;
    }
    io::copy(&mut whole, &mut io::sink()).step(|| "reading the archive")?;
    Ok(digest(whole.hash))
}

fn from_bundle(root: &mut Root<'_>, bundle: Bundle, limits: ImportLimits) -> Result<Unpacked, ImageError> {
    // Each layer is read twice; once for what it hides.
    let (mut looked, mut read) = (Allowance::new(limits), Allowance::new(limits));
    for (at, (name, expected)) in bundle.layers.iter().zip(bundle.document.diff_ids()).enumerate() {
        if at > 0 {
            layer::apply_whiteouts(root, bundle.members.layer(name, &mut looked)?)?;
        }
        let found = layer::apply(root, bundle.members.layer(name, &mut read)?, Role::Layer)?;
        if found != *expected {
            let what = format!("layer {}", at + 1);
            return Err(ImageError::Digest {
                what,
                expected: crate::error::shown(expected.as_bytes()),
                found,
            });
        }
    }
    let layers = bundle.layers.len() as u64;
    Ok((bundle.source, bundle.digest, layers, bundle.document.config()))
}
