//! One directory of the host and its copy: what is known of both, and what has to travel.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::{StreamExt, TryStreamExt};
use sandcrate_backend::{BackendError, DiskLimit, LimitHit, Mount, MountAccess};
use sandcrate_driver::open_source;
use sandcrate_jail::NodeKind;

use super::report::Report;
use super::{FILE_BYTES, host, remote};
use crate::envd::Envd;
use crate::http::EndpointError;

/// Files under way at once.
const PARALLEL: usize = 8;

/// A share and its copy.
#[derive(Debug)]
pub(super) struct Share {
    /// In the box.
    pub(super) target: String,
    /// In the sandbox.
    pub(super) remote: String,
    access: MountAccess,
    quota: Option<DiskLimit>,
    root: Arc<host::Root>,
    /// Places of other shares, below this one.
    hidden: Arc<Vec<String>>,
    /// What both sides have, as it was last seen.
    known: BTreeMap<String, Known>,
    /// What was said before is not said again.
    said: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Known {
    here: host::Node,
    there: remote::Node,
}

impl Share {
    pub(super) fn open(mount: &Mount, own_state: &[PathBuf]) -> Result<Self, BackendError> {
        let source = open_source(mount, own_state)?;
        let is_file = source.requested.kind == NodeKind::File;
        let root = host::Root::open(&source.fd, source.mount.owner, is_file)
            .map_err(|error| BackendError::failed("opening a shared directory", error))?;
        Ok(Self {
            remote: source.requested.target.clone(),
            target: source.requested.target,
            access: mount.access,
            quota: mount.quota,
            root: Arc::new(root),
            hidden: Arc::default(),
            known: BTreeMap::new(),
            said: Vec::new(),
        })
    }

    /// The directory that has to be there for it, in the box.
    pub(super) fn directory(&self) -> String {
        let above = || self.target.rsplit_once('/').map_or("", |(above, _)| above).to_owned();
        if self.root.is_file { above() } else { self.target.clone() }
    }

    /// What is shared below this one is not its own.
    pub(super) fn hide(&mut self, targets: &[String]) {
        let below = targets.iter().filter_map(|target| target.strip_prefix(&format!("{}/", self.target)));
        self.hidden = Arc::new(below.map(str::to_owned).collect());
    }

    fn place<'a>(&'a self, envd: &'a Envd) -> remote::Place<'a> {
        remote::Place { envd, path: &self.remote }
    }

    /// Off the async threads.
    async fn blocking<T: Send + 'static>(
        &self,
        step: &'static str,
        work: impl FnOnce(&host::Root) -> std::io::Result<T> + Send + 'static,
    ) -> Result<T, BackendError> {
        let root = Arc::clone(&self.root);
        let done = sandcrate_driver::on_disk(move || work(&root)).await;
        done.map_err(|error| BackendError::failed(step, error))
    }

    async fn scan_here(&self) -> Result<(host::Tree, Report), BackendError> {
        let hidden = Arc::clone(&self.hidden);
        let scan = move |root: &host::Root| {
            let mut report = Report::default();
            Ok((root.scan(&hidden, &mut report)?, report))
        };
        self.blocking("looking at a shared directory", scan).await
    }

    /// Brings the copy up to date.
    pub(super) async fn push(&mut self, envd: &Envd, report: &mut Report) -> Result<(), BackendError> {
        let (here, mut skipped) = self.scan_here().await?;
        self.check_quota(&here)?;
        let gone: Vec<String> =
            self.known.keys().filter(|path| !here.contains_key(*path)).map(Clone::clone).collect();
        let changed: BTreeMap<String, host::Node> = here
            .iter()
            .filter(|(path, node)| self.known.get(*path).is_none_or(|known| known.here != **node))
            .map(|(path, node)| (path.clone(), node.clone()))
            .collect();
        if !gone.is_empty() || !changed.is_empty() {
            self.send(envd, &gone, &changed, &here, &mut skipped)
                .await
                .map_err(EndpointError::unavailable)?;
            self.settle(envd, here).await.map_err(EndpointError::unavailable)?;
        }
        self.say(&skipped, report);
        Ok(())
    }

    async fn send(
        &self,
        envd: &Envd,
        gone: &[String],
        changed: &BTreeMap<String, host::Node>,
        here: &host::Tree,
        report: &mut Report,
    ) -> Result<(), EndpointError> {
        let place = self.place(envd);
        let sealed = self.access == MountAccess::ReadOnly;
        let own = |tree: Vec<(&String, bool)>| -> Vec<String> {
            // A link has no mode of its own.
            let names = tree
                .into_iter()
                .filter(|(path, link)| !link && !path.is_empty())
                .map(|(path, _)| path.clone());
            names.chain((!self.root.is_file).then(|| ".".to_owned())).collect()
        };
        let known = || {
            self.known
                .iter()
                .map(|(path, known)| (path, matches!(known.here, host::Node::Link { .. })))
                .collect()
        };
        if sealed && !self.known.is_empty() {
            place.seal(&own(known()), false).await?;
        }
        // What has become something else goes first.
        let replaced = changed.iter().filter(|(path, node)| {
            let before = self.known.get(*path).map(|known| &known.here);
            before.is_some_and(|before| std::mem::discriminant(before) != std::mem::discriminant(*node))
        });
        let mut removed = gone.to_vec();
        removed.extend(replaced.map(|(path, _)| path.clone()));
        removed.retain(|path| !path.is_empty());
        place.remove(&removed).await?;
        let directories = changed.iter().filter(|(_, node)| **node == host::Node::Directory);
        let mut directories: Vec<String> = directories.map(|(path, _)| path.clone()).collect();
        if self.known.is_empty() && !self.root.is_file {
            directories.push(".".to_owned());
        }
        place.make_directories(&directories).await?;
        let files: Vec<(String, bool)> = changed
            .iter()
            .filter_map(|(path, node)| match node {
                host::Node::File { executable, .. } => Some((path.clone(), *executable)),
                _ => None,
            })
            .collect();
        let mut uploads = Vec::with_capacity(files.len());
        for (path, _) in &files {
            uploads.push(self.upload(envd, path.clone()));
        }
        let failed: Vec<Option<(String, String)>> =
            futures_util::stream::iter(uploads).buffer_unordered(PARALLEL).try_collect().await?;
        for (path, why) in failed.into_iter().flatten() {
            report.skipped(&path, &why);
        }
        for executable in [true, false] {
            // A new file is plain already.
            let differs = |path: &String| {
                let known = self.known.get(path);
                executable
                    || known.is_some_and(|known| {
                        matches!(known.there, remote::Node::File { executable: true, .. })
                    })
            };
            let names = files.iter().filter(|(path, wanted)| *wanted == executable && differs(path));
            let names: Vec<String> =
                names.map(|(path, _)| path.clone()).filter(|path| !path.is_empty()).collect();
            place.set_executable(&names, executable).await?;
        }
        let links = changed.iter().filter_map(|(path, node)| match node {
            host::Node::Link { target } => Some([target.clone(), path.clone()]),
            _ => None,
        });
        place.make_links(&links.flatten().collect::<Vec<_>>()).await?;
        if sealed {
            let all =
                here.iter().map(|(path, node)| (path, matches!(node, host::Node::Link { .. }))).collect();
            place.seal(&own(all), true).await?;
        }
        Ok(())
    }

    /// A file that changes under our hands is left out, and said; the next exchange has it.
    async fn upload(&self, envd: &Envd, path: String) -> Result<Option<(String, String)>, EndpointError> {
        let name = path.clone();
        match self.blocking("reading a shared file", move |root| root.read(&name)).await {
            Ok(data) => {
                let to =
                    if path.is_empty() { self.remote.clone() } else { format!("{}/{path}", self.remote) };
                envd.write(&to, Bytes::from(data)).await.map(|()| None)
            }
            Err(error) => {
                let why = std::error::Error::source(&error).map_or(error.to_string(), ToString::to_string);
                Ok(Some((path, why)))
            }
        }
    }

    /// What both sides have now.
    async fn settle(&mut self, envd: &Envd, here: host::Tree) -> Result<(), EndpointError> {
        let there = self.place(envd).scan(&self.hidden, &mut Report::default()).await?;
        let mut nodes = there.nodes;
        let both = here.into_iter().filter_map(|(path, here)| {
            let there = nodes.remove(&path)?;
            Some((path, Known { here, there }))
        });
        self.known = both.collect();
        Ok(())
    }

    /// Brings the host up to date.
    pub(super) async fn pull(
        &mut self,
        envd: &Envd,
        report: &mut Report,
    ) -> Result<Option<LimitHit>, BackendError> {
        if self.access == MountAccess::ReadOnly {
            return Ok(None);
        }
        let mut skipped = Report::default();
        let there =
            self.place(envd).scan(&self.hidden, &mut skipped).await.map_err(EndpointError::unavailable)?;
        let limit_bytes = self.quota.map_or(u64::MAX, DiskLimit::bytes);
        let over =
            (there.bytes > limit_bytes).then_some(LimitHit::Disk { used_bytes: there.bytes, limit_bytes });
        if !there.cut {
            self.remove_here(&there, &mut skipped).await?;
        }
        let changed: Vec<(String, remote::Node)> = there
            .nodes
            .into_iter()
            .filter(|(path, node)| self.known.get(path).is_none_or(|known| known.there != *node))
            .collect();
        // The map is in order of paths, so a directory comes before what is in it.
        for (path, node) in changed {
            match self.fetch(envd, &path, node.clone()).await? {
                Ok(here) => drop(self.known.insert(path, Known { here, there: node })),
                Err(why) => skipped.skipped(&path, &why),
            }
        }
        self.say(&skipped, report);
        Ok(over)
    }

    async fn remove_here(&mut self, there: &remote::Tree, skipped: &mut Report) -> Result<(), BackendError> {
        let gone = |path: &&String| !there.nodes.contains_key(*path) && !there.skipped.contains(path);
        // The deepest first: a directory goes when it is empty.
        let gone: Vec<String> = self.known.keys().filter(gone).rev().cloned().collect();
        for path in gone {
            let Some(known) = self.known.remove(&path) else { continue };
            let name = path.clone();
            let removal = move |root: &host::Root| match root.node(&name)? {
                None => Ok(true),
                Some(node) if node == known.here => root.remove(&name, &node).map(|()| true),
                Some(_) => Ok(false),
            };
            match self.blocking("removing a shared file", removal).await {
                Ok(true) => {}
                Ok(false) => skipped.skipped(&path, "it was removed in the sandbox and changed on the host"),
                Err(error) => skipped.skipped(&path, &error.to_string()),
            }
        }
        Ok(())
    }

    /// One path; or why the host has to do without it.
    async fn fetch(
        &self,
        envd: &Envd,
        path: &str,
        node: remote::Node,
    ) -> Result<Result<host::Node, String>, BackendError> {
        let before = self.known.get(path).map(|known| known.here.clone());
        let data = match &node {
            remote::Node::File { .. } => {
                let from =
                    if path.is_empty() { self.remote.clone() } else { format!("{}/{path}", self.remote) };
                match envd.read(&from, 0, FILE_BYTES + 1).await {
                    Ok(part) if part.data.len() as u64 > FILE_BYTES => {
                        return Ok(Err(host::too_large(part.file_bytes)));
                    }
                    Ok(part) => part.data,
                    Err(EndpointError::Refused { message, .. }) => return Ok(Err(message)),
                    Err(error) => return Err(error.unavailable()),
                }
            }
            _ => Bytes::new(),
        };
        let name = path.to_owned();
        let write = move |root: &host::Root| -> std::io::Result<Result<host::Node, String>> {
            let now = root.node(&name)?;
            let both_directories = now == Some(host::Node::Directory) && node == remote::Node::Directory;
            if now != before && !both_directories {
                return Ok(Err("it was changed on both sides; the host's is kept".to_owned()));
            }
            if let (Some(now), Some(_)) = (&now, &before)
                && std::mem::discriminant(now) != kind_of(&node)
            {
                root.remove(&name, now)?;
            }
            match &node {
                remote::Node::Directory => root.make_directory(&name)?,
                remote::Node::File { executable, .. } => root.write(&name, &data, *executable)?,
                remote::Node::Link { target } => root.make_link(&name, target)?,
            }
            Ok(root.node(&name)?.ok_or_else(|| "it is gone again".to_owned()))
        };
        let written = self.blocking("writing a shared file", write).await;
        Ok(written.unwrap_or_else(|error| {
            Err(std::error::Error::source(&error).map_or(error.to_string(), ToString::to_string))
        }))
    }

    /// With a quota that is used up nothing starts.
    fn check_quota(&self, here: &host::Tree) -> Result<(), BackendError> {
        let Some(quota) = self.quota else { return Ok(()) };
        let used: u64 = here
            .values()
            .map(|node| if let host::Node::File { bytes, .. } = node { *bytes } else { 0 })
            .sum();
        if used <= quota.bytes() {
            return Ok(());
        }
        Err(BackendError::LimitExceeded {
            what: format!("the directory with {used} bytes"),
            limit: format!("its quota of {} bytes", quota.bytes()),
        })
    }

    /// What is new of it.
    fn say(&mut self, found: &Report, report: &mut Report) {
        let lines = found.lines();
        let new: Vec<String> = lines.iter().filter(|line| !self.said.contains(line)).cloned().collect();
        report.add(new.iter().map(|line| format!("{}: {line}", self.target)));
        self.said = lines;
    }
}

fn kind_of(node: &remote::Node) -> std::mem::Discriminant<host::Node> {
    std::mem::discriminant(&match node {
        remote::Node::Directory => host::Node::Directory,
        remote::Node::Link { .. } => host::Node::Link { target: String::new() },
        remote::Node::File { .. } => {
            host::Node::File { bytes: 0, modified: (0, 0), changed: (0, 0), number: 0, executable: false }
        }
    })
}
