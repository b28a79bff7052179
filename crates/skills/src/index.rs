//! Which packages there are: searched once, then kept until a directory or an entry file has changed.
//!
//! A directory's own times tell that an entry came or went, an entry file's that its text changed, so a look
//! costs one `stat` for each of them and reads nothing. A stamp is trusted only once it has aged: within one
//! tick of the kernel's clock a file can change twice.

use std::collections::{HashMap, HashSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::FileType;

use crate::SkillError;
use crate::beneath::{Dir, Links, Miss};
use crate::limits::{
    LIST_DEPTH, MAX_DIRECTORIES, MAX_PACKAGES, PLACE_DIRECTORIES, PLACE_ENTRIES, PLACE_PACKAGES,
    PLACE_TEXT_BYTES, TEXT_BYTES,
};
use crate::name::{PRIVATE_DIR, TENANTS_DIR};
use crate::package::{self, Skill, Stamp};

/// Many ticks of the coarse clock that file times come from (at most 10 ms).
const TICK: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct Index {
    directories: Vec<(PathBuf, Stamp)>,
    packages: Vec<Package>,
    /// Directories of the root that have too much in them to be searched.
    oversized: Vec<PathBuf>,
    /// Names that another package has, and the packages that wanted them.
    shadowed: HashSet<(String, String)>,
    /// Whether there were more packages than may be.
    full: bool,
    taken: SystemTime,
    /// Sorted as callers get them: newest first.
    skills: Vec<Arc<Skill>>,
}

#[derive(Debug)]
struct Package {
    below: PathBuf,
    entry: &'static str,
    stamp: Stamp,
    /// `None`: there is one, and it cannot be read. Indexes share the texts of what has not changed.
    skill: Option<Arc<Skill>>,
}

/// A package that a search found. It holds no descriptor: there may be more packages than those.
pub(crate) struct Found {
    pub(crate) below: PathBuf,
    pub(crate) entry: &'static str,
}

/// How much a search may look at.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    pub(crate) directories: usize,
    pub(crate) entries: usize,
    pub(crate) packages: usize,
}

/// Searches breadth first, by sorted names, without following links; what is below a package is the package's.
/// Every directory looked at is handed to `seen`. What exceeds the budget is [`Miss::TooLong`].
pub(crate) fn search(
    top: &Dir,
    from: &Path,
    depth: usize,
    mut budget: Budget,
    mut seen: impl FnMut(&Path, &Dir),
) -> Result<Vec<Found>, Miss> {
    let mut found = Vec::new();
    let mut pending = VecDeque::from([(from.to_owned(), 0)]);
    while let Some((below, level)) = pending.pop_front() {
        budget.directories = budget.directories.checked_sub(1).ok_or(Miss::TooLong)?;
        let dir = match top.dir(&below, Links::Refuse) {
            Ok(dir) => dir,
            // Gone meanwhile, or not for us to see.
            Err(_) if level > 0 => continue,
            Err(miss) => return Err(miss),
        };
        seen(&below, &dir);
        if let Some((entry, _)) = package::entry_file(&dir) {
            budget.packages = budget.packages.checked_sub(1).ok_or(Miss::TooLong)?;
            found.push(Found { below, entry });
            continue;
        }
        if level == depth {
            continue;
        }
        let Ok((entries, more)) = dir.entries(budget.entries.min(MAX_DIRECTORIES)) else { continue };
        if more {
            return Err(Miss::TooLong);
        }
        budget.entries -= entries.len();
        for entry in entries {
            if entry.kind == FileType::Directory {
                pending.push_back((below.join(entry.name), level + 1));
            }
        }
        // What waits has to be looked at too: told before it is gathered without end.
        if pending.len() > budget.directories {
            return Err(Miss::TooLong);
        }
    }
    Ok(found)
}

/// Counts texts, of one directory of the root and of all.
#[derive(Debug, Default)]
struct Texts {
    here: usize,
    all: usize,
}

impl Texts {
    fn take(&mut self, skill: &Skill) -> Result<(), SkillError> {
        let bytes = skill.text_bytes();
        if self.here + bytes > PLACE_TEXT_BYTES {
            let limit = format!("{PLACE_TEXT_BYTES} bytes");
            return Err(SkillError::limit("the text of the skills below one directory", limit));
        }
        if self.all + bytes > TEXT_BYTES {
            return Err(SkillError::limit("the text of all skills", format!("{TEXT_BYTES} bytes")));
        }
        self.here += bytes;
        self.all += bytes;
        Ok(())
    }
}

impl Index {
    /// Looks at everything; what an earlier index has read, and is as it was, is not read again.
    ///
    /// Each directory of the root has its own budget: whoever may write in one cannot hide the others.
    pub(crate) fn take(root: &Dir, root_path: &Path, earlier: Option<&Self>) -> Result<Self, Miss> {
        let known: HashMap<&Path, &Package> = earlier.map_or_else(HashMap::new, |earlier| {
            earlier.packages.iter().map(|package| (package.below.as_path(), package)).collect()
        });
        let trusted =
            |package: &&Package| earlier.is_some_and(|earlier| has_aged(package.stamp, earlier.taken));
        let mut index = Self {
            directories: vec![(PathBuf::new(), Stamp::from(&root.own_stat()?))],
            packages: Vec::new(),
            oversized: Vec::new(),
            shadowed: HashSet::new(),
            full: false,
            taken: SystemTime::now(),
            skills: Vec::new(),
        };
        let mut texts = Texts::default();
        for place in root.entries(MAX_DIRECTORIES)?.0 {
            let ours = place.name == PRIVATE_DIR || place.name == TENANTS_DIR;
            if place.kind != FileType::Directory || ours {
                continue;
            }
            let place = PathBuf::from(place.name);
            texts.here = 0;
            for Found { below, entry } in index.search_place(root, root_path, place, earlier) {
                let Ok(dir) = root.dir(&below, Links::Refuse) else { continue };
                let Some((_, stat)) = package::entry_file(&dir) else { continue };
                if index.packages.len() == MAX_PACKAGES {
                    index.full = true;
                    break;
                }
                let path = root_path.join(&below);
                let stamp = Stamp::from(&stat);
                let before = known.get(below.as_path()).copied();
                let before = before.filter(|known| known.stamp == stamp && known.entry == entry);
                let read = match before.filter(trusted) {
                    Some(Package { skill: Some(skill), .. }) => Ok((Arc::clone(skill), stamp)),
                    // It could not be read, and is as it was.
                    Some(Package { skill: None, .. }) => {
                        index.packages.push(Package { below, entry, stamp, skill: None });
                        continue;
                    }
                    None => package::load(&dir, &path, entry).map(|(mut skill, stamp)| {
                        skill.below = below.to_str().unwrap_or_default().to_owned();
                        (Arc::new(skill), stamp)
                    }),
                };
                let read = read.and_then(|(skill, stamp)| texts.take(&skill).map(|()| (skill, stamp)));
                let (skill, stamp) = match read {
                    Ok((skill, stamp)) => (Some(skill), stamp),
                    Err(error) => {
                        // Told once for each state of the file, however often it is looked at.
                        if before.is_none_or(|known| known.skill.is_some()) {
                            let error = &error as &dyn std::error::Error;
                            tracing::warn!(package = ?path, error, "skill left out");
                        }
                        (None, stamp)
                    }
                };
                index.packages.push(Package { below, entry, stamp, skill });
            }
        }
        if index.full && !earlier.is_some_and(|earlier| earlier.full) {
            tracing::warn!(limit = MAX_PACKAGES, "too many skills: those behind are left out");
        }
        index.resolve_names(root_path, earlier);
        Ok(index)
    }

    /// One skill for each name. A box can give its package any name and any time, but not another directory of
    /// the root: that decides, and the rest of a name is left out.
    fn resolve_names(&mut self, root_path: &Path, earlier: Option<&Self>) {
        let mut skills: Vec<_> = self.packages.iter().filter_map(|package| package.skill.clone()).collect();
        skills.sort_by(|a, b| claim(a).cmp(&claim(b)));
        let mut holders: HashMap<String, Arc<Skill>> = HashMap::new();
        skills.retain(|skill| {
            let Some(holder) = holders.get(&skill.name) else {
                holders.insert(skill.name.clone(), Arc::clone(skill));
                return true;
            };
            let shadowed = (skill.name.clone(), skill.below.clone());
            if !earlier.is_some_and(|earlier| earlier.shadowed.contains(&shadowed)) {
                let (package, other) = (root_path.join(&skill.below), root_path.join(&holder.below));
                tracing::warn!(name = skill.name, ?package, ?other, "skill left out: another has its name");
            }
            self.shadowed.insert(shadowed);
            false
        });
        // Stable: those of one moment stay in the order of their claims.
        skills.sort_by(|a, b| b.updated_at.cmp(&a.updated_at));
        self.skills = skills;
    }

    /// The packages below one directory of the root; none if it has too much in it.
    fn search_place(
        &mut self,
        root: &Dir,
        root_path: &Path,
        place: PathBuf,
        earlier: Option<&Self>,
    ) -> Vec<Found> {
        let budget =
            Budget { directories: PLACE_DIRECTORIES, entries: PLACE_ENTRIES, packages: PLACE_PACKAGES };
        // Those of a place that is too large as well: it is not, once one of these has changed enough.
        let found = search(root, &place, LIST_DEPTH - 1, budget, |below, dir| {
            if let Ok(stat) = dir.own_stat() {
                self.directories.push((below.to_owned(), Stamp::from(&stat)));
            }
        });
        match found {
            Ok(found) => found,
            Err(Miss::TooLong) => {
                if !earlier.is_some_and(|earlier| earlier.oversized.contains(&place)) {
                    tracing::warn!(
                        directory = ?root_path.join(&place),
                        directories = PLACE_DIRECTORIES,
                        entries = PLACE_ENTRIES,
                        packages = PLACE_PACKAGES,
                        "a directory of skills has too much in it and is left out"
                    );
                }
                self.oversized.push(place);
                Vec::new()
            }
            // Gone meanwhile, or not for us to see.
            Err(_) => Vec::new(),
        }
    }

    /// Whether a directory of the root is left out as a whole.
    pub(crate) fn is_oversized(&self, place: &str) -> bool {
        self.oversized.iter().any(|known| known == Path::new(place))
    }

    pub(crate) fn skills(&self) -> &[Arc<Skill>] {
        &self.skills
    }

    /// Whether nothing has changed since.
    pub(crate) fn holds(&self, root: &Dir) -> bool {
        self.directories.iter().all(|(below, stamp)| {
            has_aged(*stamp, self.taken)
                && root.stat(below, Links::Refuse).is_ok_and(|stat| Stamp::from(&stat) == *stamp)
        }) && self.packages.iter().all(|package| {
            has_aged(package.stamp, self.taken)
                && root
                    .dir(&package.below, Links::Refuse)
                    .and_then(|dir| dir.stat(Path::new(package.entry), Links::Inside))
                    .is_ok_and(|stat| Stamp::from(&stat) == package.stamp)
        })
    }
}

/// The least has the better claim to a name: the directory of the root that is called so, then the first by path.
fn claim(skill: &Skill) -> (bool, &Path) {
    (skill.below != skill.name, Path::new(&skill.below))
}

/// Whether a change right after the look would have shown.
fn has_aged(stamp: Stamp, taken: SystemTime) -> bool {
    let (seconds, nanoseconds) = stamp.changed;
    let Ok(seconds) = u64::try_from(seconds) else { return true };
    let changed = UNIX_EPOCH + Duration::new(seconds, u32::try_from(nanoseconds).unwrap_or(0));
    changed + TICK < taken
}
