//! The handle for async callers: stores by scope, uploads on their way in, and threads for what blocks.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::TaskTracker;

use crate::name::is_private;
use crate::uploads::{Chunk, Uploads};
use crate::{Archive, Limits, NewSkill, Scope, Skill, SkillError, Store};

/// Threads at work at once. A call lasts milliseconds; more of them would only wait for the same disk and lock.
const THREADS: usize = 4;
/// Archives that callers hold in memory at once, each up to the upload limit or a package's.
const ARCHIVES: usize = 4;
/// For work that is under way at the end: as long as a change waits for its lock.
const CLOSING: Duration = Duration::from_secs(10);
/// Stores whose index is kept. One more than fits makes all of them search anew, which is a moment's work.
const KEPT_STORES: usize = 256;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SkillsConfig {
    pub root: PathBuf,
    /// Directories outside the root that packages may be taken from.
    pub import_roots: Vec<PathBuf>,
    pub limits: Limits,
}

/// All skills of a runtime. Clones are the same.
#[derive(Debug, Clone)]
pub struct Skills {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    limits: Limits,
    places: Mutex<Places>,
    uploads: Uploads,
    threads: Arc<Semaphore>,
    /// Whole archives in memory.
    archives: Arc<Semaphore>,
    /// Owns what is under way, callers that left included.
    tasks: TaskTracker,
}

#[derive(Debug)]
struct Places {
    root: PathBuf,
    import_roots: Vec<PathBuf>,
    stores: HashMap<Scope, Arc<Store>>,
}

impl Skills {
    pub fn new(config: SkillsConfig) -> Self {
        let places = Places { root: config.root, import_roots: config.import_roots, stores: HashMap::new() };
        Self {
            inner: Arc::new(Inner {
                limits: config.limits,
                places: Mutex::new(places),
                uploads: Uploads::default(),
                threads: Arc::new(Semaphore::new(THREADS)),
                archives: Arc::new(Semaphore::new(ARCHIVES)),
                tasks: TaskTracker::new(),
            }),
        }
    }

    pub fn limits(&self) -> &Limits {
        &self.inner.limits
    }

    pub fn root(&self) -> PathBuf {
        self.places().root.clone()
    }

    /// Another root, and other directories to take packages from; what is under way ends where it began.
    pub fn place(&self, root: PathBuf, import_roots: Vec<PathBuf>) {
        let mut places = self.places();
        if places.root != root {
            places.stores.clear();
            places.root = root;
        }
        places.import_roots = import_roots;
    }

    /// The real root of a scope's or everybody's packages, when a real path lies in one of them: such a path may be
    /// mounted.
    pub fn root_of(&self, scope: &Scope, resolved: &Path) -> Option<PathBuf> {
        let root = self.root().canonicalize().ok()?;
        [scope.directory(&root).ok()?, root].into_iter().find(|root| {
            let below = resolved.strip_prefix(root);
            below.is_ok_and(|below| !below.as_os_str().is_empty() && !is_private(below))
        })
    }

    /// Whether a real path lies in the root but in no package that the scope may use: it may never be mounted.
    pub fn keeps(&self, scope: &Scope, resolved: &Path) -> bool {
        let root = self.root().canonicalize();
        let private = root.is_ok_and(|root| resolved.strip_prefix(&root).is_ok_and(is_private));
        private && self.root_of(scope, resolved).is_none()
    }

    /// Works with a store on a thread that may block. Goes on when the caller leaves.
    pub async fn with<T: Send + 'static>(
        &self,
        scope: &Scope,
        work: impl FnOnce(&Store) -> Result<T, SkillError> + Send + 'static,
    ) -> Result<T, SkillError> {
        let store = self.store(scope)?;
        self.run(move || work(&store)).await
    }

    pub async fn list(&self, scope: &Scope) -> Result<Vec<Skill>, SkillError> {
        self.with(scope, Store::list).await
    }

    /// A skill that must be there.
    pub async fn get(&self, scope: &Scope, name: &str) -> Result<Skill, SkillError> {
        let name = name.to_owned();
        self.with(scope, move |store| store.get(&name)?.ok_or(SkillError::NotFound { name })).await
    }

    pub async fn create(&self, scope: &Scope, new: NewSkill) -> Result<Skill, SkillError> {
        let import_roots = self.places().import_roots.clone();
        self.with(scope, move |store| store.create(&new, &import_roots)).await
    }

    pub async fn scan(&self, scope: &Scope, path: String) -> Result<Skill, SkillError> {
        let import_roots = self.places().import_roots.clone();
        self.with(scope, move |store| store.scan(&path, &import_roots)).await
    }

    /// Takes a piece of an upload, which may have `most_bytes` and not more than the operator's limit. Those of two
    /// scopes do not meet.
    pub fn upload(&self, scope: &Scope, chunk: Chunk, most_bytes: usize) -> Result<(), SkillError> {
        self.inner.uploads.add(scope, chunk, most_bytes, &self.inner.limits, Instant::now())
    }

    /// An upload that is complete; it is gone from here, whatever becomes of it.
    pub fn uploaded(&self, scope: &Scope, file_key: &str) -> Result<Vec<u8>, SkillError> {
        self.inner.uploads.take(scope, file_key)
    }

    /// Waits until one more archive may be held in memory.
    pub async fn room(&self) -> Result<OwnedSemaphorePermit, SkillError> {
        let room = Arc::clone(&self.inner.archives).acquire_owned().await;
        room.map_err(|error| SkillError::io("work on skills", std::io::Error::other(error)))
    }

    /// Waits for what is under way, but not for ever: a change that is cut off leaves nothing that counts.
    pub async fn close(&self) {
        self.close_within(CLOSING).await;
    }

    async fn close_within(&self, patience: Duration) {
        self.inner.tasks.close();
        if tokio::time::timeout(patience, self.inner.tasks.wait()).await.is_err() {
            let left = self.inner.tasks.len();
            tracing::warn!(left, "work on skills has not ended in time and is left");
        }
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.inner.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn store(&self, scope: &Scope) -> Result<Arc<Store>, SkillError> {
        let mut places = self.places();
        if let Some(store) = places.stores.get(scope) {
            return Ok(Arc::clone(store));
        }
        let root = scope.directory(&places.root)?;
        let store = Arc::new(Store::scoped(root, places.root.clone(), self.inner.limits.clone()));
        if places.stores.len() >= KEPT_STORES {
            places.stores.clear();
        }
        places.stores.insert(scope.clone(), Arc::clone(&store));
        Ok(store)
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, SkillError> + Send + 'static,
    ) -> Result<T, SkillError> {
        let ended = |error: Box<dyn std::error::Error + Send + Sync>| {
            SkillError::io("work on skills", std::io::Error::other(error))
        };
        let thread =
            Arc::clone(&self.inner.threads).acquire_owned().await.map_err(|error| ended(error.into()))?;
        let working = self.inner.tasks.spawn_blocking(move || {
            let _thread = thread;
            work()
        });
        working.await.map_err(|error| ended(error.into()))?
    }
}

impl Archive {
    /// What LangBot's wire takes when nothing is said.
    pub const DEFAULT_FILENAME: &'static str = "skill.zip";
    pub const DEFAULT_SUFFIX: &'static str = "upload";
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// K10: the reference does all of this on the thread that serves everybody.
    #[tokio::test]
    async fn calls_wait_for_threads_of_their_own_and_are_finished_at_the_end() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().join("skills");
        let skills = Skills::new(SkillsConfig { root, ..SkillsConfig::default() });
        let (busy, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let here = std::thread::current().id();
        let calls = (0..16).map(|number| {
            let (skills, busy, most) = (skills.clone(), Arc::clone(&busy), Arc::clone(&most));
            async move {
                let work = move |store: &Store| {
                    assert_ne!(std::thread::current().id(), here, "on a thread of its own");
                    most.fetch_max(busy.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    let name = format!("s{number}");
                    let made = store.create(&NewSkill { name, ..NewSkill::default() }, &[]);
                    busy.fetch_sub(1, Ordering::SeqCst);
                    made
                };
                skills.with(&Scope::Shared, work).await
            }
        });
        // The first caller leaves at once; its skill is made all the same.
        let mut calls: Vec<_> = calls.map(Box::pin).collect();
        let mut left = calls.remove(0);
        let context = &mut std::task::Context::from_waker(std::task::Waker::noop());
        assert!(left.as_mut().poll(context).is_pending());
        drop(left);
        for call in calls {
            call.await.unwrap();
        }
        skills.close().await;
        assert!(most.load(Ordering::SeqCst) <= THREADS);
        assert_eq!(skills.list(&Scope::Shared).await.unwrap().len(), 16);
    }

    #[tokio::test]
    async fn the_end_does_not_wait_for_ever() {
        let place = tempfile::tempdir().unwrap();
        let skills = Skills::new(SkillsConfig { root: place.path().to_owned(), ..SkillsConfig::default() });
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let mut call = Box::pin(skills.with(&Scope::Shared, move |_| {
            let _ = ended.recv();
            Ok(())
        }));
        let context = &mut std::task::Context::from_waker(std::task::Waker::noop());
        assert!(call.as_mut().poll(context).is_pending());
        let closing = skills.close_within(Duration::from_millis(20));
        tokio::time::timeout(Duration::from_secs(5), closing).await.expect("the work is left");
        drop(end);
        call.await.unwrap();
    }

    #[tokio::test]
    async fn scopes_do_not_see_each_other() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().join("skills");
        let skills = Skills::new(SkillsConfig { root: root.clone(), ..SkillsConfig::default() });
        let (a, b) = (Scope::Tenant("a".to_owned()), Scope::Tenant("b".to_owned()));
        let new = || NewSkill { name: "one".to_owned(), ..NewSkill::default() };
        skills.create(&a, new()).await.unwrap();
        skills.create(&Scope::Shared, new()).await.unwrap();
        assert_eq!(skills.list(&b).await.unwrap(), []);
        assert_eq!(skills.list(&Scope::Shared).await.unwrap().len(), 1);
        assert!(root.join("tenants/a/one/SKILL.md").exists());
        let chunk = Chunk { file_key: "k".to_owned(), index: 0, amount: 1, bytes: vec![1] };
        skills.upload(&a, chunk, usize::MAX).unwrap();
        assert!(skills.uploaded(&b, "k").is_err());
        assert_eq!(skills.uploaded(&a, "k").unwrap(), [1]);
        // Not even by a root that holds all of them.
        skills.place(root.clone(), vec![place.path().to_owned()]);
        skills.create(&b, NewSkill { name: "two".to_owned(), ..NewSkill::default() }).await.unwrap();
        let path = |below: &str| root.join(below).to_str().unwrap().to_owned();
        for (scope, below) in [
            (&a, "one"),
            (&a, "tenants/b/two"),
            (&b, "tenants/a/one"),
            (&Scope::Shared, "tenants/a/one"),
            (&a, "tenants/a/.sandcrate"),
        ] {
            let refused = skills.scan(scope, path(below)).await.unwrap_err();
            assert!(matches!(refused, SkillError::OutsideRoots { .. }), "{below}: {refused}");
            let new = NewSkill { name: "x".to_owned(), package_root: path(below), ..NewSkill::default() };
            let refused = skills.create(scope, new).await.unwrap_err();
            assert!(matches!(refused, SkillError::OutsideRoots { .. }), "{below}: {refused}");
            let real = root.canonicalize().unwrap().join(below);
            assert_eq!(skills.keeps(scope, &real), below != "one");
            assert_eq!(skills.root_of(scope, &real).is_some(), below == "one");
        }
        let own = root.canonicalize().unwrap().join("tenants/a/one");
        assert!(!skills.keeps(&a, &own) && skills.root_of(&a, &own).is_some());
        assert_eq!(skills.scan(&a, path("tenants/a")).await.unwrap().name, "one");
        let everything = place.path().to_str().unwrap().to_owned();
        let new = NewSkill { name: "x".to_owned(), package_root: everything, ..NewSkill::default() };
        assert!(skills.create(&a, new).await.unwrap_err().to_string().contains("name the package itself"));
        skills.place(place.path().join("other"), Vec::new());
        assert_eq!(skills.list(&a).await.unwrap(), [], "another root has other skills");
    }
}
