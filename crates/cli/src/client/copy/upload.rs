//! Into the box: bytes over the API; permission bits and links, for which it has no way, by a script in the box.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use bytes::Bytes;
use hyper::Method;
use sandcrate_protocol::shell_word;
use serde_json::Value;
use tokio::sync::mpsc;

use super::place::{join, name};
use super::progress::Progress;
use super::remote::{Entry, Kind, Remote};
use super::{Copied, local};
use crate::client::http::{Client, Payload};
use crate::failure::Failure;

const PIECE_BYTES: usize = 256 << 10;
/// What a new file of the box has.
const USUAL_MODE: u32 = 0o644;
/// One script has at most so many bytes, far below the bound of one argument of a program.
const SCRIPT_BYTES: usize = 64 << 10;

pub(super) async fn tree(
    client: &Client,
    from: &Path,
    session: &str,
    to: &str,
    progress: &mut Progress,
) -> anyhow::Result<Copied> {
    let place = || from.display().to_string();
    let metadata = std::fs::metadata(from).with_context(place)?;
    let remote = Remote { client, session };
    let there = remote.look(to).await?;
    let mut upload = Upload { remote, progress, copied: Copied::default(), after: After::default() };
    if metadata.is_dir() {
        let target = directory_target(from, to, there.as_ref())?;
        upload.directory(from, &target).await?;
    } else if metadata.is_file() {
        let target = file_target(&local::name(from)?, to, there.as_ref())?;
        upload.file(from, &metadata, &target).await.with_context(place)?;
    } else {
        return Err(Failure::invalid(format!("{}: neither a file nor a directory", from.display())).into());
    }
    upload.finish().await
}

pub(super) async fn standard_input(
    client: &Client,
    session: &str,
    to: &str,
    progress: &mut Progress,
) -> anyhow::Result<Copied> {
    let remote = Remote { client, session };
    if to.ends_with('/') || remote.look(to).await?.is_some_and(|entry| entry.kind == Kind::Directory) {
        return Err(Failure::invalid(format!(
            "{to} is a directory; standard input needs a name for its file"
        ))
        .into());
    }
    progress.file("-", None);
    let bytes = send(&remote, io::stdin(), to, progress).await?;
    Ok(Copied { files: 1, bytes, ..Copied::default() })
}

/// Where a file goes: into a directory that is there, or to that very path.
fn file_target(file: &str, to: &str, there: Option<&Entry>) -> anyhow::Result<String> {
    match there.map(|entry| entry.kind) {
        Some(Kind::Directory) => Ok(join(to, file)),
        Some(_) if to.ends_with('/') => Err(Failure::invalid(format!("{to} is not a directory")).into()),
        None if to.ends_with('/') => Err(Failure::invalid(format!("the directory {to} does not exist"))
            .hint("make it first, or leave the last slash out to copy to that name")
            .into()),
        _ => Ok(to.to_owned()),
    }
}

/// Where a directory goes: beside what is there, or to that very path when nothing is.
fn directory_target(from: &Path, to: &str, there: Option<&Entry>) -> anyhow::Result<String> {
    match there.map(|entry| entry.kind) {
        None => Ok(to.trim_end_matches('/').to_owned()),
        Some(Kind::Directory) => Ok(match from.to_str().map(name) {
            Some(None) => to.to_owned(),
            _ => join(to, &local::name(from)?),
        }),
        Some(_) => {
            Err(Failure::invalid(format!("{to} is not a directory, and {} is one", from.display())).into())
        }
    }
}

struct Upload<'a> {
    remote: Remote<'a>,
    progress: &'a mut Progress,
    copied: Copied,
    after: After,
}

impl Upload<'_> {
    async fn directory(&mut self, from: &Path, to: &str) -> anyhow::Result<()> {
        let mut waiting = vec![(from.to_owned(), to.to_owned())];
        while let Some((from, to)) = waiting.pop() {
            self.remote.make_dir(&to).await.with_context(|| to.clone())?;
            self.copied.directories += 1;
            for path in entries(&from)? {
                let Ok(name) = local::name(&path) else {
                    self.copied.skip(format!("{}: its name is not UTF-8", path.display()));
                    continue;
                };
                let target = join(&to, &name);
                let metadata = path.symlink_metadata().with_context(|| path.display().to_string())?;
                if metadata.is_dir() {
                    waiting.push((path, target));
                } else if metadata.is_symlink() {
                    self.link(&path, target)?;
                } else if metadata.is_file() {
                    self.file(&path, &metadata, &target).await.with_context(|| path.display().to_string())?;
                } else {
                    self.copied.skip(format!("{}: not a file, directory or link", path.display()));
                }
            }
        }
        Ok(())
    }

    fn link(&mut self, path: &Path, target: String) -> anyhow::Result<()> {
        let leads_to = std::fs::read_link(path).with_context(|| path.display().to_string())?;
        match leads_to.into_os_string().into_string() {
            Ok(leads_to) => self.after.links.push((leads_to, target)),
            Err(_) => {
                self.copied.skip(format!("{}: the link leads to a name that is not UTF-8", path.display()))
            }
        }
        Ok(())
    }

    async fn file(&mut self, from: &Path, metadata: &Metadata, to: &str) -> anyhow::Result<()> {
        let file = std::fs::File::open(from)?;
        self.progress.file(name(to).unwrap_or(to), Some(metadata.len()));
        self.copied.bytes += send(&self.remote, file, to, self.progress).await?;
        self.copied.files += 1;
        let mode = metadata.permissions().mode() & 0o777;
        if mode != USUAL_MODE {
            self.after.modes.entry(mode).or_default().push(to.to_owned());
        }
        Ok(())
    }

    async fn finish(mut self) -> anyhow::Result<Copied> {
        let links = self.after.links.len() as u64;
        let mut whole = true;
        for script in self.after.scripts() {
            if let Some(why) = self.remote.script(&script).await? {
                whole = false;
                self.copied.skip(format!("permission bits or links in the box: {why}"));
            }
        }
        self.copied.links = if whole { links } else { 0 };
        Ok(self.copied)
    }
}

/// What is done when all files are there.
#[derive(Debug, Default)]
struct After {
    modes: BTreeMap<u32, Vec<String>>,
    /// Where a link leads, and where it is.
    links: Vec<(String, String)>,
}

impl After {
    fn scripts(&self) -> Vec<String> {
        let modes = self.modes.iter().flat_map(|(mode, paths)| {
            paths.iter().map(move |path| format!("chmod {mode:o} -- {}\n", shell_word(path)))
        });
        let links = self
            .links
            .iter()
            .map(|(leads_to, path)| format!("ln -sfn -- {} {}\n", shell_word(leads_to), shell_word(path)));
        let mut scripts: Vec<String> = Vec::new();
        for line in modes.chain(links) {
            match scripts.last_mut() {
                Some(script) if script.len() + line.len() <= SCRIPT_BYTES => script.push_str(&line),
                _ => scripts.push(format!("set -e\n{line}")),
            }
        }
        scripts
    }
}

/// By name, so that two runs do the same.
fn entries(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let place = || dir.display().to_string();
    let entries = std::fs::read_dir(dir).with_context(place)?;
    let mut paths = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<io::Result<Vec<_>>>()
        .with_context(place)?;
    paths.sort();
    Ok(paths)
}

/// Reads on a thread beside us, so that the pieces go out while the next are read.
async fn send(
    remote: &Remote<'_>,
    mut from: impl Read + Send + 'static,
    to: &str,
    progress: &mut Progress,
) -> anyhow::Result<u64> {
    let (sender, pieces) = mpsc::channel(4);
    let (counter, mut counts) = mpsc::unbounded_channel();
    let reader = move || {
        loop {
            let mut buffer = vec![0; PIECE_BYTES];
            let read = match from.read(&mut buffer) {
                Ok(0) => return,
                Ok(length) => {
                    buffer.truncate(length);
                    Ok(Bytes::from(buffer))
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => Err(error),
            };
            let (failed, length) = (read.is_err(), read.as_ref().map_or(0, Bytes::len));
            if sender.blocking_send(read).is_err() || failed || counter.send(length).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("reader".to_owned()).spawn(reader)?;
    let path = remote.path(to);
    let mut sending = std::pin::pin!(remote.client.ask::<Value>(Method::PUT, &path, Payload::Pieces(pieces)));
    let answer = loop {
        tokio::select! {
            answer = &mut sending => break answer?,
            Some(length) = counts.recv() => progress.add(length),
        }
    };
    answer["bytes"].as_u64().ok_or_else(|| remote.client.garbled("a file without a length").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(kind: Kind) -> Entry {
        Entry { name: "x".to_owned(), kind, mode: 0o644, link_target: None }
    }

    #[test]
    fn targets_as_docker_cp_has_them() {
        let (dir, file) = (entry(Kind::Directory), entry(Kind::File));
        assert_eq!(file_target("a", "/w/", Some(&dir)).unwrap(), "/w/a");
        assert_eq!(file_target("a", "/w", Some(&dir)).unwrap(), "/w/a");
        assert_eq!(file_target("a", "/w", Some(&file)).unwrap(), "/w");
        assert_eq!(file_target("a", "/w", None).unwrap(), "/w");
        assert!(file_target("a", "/w/", None).is_err());
        assert!(file_target("a", "/w/", Some(&file)).is_err());
        let from = Path::new;
        assert_eq!(directory_target(from("/x/site"), "/srv", None).unwrap(), "/srv");
        assert_eq!(directory_target(from("/x/site"), "/srv/", None).unwrap(), "/srv");
        assert_eq!(directory_target(from("/x/site/"), "/srv", Some(&dir)).unwrap(), "/srv/site");
        assert_eq!(directory_target(from("/x/site/."), "/srv", Some(&dir)).unwrap(), "/srv");
        assert_eq!(directory_target(from("."), "/srv", Some(&dir)).unwrap(), "/srv");
        assert!(directory_target(from("/x/site"), "/srv", Some(&file)).is_err());
    }

    #[test]
    fn scripts_are_bounded_and_quote_what_they_name() {
        let mut after = After::default();
        assert!(after.scripts().is_empty());
        after.modes.insert(0o755, vec!["/w/it's".to_owned()]);
        after.links.push(("../a b".to_owned(), "/w/l".to_owned()));
        assert_eq!(after.scripts(), ["set -e\nchmod 755 -- '/w/it'\\''s'\nln -sfn -- '../a b' /w/l\n"]);
        after.modes.insert(0o700, (0..9000).map(|number| format!("/w/{number:04}")).collect());
        let scripts = after.scripts();
        assert!(scripts.len() > 2 && scripts.iter().all(|script| script.len() < SCRIPT_BYTES + 99));
        assert_eq!(scripts.iter().map(|script| script.matches("chmod").count()).sum::<usize>(), 9001);
    }
}
