//! What stays of a session whose box could not be made anew.

use std::sync::Arc;

use libtest_mimic::{Failed, Trial};
use sandcrate_backend::{
    Backend, DiskLimit, FileReply, FileRequest, Mount, MountAccess, SessionId, SessionSpec, Strictness,
};
use sandcrate_backend_native::NativeBackend;
use sandcrate_protocol::Control;
use tokio::runtime::Handle;

type Check = Result<(), String>;

pub(crate) fn trials(backend: &Arc<NativeBackend>, runtime: &Handle) -> Vec<Trial> {
    let with = |hard: bool| {
        let (backend, handle) = (Arc::clone(backend), runtime.clone());
        move || handle.block_on(files_outlive_a_restart_that_fails(&*backend, hard)).map_err(Failed::from)
    };
    let refused = {
        let (backend, handle) = (Arc::clone(backend), runtime.clone());
        move || handle.block_on(a_refused_restart_leaves_the_box_alone(&*backend)).map_err(Failed::from)
    };
    // As an ordinary user files with a quota are in memory, and go with the box.
    let in_memory = !rustix::process::geteuid().is_root();
    if in_memory {
        eprintln!("SKIP: restarts::files_with_a_quota_outlive_a_restart_that_fails: not root");
    }
    vec![
        Trial::test("restarts::files_outlive_a_restart_that_fails", with(false)),
        Trial::test("restarts::files_with_a_quota_outlive_a_restart_that_fails", with(true))
            .with_ignored_flag(in_memory),
        Trial::test("restarts::a_refused_restart_leaves_the_box_alone", refused),
    ]
}

fn spec(id: &str) -> Result<SessionSpec, String> {
    Ok(SessionSpec::new(SessionId::new(id).map_err(|error| error.to_string())?))
}

async fn write(backend: &dyn Backend, id: &SessionId) -> Check {
    let request = FileRequest::Write { path: "/workspace/mine".to_owned(), data: "private".into() };
    backend.files(id, request).await.map(drop).map_err(|error| format!("writing: {error}"))
}

async fn read(backend: &dyn Backend, id: &SessionId) -> Result<String, String> {
    let request = FileRequest::Read { path: "/workspace/mine".to_owned(), offset: 0, limit: 100 };
    match backend.files(id, request).await {
        Ok(FileReply::Data { data, .. }) => Ok(String::from_utf8_lossy(&data).into_owned()),
        other => Err(format!("reading: {other:?}")),
    }
}

/// Required is what no box has, which shows when the new one is all but done: the old one has gone by then.
async fn files_outlive_a_restart_that_fails(backend: &dyn Backend, hard: bool) -> Check {
    let mut good = spec(if hard { "outlives-hard" } else { "outlives" })?;
    if hard {
        good.limits.disk = DiskLimit::Hard(16 << 20);
    }
    let mut bad = good.clone();
    bad.network = sandcrate_backend::Network::Host;
    bad.strictness = Strictness::Require(vec![Control::Network]);
    let id = good.id.clone();
    let said = |error: sandcrate_backend::BackendError| error.to_string();
    backend.start(good.clone()).await.map_err(said)?;
    write(backend, &id).await?;
    for _ in 0..2 {
        if backend.restart(bad.clone()).await.is_ok() {
            return Err("a restart that cannot be done succeeded".to_owned());
        }
        if backend.is_alive(&id).await {
            return Err("the restart failed too early to show anything".to_owned());
        }
        // A start that fails keeps them as well.
        if backend.start(bad.clone()).await.is_ok() {
            return Err("a start that cannot be done succeeded".to_owned());
        }
        backend.start(good.clone()).await.map_err(said)?;
        let found = read(backend, &id).await?;
        if found != "private" {
            return Err(format!("the files are gone: {found:?}"));
        }
    }
    // Stopped while nothing but the files is there, and they go.
    if backend.restart(bad).await.is_ok() {
        return Err("a restart that cannot be done succeeded".to_owned());
    }
    backend.stop(&id).await.map_err(said)?;
    backend.start(good).await.map_err(said)?;
    if let Ok(found) = read(backend, &id).await {
        return Err(format!("files outlived their session: {found:?}"));
    }
    backend.stop(&id).await.map_err(said)
}

async fn a_refused_restart_leaves_the_box_alone(backend: &dyn Backend) -> Check {
    let good = spec("left-alone")?;
    let id = good.id.clone();
    let said = |error: sandcrate_backend::BackendError| error.to_string();
    backend.start(good.clone()).await.map_err(said)?;
    write(backend, &id).await?;
    let mut bad = good;
    bad.mounts.push(Mount::new("/nowhere/at/all", "/workspace/other", MountAccess::ReadOnly));
    if backend.restart(bad).await.is_ok() {
        return Err("a source that is not there was taken".to_owned());
    }
    if !backend.is_alive(&id).await || read(backend, &id).await? != "private" {
        return Err("the box is not what it was".to_owned());
    }
    backend.stop(&id).await.map_err(said)
}
