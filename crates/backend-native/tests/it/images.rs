//! What becomes of an image's files when its last box ends.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use libtest_mimic::{Failed, Trial};
use sandcrate_backend::{Backend, ImageRemoval, SessionId, SessionSpec};
use sandcrate_backend_native::NativeBackend;
use tokio::runtime::Handle;

/// For files to go in the background.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) fn trials(backend: &Arc<NativeBackend>, scratch: &Path, runtime: &Handle) -> Vec<Trial> {
    let (backend, scratch, handle) = (Arc::clone(backend), scratch.to_owned(), runtime.clone());
    let run = move || handle.block_on(files_go_with_the_last_box(&*backend, &scratch)).map_err(Failed::from);
    vec![Trial::test("images::files_of_a_removed_image_go_with_its_last_box", run)]
}

fn roots(scratch: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(scratch.join("state/images/roots")).map_err(|error| error.to_string())?;
    Ok(entries.flatten().map(|entry| entry.path()).collect())
}

async fn files_go_with_the_last_box(backend: &dyn Backend, scratch: &Path) -> Result<(), String> {
    let (tree, archive) = (scratch.join("tree"), scratch.join("tree.tar"));
    fs::create_dir_all(tree.join("bin")).map_err(|error| error.to_string())?;
    let packed = Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(&tree).arg(".").status();
    if !packed.is_ok_and(|status| status.success()) {
        return Err("tar does not work".to_owned());
    }
    let said = |error: sandcrate_backend::BackendError| error.to_string();
    let archive = File::open(&archive).map_err(|error| error.to_string())?;
    backend.import_image("swept", archive).await.map_err(said)?;
    let mut spec = SessionSpec::new(SessionId::new("sweeps").map_err(|error| error.to_string())?);
    spec.image = Some("swept".to_owned());
    let id = spec.id.clone();
    backend.start(spec).await.map_err(said)?;
    backend.remove_image("swept", ImageRemoval::Force).await.map_err(said)?;
    if roots(scratch)?.len() != 1 {
        return Err(format!("a box has lost its image: {:?}", roots(scratch)?));
    }
    backend.stop(&id).await.map_err(said)?;
    let deadline = Instant::now() + PATIENCE;
    while !roots(scratch)?.is_empty() {
        if Instant::now() > deadline {
            return Err(format!("nobody uses them, and they are still there: {:?}", roots(scratch)?));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}
