//! The cases: what kind of box, how many, and what is done to them.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use sandcrate_backend::conformance::Check;
use sandcrate_backend::{
    Backend, ExecRequest, ExitStatus, FileReply, FileRequest, Mount, MountAccess, SessionSpec,
};
use sandcrate_backend_native::{NativeBackend, NativeConfig};

use super::census::{REST, instance_cgroups, launcher};
use super::ground::{Ground, POOL, fresh_spec, hard_quota, live_and_die, mounted, plain, writable_root};
use crate::attacks::stage::{chain, ensure, eventually};
use crate::host_state;

pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) needs_writable_root: bool,
    run: for<'a> fn(&'a Ground) -> Pin<Box<dyn Future<Output = Check> + 'a>>,
}

pub(super) const ALL: &[Case] = &[
    Case {
        name: "two_thousand_boxes_leave_nothing",
        needs_writable_root: false,
        run: |ground| Box::pin(two_thousand(ground)),
    },
    Case {
        name: "boxes_with_a_hard_quota_leave_nothing",
        needs_writable_root: false,
        run: |ground| Box::pin(fifty(ground, hard_quota)),
    },
    Case {
        name: "boxes_with_mounts_leave_nothing",
        needs_writable_root: false,
        run: |ground| Box::pin(fifty(ground, mounted)),
    },
    Case {
        name: "boxes_with_a_writable_root_leave_nothing",
        needs_writable_root: true,
        run: |ground| Box::pin(fifty(ground, writable_root)),
    },
    Case {
        name: "cancelled_starts_leave_nothing",
        needs_writable_root: false,
        run: |ground| Box::pin(cancelled_starts(ground)),
    },
    Case {
        name: "refused_starts_leave_nothing",
        needs_writable_root: false,
        run: |ground| Box::pin(refused_starts(ground)),
    },
    Case {
        name: "abandoned_commands_leave_nothing",
        needs_writable_root: false,
        run: |ground| Box::pin(abandoned_commands(ground)),
    },
    Case {
        name: "idle_boxes_keep_nothing_ready",
        needs_writable_root: false,
        run: |ground| Box::pin(idle_boxes(ground)),
    },
    Case {
        name: "files_made_ahead_are_bounded_and_nobody_has_seen_them",
        needs_writable_root: false,
        run: |ground| Box::pin(files_made_ahead(ground)),
    },
    Case {
        name: "commands_leave_nothing_in_their_init",
        needs_writable_root: false,
        run: |ground| Box::pin(many_commands(ground)),
    },
    Case {
        name: "a_killed_launcher_takes_its_boxes_and_another_follows",
        needs_writable_root: false,
        run: |ground| Box::pin(killed_launcher(ground)),
    },
];

/// Runs a case to the end of its backend.
pub(super) fn run(case: &Case, scratch: &Path) -> Check {
    let runtime = tokio::runtime::Runtime::new().map_err(|error| error.to_string())?;
    let outcome = runtime.block_on(async {
        let config =
            NativeConfig { state_dir: scratch.join("state"), pool: POOL, ..NativeConfig::for_this_user() };
        let backend = NativeBackend::open(config).await.map_err(|error| chain(&error))?;
        let ground = Ground { backend: Arc::new(backend), scratch: scratch.to_owned() };
        let outcome = (case.run)(&ground).await;
        let instances = host_state::instances(&scratch.join("state"))?;
        ground.backend.shutdown().await;
        drop(ground);
        outcome?;
        let gone = || async { Ok(host_state::children(std::process::id())?.is_empty().then_some(())) };
        eventually("the launcher is gone with its backend", gone).await?;
        let names = instances.iter().filter_map(|path| path.file_name()?.to_str());
        let cgroups: Vec<_> = names.flat_map(host_state::cgroups_of).collect();
        ensure!(cgroups.is_empty(), "cgroups are left after the backend: {cgroups:?}");
        Ok(())
    });
    runtime.shutdown_timeout(Duration::from_secs(5));
    outcome
}

async fn two_thousand(ground: &Ground) -> Check {
    // Long enough for allocators, thread pools and caches to have what they will ever need.
    ground.boxes(300, plain).await?;
    let before = ground.settled().await?;
    ground.boxes(2000, plain).await?;
    ground.back_to(&before).await
}

async fn fifty(ground: &Ground, furnish: fn(&Ground, &mut SessionSpec) -> Check) -> Check {
    ground.boxes(12, furnish).await?;
    let before = ground.settled().await?;
    ground.boxes(50, furnish).await?;
    ground.back_to(&before).await
}

/// Directories are made ahead for as many boxes as came in a row, up to the pool's size. Each is one session's alone,
/// and those that another kind of box wanted go.
async fn files_made_ahead(ground: &Ground) -> Check {
    for _ in 0..3 {
        crowd(ground, 2 * POOL, plain).await?;
        spares_become(ground, POOL).await?;
        a_spare_is_taken(ground).await?;
    }
    if rustix::process::geteuid().is_root() {
        crowd(ground, 1, writable_root).await?;
        spares_become(ground, 1).await?;
        crowd(ground, POOL, plain).await?;
        spares_become(ground, POOL).await?;
    }
    Ok(())
}

/// Boxes that are wanted at the same moment, each of which must find an empty workspace that it can write to.
async fn crowd(ground: &Ground, count: usize, furnish: fn(&Ground, &mut SessionSpec) -> Check) -> Check {
    let mut starts = tokio::task::JoinSet::new();
    for _ in 0..count {
        let mut spec = fresh_spec()?;
        furnish(ground, &mut spec)?;
        let backend = Arc::clone(&ground.backend);
        starts.spawn(async move {
            let id = spec.id.clone();
            backend.start(spec).await.map(|_| id)
        });
    }
    let mut ids = Vec::new();
    while let Some(started) = starts.join_next().await {
        ids.push(started.map_err(|error| error.to_string())?.map_err(|error| chain(&error))?);
    }
    for id in &ids {
        let path = || "/workspace".to_owned();
        let found = ground.backend.files(id, FileRequest::List { path: path() }).await;
        let empty = matches!(&found, Ok(FileReply::Entries(entries)) if entries.is_empty());
        ensure!(empty, "a new workspace has something in it: {found:?}");
        let mark = FileRequest::Write { path: path() + "/mark", data: id.as_str().to_owned().into() };
        ground.backend.files(id, mark).await.map_err(|error| chain(&error))?;
    }
    for id in &ids {
        ground.backend.stop(id).await.map_err(|error| chain(&error))?;
    }
    Ok(())
}

/// Waits until there are so many for good.
async fn spares_become(ground: &Ground, wanted: usize) -> Check {
    let settled = || async {
        let earlier = spares(ground)?.len();
        tokio::time::sleep(REST).await;
        Ok(([earlier, spares(ground)?.len()] == [wanted; 2]).then_some(()))
    };
    eventually(&format!("directories for {wanted} boxes are made ahead"), settled).await
}

/// The inodes of the directories made ahead.
fn spares(ground: &Ground) -> Result<Vec<Option<u64>>, String> {
    let instances = host_state::instances(&ground.scratch.join("state"))?;
    let launchers = instances.iter().flat_map(|instance| host_state::directories_in(instance));
    let spares = launchers.flat_map(|launcher| host_state::directories_in(&launcher.join("spare")));
    Ok(spares.map(|path| inode(&path)).collect())
}

/// A session gets one of the directories that are there.
async fn a_spare_is_taken(ground: &Ground) -> Check {
    let ahead = spares(ground)?;
    let spec = fresh_spec()?;
    let id = spec.id.clone();
    ground.backend.start(spec).await.map_err(|error| chain(&error))?;
    let storages = host_state::storage_directories(&ground.scratch.join("state"))?;
    let files: Vec<_> = storages.iter().map(|storage| inode(&storage.join("files"))).collect();
    ground.backend.stop(&id).await.map_err(|error| chain(&error))?;
    let [taken] = files[..] else { return Err(format!("one session has {} storages", files.len())) };
    ensure!(taken.is_some() && ahead.contains(&taken), "{taken:?} is none of those made ahead, {ahead:?}");
    Ok(())
}

/// A start that is dropped at any moment leaves no box behind.
async fn cancelled_starts(ground: &Ground) -> Check {
    ground.boxes(50, plain).await?;
    let before = ground.settled().await?;
    for round in 0..300_u64 {
        let mut spec = fresh_spec()?;
        if round % 5 == 0 {
            hard_quota(ground, &mut spec)?;
        }
        let id = spec.id.clone();
        let patience = Duration::from_micros(round * 37 % 6000);
        if tokio::time::timeout(patience, ground.backend.start(spec)).await.is_ok() {
            ground.backend.stop(&id).await.map_err(|error| chain(&error))?;
        }
    }
    // The last cancelled start may have taken a prepared box; the next start has it replaced.
    ground.boxes(4, plain).await?;
    ground.back_to(&before).await
}

/// Refused after different amounts of work.
async fn refused_starts(ground: &Ground) -> Check {
    ground.boxes(50, plain).await?;
    let before = ground.settled().await?;
    for round in 0..150 {
        let mut spec = fresh_spec()?;
        match round % 3 {
            0 => spec.mounts.push(Mount::new("/etc", "/mnt/etc", MountAccess::ReadOnly)),
            1 => spec.limits.memory_bytes = 1 << 20,
            // The storage's own directory cannot hold a mount of a file below a file.
            _ => {
                let file = ground.scratch.join("file");
                std::fs::write(&file, "x").map_err(|error| error.to_string())?;
                for target in ["/workspace/file", "/workspace/file/below"] {
                    spec.mounts.push(Mount::new(&file, target, MountAccess::ReadWrite));
                }
            }
        }
        let id = spec.id.clone();
        ensure!(
            ground.backend.start(spec).await.is_err(),
            "a start that must be refused succeeded: round {round}"
        );
        ensure!(!ground.backend.is_alive(&id).await, "a refused session lives");
    }
    ground.boxes(4, plain).await?;
    ground.back_to(&before).await
}

/// What an idle box holds is paid for by thousands: no cgroup for a command that nobody asked for, and nothing of it
/// in the launcher, which every later box would inherit.
async fn idle_boxes(ground: &Ground) -> Check {
    const BOXES: usize = 20;
    ground.settled().await?;
    // An ordinary user's launcher cannot be looked into.
    let descriptors = || launcher().map(|pid| host_state::descriptors(pid).unwrap_or(0));
    let before = descriptors()?;
    let mut sessions = Vec::new();
    for _ in 0..BOXES {
        let spec = fresh_spec()?;
        sessions.push(spec.id.clone());
        ground.backend.start(spec).await.map_err(|error| chain(&error))?;
    }
    for round in ["before a command", "after one"] {
        let rested = || async {
            let cgroups = instance_cgroups(&ground.scratch)?;
            let of_command = |path: &&PathBuf| path.parent().is_some_and(|parent| parent.ends_with("run"));
            Ok((!cgroups.iter().any(|path| of_command(&path))).then_some(()))
        };
        eventually("idle boxes have no command cgroups", rested)
            .await
            .map_err(|error| format!("{error}, {round}"))?;
        for session in &sessions {
            let request = ExecRequest::argv(["true"]);
            let exec = ground.backend.exec(session, request).await.map_err(|error| chain(&error))?;
            let result = exec.collect(4096).await.map_err(|error| chain(&error))?;
            ensure!(result.exit.status == ExitStatus::Code(0), "true ended with {:?}", result.exit);
        }
    }
    let after = descriptors()?;
    ensure!(after < before + BOXES / 2, "the launcher had {before} descriptors and has {after}");
    for session in &sessions {
        ground.backend.stop(session).await.map_err(|error| chain(&error))?;
    }
    Ok(())
}

/// What a command is started with is init's until it is a program, and must not stay there.
async fn many_commands(ground: &Ground) -> Check {
    const COMMANDS: usize = 300;
    let spec = fresh_spec()?;
    let id = spec.id.clone();
    ground.backend.start(spec).await.map_err(|error| chain(&error))?;
    // Of the largest init: those of the pool have done nothing yet.
    let resident = || -> Result<u64, String> {
        let inits = host_state::children(launcher()?)?;
        let sizes = inits.into_iter().filter_map(|init| host_state::resident_bytes(init).ok());
        sizes.max().ok_or_else(|| "there is no init".to_owned())
    };
    let run = async |program: &str| {
        let request = ExecRequest::argv([program, "x"]).env("LONG", "x".repeat(64 << 10));
        let execution = ground.backend.exec(&id, request).await.map_err(|error| chain(&error))?;
        execution.collect(4096).await.map_err(|error| chain(&error))
    };
    let both = async || -> Check {
        let result = run("true").await?;
        ensure!(result.exit.status == ExitStatus::Code(0), "true ended with {:?}", result.exit);
        let missing = run("no-such-program").await;
        ensure!(missing.is_err(), "a program that is not there ended with {missing:?}");
        Ok(())
    };
    for _ in 0..10 {
        both().await?;
    }
    let earlier = resident()?;
    for _ in 0..COMMANDS {
        both().await?;
    }
    let later = resident()?;
    ensure!(
        later < earlier + (1 << 20),
        "init had {earlier} bytes and has {later} after {COMMANDS} commands"
    );
    ground.backend.stop(&id).await.map_err(|error| chain(&error))
}

/// Commands whose caller goes away, and sessions that are stopped under their commands.
async fn abandoned_commands(ground: &Ground) -> Check {
    ground.boxes(50, plain).await?;
    let before = ground.settled().await?;
    for round in 0..60_u64 {
        let spec = fresh_spec()?;
        let id = spec.id.clone();
        ground.backend.start(spec).await.map_err(|error| chain(&error))?;
        let script = "sleep 60 & (setsid sleep 60 &); yes | head -c 3000000; sleep 60";
        let mut kept = Vec::new();
        for _ in 0..3 {
            let request = ExecRequest::shell(script);
            let running = tokio::time::timeout(
                Duration::from_micros(round * 211 % 9000),
                ground.backend.exec(&id, request),
            )
            .await;
            kept.extend(running.into_iter().filter_map(Result::ok));
        }
        // Some are dropped before the stop, some after.
        kept.truncate(kept.len() / 2 + 1);
        ground.backend.stop(&id).await.map_err(|error| chain(&error))?;
        drop(kept);
    }
    ground.back_to(&before).await
}

async fn killed_launcher(ground: &Ground) -> Check {
    ground.boxes(20, plain).await?;
    let before = ground.settled().await?;
    let marker = format!("300.{}", std::process::id());
    let mut sessions = Vec::new();
    for _ in 0..3 {
        let spec = fresh_spec()?;
        sessions.push(spec.id.clone());
        ground.backend.start(spec).await.map_err(|error| chain(&error))?;
    }
    let mut commands = Vec::new();
    for id in &sessions {
        let request = ExecRequest::shell(format!("setsid sleep {marker} & exec sleep {marker}"));
        commands.push(ground.backend.exec(id, request).await.map_err(|error| chain(&error))?);
    }
    let up = || async { Ok((host_state::processes_with(&marker)?.len() >= 6).then_some(())) };
    eventually("the commands run", up).await?;
    // By inode: a successor may well use the same names.
    let old: Vec<_> =
        instance_cgroups(&ground.scratch)?.into_iter().map(|path| (inode(&path), path)).collect();
    let spares_of_old = spares(ground)?;
    ensure!(!spares_of_old.is_empty(), "nothing is made ahead, so it is not seen to go");
    let victim = launcher()?;
    kill(victim)?;
    let dead = || async { Ok(host_state::processes_with(&marker)?.is_empty().then_some(())) };
    eventually("the boxes died with the launcher", dead).await?;
    for id in &sessions {
        let seen = || async { Ok((!ground.backend.is_alive(id).await).then_some(())) };
        eventually("the session is known to be dead", seen).await?;
    }
    for command in commands {
        // Ends one way or the other; its caller must not wait for ever.
        let ended = tokio::time::timeout(Duration::from_secs(10), command.collect(4096)).await;
        ensure!(ended.is_ok(), "a command of a dead box does not end");
    }
    live_and_die(&ground.backend, fresh_spec()?)
        .await
        .map_err(|error| format!("the next session: {error}"))?;
    ensure!(launcher()? != victim, "the launcher is the killed one");
    for id in &sessions {
        ground
            .backend
            .stop(id)
            .await
            .map_err(|error| format!("stopping a dead session: {}", chain(&error)))?;
    }
    let left = || old.iter().filter(|(was, path)| was.is_some() && inode(path) == *was).collect::<Vec<_>>();
    let swept = || async { Ok(left().is_empty().then_some(())) };
    let swept = eventually("the cgroups of the killed launcher are swept", swept).await;
    swept.map_err(|error| format!("{error}: {:?}", left()))?;
    let left = || async {
        let spares = spares(ground)?;
        Ok((!spares.iter().any(|inode| spares_of_old.contains(inode))).then_some(()))
    };
    eventually("what the killed launcher made ahead is removed", left).await?;
    ground.back_to(&before).await
}

fn inode(path: &Path) -> Option<u64> {
    std::fs::metadata(path).map(|facts| facts.ino()).ok()
}

/// SIGKILL to a process that this one started.
fn kill(pid: u32) -> Check {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw).ok_or("no process id")?;
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).map_err(|error| error.to_string())
}
