//! The fake's files: a map from normal paths to contents, without links, modes or owners.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};

use crate::{BackendError, FileEntry, FileKind, FileReply, FileRequest};

pub(super) struct FakeFiles {
    workdir: String,
    /// Every directory has an entry, the root included.
    nodes: BTreeMap<String, Node>,
}

#[derive(Clone)]
enum Node {
    Directory,
    File(Bytes),
}

impl FakeFiles {
    pub(super) fn new(workdir: &str) -> Self {
        let mut files = Self { workdir: workdir.to_owned(), nodes: BTreeMap::new() };
        files.nodes.insert("/".to_owned(), Node::Directory);
        for directory in ["/tmp", "/workspace", "/home/box", workdir] {
            // An empty tree has nothing in the way of a directory.
            let _ = files.make_dir("making", &files.resolve(directory));
        }
        files
    }

    pub(super) fn serve(&mut self, request: FileRequest) -> Result<FileReply, BackendError> {
        match request {
            FileRequest::Stat { path } => {
                let path = self.resolve(&path);
                let node = self.nodes.get(&path).ok_or_else(|| not_found(&path))?;
                Ok(FileReply::Entry(entry(&path, node)))
            }
            FileRequest::List { path } => self.list(&self.resolve(&path)),
            FileRequest::Read { path, offset, limit } => self.read(&self.resolve(&path), offset, limit),
            FileRequest::Write { path, data } => self.write(self.resolve(&path), data),
            FileRequest::Append { path, data } => self.append(self.resolve(&path), &data),
            FileRequest::MakeDir { path } => {
                self.make_dir("making", &self.resolve(&path)).map(|()| FileReply::Done)
            }
            FileRequest::Remove { path } => self.remove(&self.resolve(&path)),
            FileRequest::Rename { from, to } => self.rename(&self.resolve(&from), &self.resolve(&to)),
        }
    }

    /// The normal absolute form; `..` stops at the root.
    fn resolve(&self, path: &str) -> String {
        let base = if path.starts_with('/') { "" } else { &self.workdir };
        let mut parts: Vec<&str> = Vec::new();
        for part in base.split('/').chain(path.split('/')) {
            match part {
                "" | "." => {}
                ".." => drop(parts.pop()),
                name => parts.push(name),
            }
        }
        format!("/{}", parts.join("/"))
    }

    fn list(&self, path: &str) -> Result<FileReply, BackendError> {
        match self.nodes.get(path) {
            None => Err(not_found(path)),
            Some(Node::File(_)) => Err(failed("listing", path, "not a directory")),
            Some(Node::Directory) => {
                let prefix = below(path);
                let children = self.nodes.iter().filter(|(name, _)| {
                    name.strip_prefix(&prefix).is_some_and(|rest| !rest.is_empty() && !rest.contains('/'))
                });
                Ok(FileReply::Entries(children.map(|(name, node)| entry(name, node)).collect()))
            }
        }
    }

    fn read(&self, path: &str, offset: u64, limit: u64) -> Result<FileReply, BackendError> {
        match self.nodes.get(path) {
            None => Err(not_found(path)),
            Some(Node::Directory) => Err(failed("reading", path, "is a directory")),
            Some(Node::File(data)) => {
                let file_bytes = data.len() as u64;
                let begin = offset.min(file_bytes);
                let end = begin.saturating_add(limit.min(FileRequest::MAX_BYTES)).min(file_bytes);
                Ok(FileReply::Data { data: data.slice(begin as usize..end as usize), file_bytes })
            }
        }
    }

    fn write(&mut self, path: String, data: Bytes) -> Result<FileReply, BackendError> {
        if matches!(self.nodes.get(&path), Some(Node::Directory)) {
            return Err(failed("writing", &path, "is a directory"));
        }
        self.make_dir("writing", parent(&path))?;
        self.nodes.insert(path, Node::File(data));
        Ok(FileReply::Done)
    }

    fn append(&mut self, path: String, data: &Bytes) -> Result<FileReply, BackendError> {
        let old = match self.nodes.get_mut(&path) {
            // Taken out, so that it grows in place unless a reader still holds it.
            Some(Node::File(old)) => std::mem::take(old),
            Some(Node::Directory) => return Err(failed("appending", &path, "is a directory")),
            None => Bytes::new(),
        };
        let mut whole = BytesMut::from(old);
        whole.extend_from_slice(data);
        self.write(path, whole.freeze())
    }

    fn make_dir(&mut self, operation: &'static str, path: &str) -> Result<(), BackendError> {
        let ends = path.match_indices('/').map(|(at, _)| at).skip(1).chain([path.len()]);
        for end in ends {
            match self.nodes.get(&path[..end]) {
                Some(Node::File(_)) => return Err(failed(operation, path, "a file is in the way")),
                Some(Node::Directory) => {}
                None => drop(self.nodes.insert(path[..end].to_owned(), Node::Directory)),
            }
        }
        Ok(())
    }

    fn remove(&mut self, path: &str) -> Result<FileReply, BackendError> {
        if path == "/" {
            return Err(failed("removing", path, "is the root"));
        }
        self.nodes.remove(path).ok_or_else(|| not_found(path))?;
        let prefix = below(path);
        self.nodes.retain(|name, _| !name.starts_with(&prefix));
        Ok(FileReply::Done)
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<FileReply, BackendError> {
        let node = self.nodes.get(from).cloned().ok_or_else(|| not_found(from))?;
        if !matches!(self.nodes.get(parent(to)), Some(Node::Directory)) {
            return Err(not_found(parent(to)));
        }
        let prefix = below(from);
        if from == "/" || to.starts_with(&prefix) {
            return Err(failed("renaming", from, "into itself"));
        }
        if from == to {
            return Ok(FileReply::Done);
        }
        match (&node, self.nodes.get(to)) {
            (Node::Directory, Some(Node::File(_))) => return Err(failed("renaming", to, "not a directory")),
            (_, Some(Node::Directory)) => return Err(failed("renaming", to, "is a directory")),
            _ => {}
        }
        let moved: Vec<_> = self.nodes.iter().filter(|(name, _)| name.starts_with(&prefix)).collect();
        let moved: Vec<_> =
            moved.iter().map(|(name, node)| (below(to) + &name[prefix.len()..], (*node).clone())).collect();
        self.remove(from)?;
        self.nodes.insert(to.to_owned(), node);
        self.nodes.extend(moved);
        Ok(FileReply::Done)
    }
}

/// The prefix of everything below a directory.
fn below(path: &str) -> String {
    if path == "/" { "/".to_owned() } else { format!("{path}/") }
}

fn parent(path: &str) -> &str {
    match path.rfind('/') {
        None | Some(0) => "/",
        Some(at) => &path[..at],
    }
}

fn entry(path: &str, node: &Node) -> FileEntry {
    let name = path.rsplit('/').next().unwrap_or_default().to_owned();
    let (kind, bytes, mode) = match node {
        Node::Directory => (FileKind::Directory, 0, 0o755),
        Node::File(data) => (FileKind::File, data.len() as u64, 0o644),
    };
    FileEntry { name, kind, bytes, mode, modified: 0, link_target: None }
}

fn not_found(path: &str) -> BackendError {
    BackendError::FileNotFound { path: path.to_owned() }
}

fn failed(operation: &'static str, path: &str, why: &str) -> BackendError {
    BackendError::FileFailed { operation, path: path.to_owned(), why: why.to_owned() }
}
