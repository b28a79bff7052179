//! glob and grep: walks over a tree that its owner may change while we look.
//!
//! A walk never goes through a link and never leaves the directory it began in; what it may visit, read and give
//! back has bounds.

use std::collections::VecDeque;

use regex::{Regex, RegexBuilder};
use sandcrate_protocol::ErrorKind;
use serde_json::{Value, json};

use super::files::{BoxFiles, soft};
use super::glob_pattern::GlobPattern;
use super::path::Place;
use crate::skills::SKILLS_MOUNT;
use crate::{FileKind, FileMeta, HostError, Result};

const GLOB_MATCHES: usize = 100;
const GREP_MATCHES: usize = 200;
const GREP_FILES: usize = 5000;
/// Entries seen in one walk. Each directory is a question to the runtime.
const WALKED_ENTRIES: usize = 200_000;
const WALKED_DEPTH: usize = 64;
/// Of one file, this much is searched.
const SEARCHED_BYTES: u64 = 2 << 20;
/// Of all files together.
const SEARCHED_TOTAL: u64 = 256 << 20;
/// Of one line, this much is given back: minified files have one line.
const LINE_CHARS: usize = 2000;
/// What a compiled expression may take.
const REGEX_BYTES: usize = 1 << 20;
/// Directories of tools, which nobody means.
const SKIPPED: [&str; 8] = [".git", "node_modules", "__pycache__", ".venv", "venv", ".tox", "dist", "build"];

struct Found {
    path: String,
    meta: FileMeta,
}

/// A breadth-first walk, one directory at a time, each in the order of names.
struct Walk<'a> {
    files: &'a BoxFiles,
    pattern: &'a GlobPattern,
    base: usize,
    ahead: VecDeque<String>,
    seen: usize,
    /// Whether a bound ended it.
    cut: bool,
}

impl<'a> Walk<'a> {
    fn new(files: &'a BoxFiles, place: &Place, pattern: &'a GlobPattern) -> Self {
        let ahead = VecDeque::from([place.path.clone()]);
        Self { files, pattern, base: place.path.len() + 1, ahead, seen: 0, cut: false }
    }

    /// The matching entries of the next directory. The base must be readable; what is below may have gone.
    async fn step(&mut self) -> Result<Option<Vec<Found>>> {
        let Some(directory) = self.ahead.pop_front() else { return Ok(None) };
        let entries = match self.files.list(&directory).await {
            Ok(entries) => entries,
            Err(error) if directory.len() < self.base => return Err(error),
            Err(_) => return Ok(Some(Vec::new())),
        };
        let mut found = Vec::new();
        for meta in entries {
            if self.seen == WALKED_ENTRIES {
                self.cut = true;
                self.ahead.clear();
                break;
            }
            self.seen += 1;
            let path = format!("{directory}/{}", meta.name);
            // Packages of skills are looked at by their own path, where the rules for them hold.
            if SKIPPED.contains(&meta.name.as_str()) || path == SKILLS_MOUNT {
                continue;
            }
            let names: Vec<&str> = path[self.base..].split('/').collect();
            if meta.kind == FileKind::Directory {
                if names.len() < WALKED_DEPTH {
                    self.ahead.push_back(path.clone());
                } else {
                    self.cut = true;
                }
            }
            if self.pattern.matches(&names) {
                found.push(Found { path, meta });
            }
        }
        Ok(Some(found))
    }
}

pub(crate) async fn glob(files: &BoxFiles, place: &Place, given: &str, pattern: &str) -> Result<Value> {
    let pattern = GlobPattern::new(pattern)?;
    match place.look(files).await? {
        Some(meta) if meta.kind == FileKind::Directory => {}
        _ => return Ok(soft(format!("Path is not a directory: {given}"))),
    }
    let mut walk = Walk::new(files, place, &pattern);
    let mut found = Vec::new();
    while let Some(entries) = walk.step().await? {
        found.extend(entries.into_iter().map(|entry| (entry.meta.modified_ms, entry.path)));
    }
    found.sort_by(|(one, path), (other, name)| other.cmp(one).then_with(|| path.cmp(name)));
    let total = found.len();
    let matches: Vec<_> = found.into_iter().take(GLOB_MATCHES).map(|(_, path)| path).collect();
    let truncated = total > GLOB_MATCHES || walk.cut;
    Ok(json!({"ok": true, "matches": matches, "total": total, "truncated": truncated}))
}

/// The expression, or why there is none.
pub(super) fn expression(pattern: &str) -> std::result::Result<Regex, Value> {
    let built = RegexBuilder::new(pattern).size_limit(REGEX_BYTES).dfa_size_limit(REGEX_BYTES).build();
    built.map_err(|error| soft(format!("Invalid regex: {error}")))
}

struct Grep<'a> {
    files: &'a BoxFiles,
    regex: Regex,
    matches: Vec<Value>,
    files_read: usize,
    bytes_left: u64,
    /// Whether something was left out.
    truncated: bool,
}

impl Grep<'_> {
    fn is_full(&self) -> bool {
        self.matches.len() >= GREP_MATCHES || self.files_read >= GREP_FILES || self.bytes_left == 0
    }

    async fn search(&mut self, path: &str) -> Result<()> {
        let limit = SEARCHED_BYTES.min(self.bytes_left);
        self.files_read += 1;
        // Gone, or not ours to read.
        let Ok(bytes) = self.files.read(path, limit).await else { return Ok(()) };
        let size = bytes.len() as u64;
        self.bytes_left -= size.min(self.bytes_left);
        self.truncated |= size >= SEARCHED_BYTES;
        let (regex, most) = (self.regex.clone(), GREP_MATCHES - self.matches.len());
        // An expression over megabytes is work for a thread that may take its time.
        let found = tokio::task::spawn_blocking(move || lines(&regex, &bytes, most)).await;
        let found = found
            .map_err(|_| HostError::new(ErrorKind::Internal, "searching a file did not come to an end"))?;
        self.matches.extend(
            found.into_iter().map(|(line, content)| json!({"file": path, "line": line, "content": content})),
        );
        Ok(())
    }

    fn result(mut self, cut: bool) -> Value {
        self.truncated |= cut || self.matches.len() >= GREP_MATCHES;
        let total = self.matches.len();
        json!({"ok": true, "matches": self.matches, "total": total, "truncated": self.truncated})
    }
}

/// The lines that match, counted from 1, without what is no text.
fn lines(regex: &Regex, bytes: &[u8], most: usize) -> Vec<(usize, String)> {
    let text: String = bytes.utf8_chunks().map(|chunk| chunk.valid()).collect();
    let found = text.lines().enumerate().filter(|(_, line)| regex.is_match(line)).take(most);
    found.map(|(n, line)| (n + 1, shortened(line.trim_end()))).collect()
}

fn shortened(line: &str) -> String {
    match line.char_indices().nth(LINE_CHARS) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line.to_owned(),
    }
}

pub(crate) async fn grep(
    files: &BoxFiles,
    place: &Place,
    given: &str,
    regex: Regex,
    include: Option<&str>,
) -> Result<Value> {
    let include = GlobPattern::new(include.filter(|include| !include.is_empty()).unwrap_or("*"))?;
    let mut grep = Grep {
        files,
        regex,
        matches: Vec::new(),
        files_read: 0,
        bytes_left: SEARCHED_TOTAL,
        truncated: false,
    };
    match place.look(files).await?.map(|meta| meta.kind) {
        Some(FileKind::File) => {
            grep.search(&place.path).await?;
            return Ok(grep.result(false));
        }
        Some(FileKind::Directory) => {}
        _ => return Ok(soft(format!("Path not found: {given}"))),
    }
    let mut walk = Walk::new(files, place, &include);
    while let Some(entries) = walk.step().await? {
        for found in entries.iter().filter(|found| found.meta.kind == FileKind::File) {
            if grep.is_full() {
                return Ok(grep.result(true));
            }
            grep.search(&found.path).await?;
        }
    }
    Ok(grep.result(walk.cut))
}
