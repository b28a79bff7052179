//! What an operator can set about the native backend.

use std::collections::BTreeMap;
use std::path::PathBuf;

use sandcrate_image::ImageStore;

/// Configuration of the native backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NativeConfig {
    /// Private files of sessions live below it; instances share it safely.
    pub state_dir: PathBuf,
    /// How many boxes are kept prepared; 0 prepares none.
    pub pool: usize,
    /// Whether one box is all that will be wanted: then nothing is made ahead for a next one.
    pub one_box: bool,
    /// An existing cgroup to put boxes below, instead of our own.
    pub cgroup_parent: Option<String>,
    /// The state directory that has the images, when it is another.
    pub image_state_dir: Option<PathBuf>,
    /// What sessions call an image, and the imported image that it is. A name that is not here may be that of an
    /// imported image itself.
    pub images: BTreeMap<String, String>,
    /// Refuse a session whose image is not imported, instead of making it of the host's root.
    pub require_image: bool,
    /// The program that is started as a launcher: any that calls [`crate::dispatch_role`] first. It is the
    /// network helper too.
    pub launcher: PathBuf,
}

impl NativeConfig {
    /// Overrides the state directory.
    pub const STATE_DIR_VARIABLE: &'static str = "SANDCRATE_STATE_DIR";

    /// The images of this machine.
    pub fn image_store(&self) -> ImageStore {
        ImageStore::of_state_dir(self.image_state_dir.as_ref().unwrap_or(&self.state_dir))
    }

    /// The defaults of the current user, with this very program as the launcher.
    pub fn for_this_user() -> Self {
        Self {
            state_dir: default_state_dir(),
            pool: 0,
            one_box: false,
            cgroup_parent: None,
            image_state_dir: None,
            images: BTreeMap::new(),
            require_image: false,
            launcher: PathBuf::from("/proc/self/exe"),
        }
    }
}

fn default_state_dir() -> PathBuf {
    if let Some(named) = std::env::var_os(NativeConfig::STATE_DIR_VARIABLE).filter(|value| !value.is_empty())
    {
        return PathBuf::from(named);
    }
    if rustix::process::geteuid().is_root() {
        return PathBuf::from("/var/lib/sandcrate");
    }
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    match (absolute("XDG_STATE_HOME"), absolute("HOME")) {
        (Some(state), _) => state.join("sandcrate"),
        (None, Some(home)) => home.join(".local/state/sandcrate"),
        (None, None) => {
            std::env::temp_dir().join(format!("sandcrate-{}", rustix::process::geteuid().as_raw()))
        }
    }
}
