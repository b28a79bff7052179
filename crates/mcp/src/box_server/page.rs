//! One page of the files of a workspace: depth first, by name, from where the last page ended.

use sandcrate_host::{FileKind, HostError};

use super::Boxes;
use super::uri::WORKSPACE;

/// Files on one page.
const PAGE: usize = 100;
/// Directories looked into for one page: each is a message to the box, and most trees of files that nobody wants
/// to see one by one are wide and empty of sources.
const LOOKS: usize = 256;
/// Deeper files are read by their address, and are on no page.
const DEPTH: usize = 24;

/// A regular file of the workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Listed {
    /// Below the workspace.
    pub(super) relative: String,
    pub(super) size: u64,
}

/// Files, and the last path that is done with when there may be more.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Page {
    pub(super) files: Vec<Listed>,
    pub(super) next: Option<String>,
}

/// A directory that is being walked.
struct Level {
    relative: String,
    /// What is left of it, last first.
    left: Vec<(String, FileKind, u64)>,
    /// The entry in which the last page ended, and the rest of the way to there.
    resume: Option<(String, Option<String>)>,
}

/// The page after `after`, a path below the workspace. Directories whose name begins with a dot are left out.
pub(super) async fn after(boxes: &dyn Boxes, session: &str, after: Option<&str>) -> Result<Page, HostError> {
    let mut looks = 0;
    let mut done: Option<String> = after.map(str::to_owned);
    let mut files = Vec::new();
    let mut levels = vec![level(boxes, session, String::new(), after).await?];
    while let Some(current) = levels.last_mut() {
        let Some((name, kind, size)) = current.left.pop() else {
            done = levels.pop().map(|level| level.relative);
            continue;
        };
        let resume = current.resume.take().filter(|(at, _)| *at == name).and_then(|(_, rest)| rest);
        let relative =
            if current.relative.is_empty() { name.clone() } else { format!("{}/{name}", current.relative) };
        match kind {
            FileKind::File => {
                done = Some(relative.clone());
                files.push(Listed { relative, size });
                if files.len() == PAGE {
                    return Ok(Page { files, next: done });
                }
            }
            FileKind::Directory if !name.starts_with('.') && levels.len() < DEPTH => {
                looks += 1;
                if looks > LOOKS {
                    return Ok(Page { files, next: done });
                }
                levels.push(level(boxes, session, relative, resume.as_deref()).await?);
            }
            FileKind::Directory | FileKind::Symlink | FileKind::Other => {}
        }
    }
    Ok(Page { files, next: None })
}

/// What is left of a directory after the path `after` below it.
async fn level(
    boxes: &dyn Boxes,
    session: &str,
    relative: String,
    after: Option<&str>,
) -> Result<Level, HostError> {
    let path = if relative.is_empty() { WORKSPACE.to_owned() } else { format!("{WORKSPACE}/{relative}") };
    let entries = match boxes.list(session, &path).await {
        Ok(entries) => entries,
        // Removed while we walked, or not ours to read: the rest of the page is of use all the same.
        Err(_) if !relative.is_empty() => Vec::new(),
        Err(error) => return Err(error),
    };
    let resume = after.map(|after| match after.split_once('/') {
        Some((name, rest)) => (name.to_owned(), Some(rest.to_owned())),
        None => (after.to_owned(), None),
    });
    let is_left = |name: &str| match &resume {
        None => true,
        // Done with, unless the end is further down in it.
        Some((at, rest)) => name > at.as_str() || (name == at && rest.is_some()),
    };
    let mut left: Vec<_> = entries
        .into_iter()
        .filter(|entry| !matches!(entry.name.as_str(), "" | "." | "..") && !entry.name.contains('/'))
        .filter(|entry| is_left(&entry.name))
        .map(|entry| (entry.name, entry.kind, entry.size))
        .collect();
    left.sort_by(|one, other| other.0.cmp(&one.0));
    Ok(Level { relative, left, resume })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::box_server::fake::FakeBoxes;

    async fn all(boxes: &FakeBoxes) -> (Vec<String>, usize) {
        let (mut found, mut pages, mut from) = (Vec::new(), 0, None);
        loop {
            let page = after(boxes, "s", from.as_deref()).await.unwrap();
            assert!(page.files.len() <= PAGE);
            found.extend(page.files.into_iter().map(|file| file.relative));
            pages += 1;
            match page.next {
                Some(next) => {
                    assert!(from.is_none_or(|before| before != next), "a page that leads nowhere");
                    from = Some(next);
                }
                None => return (found, pages),
            }
        }
    }

    #[tokio::test]
    async fn every_file_is_on_one_page_in_order() {
        let boxes = FakeBoxes::new();
        let mut expected: Vec<String> = (0..250).map(|n| format!("d{}/f{n:03}", n % 7)).collect();
        expected.extend(["a".to_owned(), "d3.txt".to_owned(), "z/deep/er/x".to_owned()]);
        expected.iter().for_each(|path| boxes.put(&format!("/workspace/{path}"), b"x"));
        boxes.put("/workspace/.git/config", b"x");
        let (mut found, pages) = all(&boxes).await;
        assert_eq!(pages, 3);
        assert_eq!(found.len(), expected.len(), "each once");
        found.sort();
        expected.sort();
        assert_eq!(found, expected);
    }

    #[tokio::test]
    async fn a_wide_tree_without_files_costs_a_bounded_page() {
        let boxes = FakeBoxes::new();
        (0..600).for_each(|n| boxes.put_directory(&format!("/workspace/d{n:03}")));
        boxes.put("/workspace/zz", b"x");
        let (found, pages) = all(&boxes).await;
        assert_eq!((found, pages), (vec!["zz".to_owned()], 3));
    }

    #[tokio::test]
    async fn a_page_goes_on_where_its_place_is_gone() {
        let boxes = FakeBoxes::new();
        boxes.put("/workspace/c/x", b"x");
        let page = after(&boxes, "s", Some("b/a/q")).await.unwrap();
        assert_eq!(page.files.len(), 1, "what came after is still listed");
        assert!(after(&boxes, "s", Some("c/x")).await.unwrap().files.is_empty());
    }
}
