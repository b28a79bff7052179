//! Where the paths of a box lie in its sandbox.
//!
//! A box has `/workspace` and mounts where its caller wants them. In a sandbox they are made in those very places
//! where the template lets us; what cannot be made there lies below the home, and paths are mapped, by their
//! components. What a command says is never rewritten.

/// What was moved, the longest path first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Places {
    moved: Vec<(String, String)>,
}

impl Places {
    /// From what could not be made in its place. `workspace` goes where LangBot's runtime has it.
    pub(crate) fn moved(refused: &[String], workspace: &str, home: &str) -> Self {
        let home = home.trim_end_matches('/');
        let mut refused: Vec<&String> = refused.iter().collect();
        refused.sort_by_key(|path| path.len());
        let mut places = Self::default();
        for path in refused {
            // What lies in a moved directory moves with it.
            if places.remote(path) != *path {
                continue;
            }
            let to = match path == workspace {
                true => format!("{home}/workspace"),
                false => format!("{home}/.sandcrate{path}"),
            };
            places.moved.push((path.clone(), to));
        }
        places.moved.sort_by_key(|(from, _)| std::cmp::Reverse(from.len()));
        places
    }

    /// The sandbox's name for an absolute path of the box.
    pub(crate) fn remote(&self, path: &str) -> String {
        if self.moved.is_empty() {
            return path.to_owned();
        }
        let path = normal(path);
        let found = self.moved.iter().find_map(|(from, to)| {
            let rest = path.strip_prefix(from.as_str())?;
            (rest.is_empty() || rest.starts_with('/')).then(|| format!("{to}{rest}"))
        });
        found.unwrap_or(path)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &(String, String)> {
        self.moved.iter()
    }
}

/// Without `.`, `..` and empty components: what is mapped by its beginning must not climb out of it later.
fn normal(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/').filter(|part| !part.is_empty() && *part != ".") {
        if part == ".." {
            parts.pop();
        } else {
            parts.push(part);
        }
    }
    format!("/{}", parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_mapped_by_components_and_not_by_text() {
        let places =
            Places::moved(&["/workspace".to_owned(), "/data".to_owned()], "/workspace", "/home/user");
        for (path, remote) in [
            ("/workspace", "/home/user/workspace"),
            ("/workspace/a/b", "/home/user/workspace/a/b"),
            ("/workspace2/x", "/workspace2/x"),
            ("/data/x", "/home/user/.sandcrate/data/x"),
            ("/etc/workspace", "/etc/workspace"),
            ("/workspace/../etc/passwd", "/etc/passwd"),
            ("//workspace/./x", "/home/user/workspace/x"),
        ] {
            assert_eq!(places.remote(path), remote);
        }
    }

    #[test]
    fn what_lies_in_a_moved_directory_moves_with_it() {
        let refused = ["/workspace/.skills/a".to_owned(), "/workspace".to_owned()];
        let places = Places::moved(&refused, "/workspace", "/home/user");
        assert_eq!(places.remote("/workspace/.skills/a/x"), "/home/user/workspace/.skills/a/x");
        assert_eq!(places.iter().count(), 1);
    }

    #[test]
    fn without_a_move_every_path_stays_as_it_is() {
        assert_eq!(Places::default().remote("/workspace/../x"), "/workspace/../x");
    }
}
