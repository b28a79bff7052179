//! Out of the box.

use std::path::{Path, PathBuf};

use anyhow::Context;
use bytes::Bytes;
use hyper::header::{ACCEPT, CONTENT_LENGTH};

use super::Copied;
use super::local::{self, Output};
use super::place::{join, name};
use super::progress::Progress;
use super::remote::{Entry, Kind, Remote};
use crate::client::http::Client;
use crate::failure::Failure;
use crate::output;

pub(super) async fn tree(
    client: &Client,
    session: &str,
    from: &str,
    to: &Path,
    progress: &mut Progress,
) -> anyhow::Result<Copied> {
    let remote = Remote { client, session };
    let entry = found(&remote, from).await?;
    let mut download = Download { remote, progress, copied: Copied::default(), links: Vec::new() };
    if entry.kind == Kind::Directory {
        let target = directory_target(from, to)?;
        download.directory(from, &target).await?;
    } else {
        let target = file_target(from, to)?;
        let output = Output::named(&target).with_context(|| target.display().to_string())?;
        download.file(from, entry.mode, output).await.with_context(|| from.to_owned())?;
    }
    Ok(download.copied)
}

pub(super) async fn standard_output(
    client: &Client,
    session: &str,
    from: &str,
    progress: &mut Progress,
) -> anyhow::Result<Copied> {
    let remote = Remote { client, session };
    if found(&remote, from).await?.kind == Kind::Directory {
        let problem = format!("{from} is a directory; only a file goes to standard output");
        return Err(Failure::invalid(problem).into());
    }
    let bytes = receive(&remote, from, progress, |data| output::print_bytes(data)).await?;
    Ok(Copied { files: 1, bytes, ..Copied::default() })
}

async fn found(remote: &Remote<'_>, from: &str) -> anyhow::Result<Entry> {
    let entry = remote.look(from).await?;
    let entry =
        entry.ok_or_else(|| Failure::invalid(format!("{from} is not in session {}", remote.session)))?;
    match entry.kind {
        Kind::Other => Err(Failure::invalid(format!("{from}: neither a file nor a directory")).into()),
        Kind::File if from.ends_with('/') => {
            Err(Failure::invalid(format!("{from} is not a directory")).into())
        }
        _ => Ok(entry),
    }
}

fn ends_with_slash(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().ends_with(b"/")
}

/// Where a file goes: into a directory that is there, or to that very path.
fn file_target(from: &str, to: &Path) -> anyhow::Result<PathBuf> {
    let file = name(from).ok_or_else(|| Failure::invalid(format!("{from} has no name of its own")))?;
    match to.metadata() {
        Ok(metadata) if metadata.is_dir() => Ok(to.join(file)),
        _ if ends_with_slash(to) => {
            Err(Failure::invalid(format!("the directory {} does not exist", to.display())).into())
        }
        _ => Ok(to.to_owned()),
    }
}

/// Where a directory goes: beside what is there, or to that very path when nothing is.
fn directory_target(from: &str, to: &Path) -> anyhow::Result<PathBuf> {
    match to.metadata() {
        // The caller may name a link to a directory; what it leads to is a real one.
        Ok(metadata) if metadata.is_dir() => {
            let real = to.canonicalize().with_context(|| to.display().to_string())?;
            Ok(name(from).map_or_else(|| real.clone(), |name| real.join(name)))
        }
        Ok(_) => {
            let problem = format!("{} is not a directory, and {from} is one", to.display());
            Err(Failure::invalid(problem).into())
        }
        Err(_) => Ok(to.to_owned()),
    }
}

struct Download<'a> {
    remote: Remote<'a>,
    progress: &'a mut Progress,
    copied: Copied,
    /// Where a link leads, and where it is to be.
    links: Vec<(String, PathBuf)>,
}

impl Download<'_> {
    async fn directory(&mut self, from: &str, to: &Path) -> anyhow::Result<()> {
        let mut waiting = vec![(from.to_owned(), to.to_owned(), 0)];
        while let Some((from, to, depth)) = waiting.pop() {
            let entries = self.remote.list(&from).await.with_context(|| from.clone())?;
            local::make_dir(&to)?;
            self.copied.directories += 1;
            for entry in entries {
                let source = join(&from, local::checked(&entry.name)?);
                let target = to.join(&entry.name);
                match (entry.kind, entry.link_target) {
                    (Kind::Directory, _) => waiting.push((source, target, depth + 1)),
                    (Kind::File, _) => {
                        let output = Output::beside(&target).with_context(|| target.display().to_string())?;
                        self.file(&source, entry.mode, output).await.with_context(|| source.clone())?;
                    }
                    (Kind::Symlink, Some(leads_to)) if local::stays_inside(&leads_to, depth) => {
                        self.links.push((leads_to, target));
                    }
                    (Kind::Symlink, leads_to) => {
                        let leads_to = leads_to.unwrap_or_default();
                        self.copied.skip(format!("{source}: the link leads out, to {leads_to:?}"));
                    }
                    (Kind::Other, _) => self.copied.skip(format!("{source}: not a file, directory or link")),
                }
            }
        }
        // Last, so that none is there to be followed while files are written.
        for (leads_to, path) in std::mem::take(&mut self.links) {
            local::make_link(&leads_to, &path)?;
            self.copied.links += 1;
        }
        Ok(())
    }

    async fn file(&mut self, from: &str, mode: u32, mut output: Output) -> anyhow::Result<()> {
        self.copied.bytes += receive(&self.remote, from, self.progress, |data| output.write(data)).await?;
        output.finish(mode)?;
        self.copied.files += 1;
        Ok(())
    }
}

/// Gives the bytes of a file to `take`, all of them or an error.
async fn receive(
    remote: &Remote<'_>,
    from: &str,
    progress: &mut Progress,
    mut take: impl FnMut(&Bytes) -> std::io::Result<()>,
) -> anyhow::Result<u64> {
    let answer = remote.client.open(&remote.path(from), &[(ACCEPT, "application/octet-stream")]).await?;
    let length = answer.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    progress.file(name(from).unwrap_or(from), length);
    let mut body = answer.into_body();
    let mut bytes = 0;
    while let Some(piece) = remote.client.piece(&mut body).await? {
        take(&piece)?;
        bytes += piece.len() as u64;
        progress.add(piece.len());
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_as_docker_cp_has_them() {
        let dir = tempfile::tempdir().unwrap();
        let here = dir.path().canonicalize().unwrap();
        std::fs::write(here.join("file"), "").unwrap();
        assert_eq!(file_target("/w/a", &here).unwrap(), here.join("a"));
        assert_eq!(file_target("/w/a", &here.join("new")).unwrap(), here.join("new"));
        assert_eq!(file_target("/w/a", &here.join("file")).unwrap(), here.join("file"));
        assert!(file_target("/w/a", &here.join("new/")).is_err());
        assert_eq!(directory_target("/w/d", &here).unwrap(), here.join("d"));
        assert_eq!(directory_target("/w/d/.", &here).unwrap(), here);
        assert_eq!(directory_target("/", &here).unwrap(), here);
        assert_eq!(directory_target("/w/d", &here.join("new")).unwrap(), here.join("new"));
        assert!(directory_target("/w/d", &here.join("file")).is_err());
    }
}
