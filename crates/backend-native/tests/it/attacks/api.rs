//! Attacks that wait for the runtime's own hand: a file operation, a terminal, a working directory.

use std::fs;
use std::time::Duration;

use sandcrate_backend::conformance::Check;
use sandcrate_backend::{ExecRequest, ExitStatus, FileRequest, Mount, MountAccess, PtySize, RootAccess};

use super::stage::{AttackBox, Stage, ensure};
use super::{Special, specials};

pub(super) fn all() -> Vec<Special> {
    specials![
        fs_25_a_file_operation_follows_no_link_out_of_the_box,
        fs_25_a_file_operation_on_a_shared_directory_follows_no_link_out_of_it,
        fs_27_a_replaced_terminal_is_not_opened,
        writable_root_fs_27_a_replaced_terminal_is_not_opened,
        fs_29_a_working_directory_leads_nowhere_else,
        writable_root_fs_29_a_working_directory_leads_nowhere_else,
    ]
}

const SETTING: &str = "/proc/sys/kernel/core_pattern";

/// Links that lead to a setting of the kernel and, in several forms, to the canary.
async fn lay_links(stage: &Stage, session: &AttackBox) -> Result<Vec<String>, String> {
    let canary = stage.host.canary.display().to_string();
    let parent = stage.host.scratch.display().to_string();
    let links = [
        ("setting", SETTING.to_owned()),
        ("self-root", format!("/proc/self/root{SETTING}")),
        ("canary", canary.clone()),
        ("climb", format!("{}{canary}", "../".repeat(20))),
        ("through-root", format!("/proc/self/root{canary}")),
        ("through-init", format!("/proc/1/root{canary}")),
        ("through-cwd", format!("/proc/1/cwd/{canary}")),
        ("directory", parent),
    ];
    for (name, target) in &links {
        session.text(&format!("ln -sfn '{target}' /workspace/{name}")).await?;
    }
    let mut paths: Vec<String> = links.iter().map(|(name, _)| format!("/workspace/{name}")).collect();
    paths.push("/workspace/directory/canary".to_owned());
    paths.extend(["/workspace/../proc/sys/kernel/core_pattern".to_owned(), SETTING.to_owned()]);
    Ok(paths)
}

/// Writes, reads, renames and removes through every path; the host must not feel it.
async fn work_through(stage: &Stage, session: &AttackBox, paths: &[String]) -> Check {
    let setting = || fs::read(SETTING).map_err(|error| format!("{SETTING}: {error}"));
    let before = setting()?;
    for path in paths {
        let written = session.write(path, b"|/tmp/owned\n").await;
        let to_setting =
            path.contains("setting") || path.contains("self-root") || path.ends_with("core_pattern");
        ensure!(!to_setting || written.is_err(), "writing {path} succeeded");
        let _ = session.file(FileRequest::Read { path: path.clone(), offset: 0, limit: 4096 }).await;
        stage.host.is_untouched()?;
    }
    for path in paths {
        let _ = session.file(FileRequest::Rename { from: path.clone(), to: format!("{path}-renamed") }).await;
        let _ = session.file(FileRequest::Remove { path: path.clone() }).await;
        stage.host.is_untouched()?;
    }
    ensure!(setting()? == before, "{SETTING} changed");
    ensure!(stage.host.socket_file.exists(), "a file beside the canary is gone");
    Ok(())
}

async fn fs_25_a_file_operation_follows_no_link_out_of_the_box(stage: &Stage) -> Check {
    let _quiet = stage.quiet.read().await;
    let session = stage.open(RootAccess::ReadOnly).await?;
    let paths = lay_links(stage, &session).await?;
    work_through(stage, &session, &paths).await?;
    session.stop().await
}

async fn fs_25_a_file_operation_on_a_shared_directory_follows_no_link_out_of_it(stage: &Stage) -> Check {
    let _quiet = stage.quiet.read().await;
    let source = stage.host.directory("links-")?;
    let mut spec = stage.spec().await?;
    spec.mounts.push(Mount::new(source, "/workspace", MountAccess::ReadWrite));
    let session = stage.open_spec(spec).await?;
    let paths = lay_links(stage, &session).await?;
    work_through(stage, &session, &paths).await?;
    session.stop().await
}

async fn fs_27_a_replaced_terminal_is_not_opened(stage: &Stage) -> Check {
    replace_terminal(stage, RootAccess::ReadOnly).await
}

async fn writable_root_fs_27_a_replaced_terminal_is_not_opened(stage: &Stage) -> Check {
    replace_terminal(stage, RootAccess::Writable).await
}

/// CVE-2025-52565: whatever the box made of its terminals, the next one is a terminal of the box's own.
async fn replace_terminal(stage: &Stage, root: RootAccess) -> Check {
    const REPLACE: &str = "
        touch /workspace/fake
        for node in /dev/pts/0 /dev/pts/ptmx /dev/ptmx /dev/console /dev/tty /dev/null; do
            rm -f $node; ln -sfn /proc/sys/kernel/core_pattern $node; ln -sfn /workspace/fake $node
            mv /workspace/fake $node; touch /workspace/fake
        done
        mv /dev/pts /dev/pts-old && mkdir /dev/pts; rmdir /dev/pts; ln -sfn /workspace /dev/pts; ln -sfn /workspace /dev
        true";
    let _quiet = stage.quiet.read().await;
    let before = fs::read(SETTING).map_err(|error| error.to_string())?;
    let session = stage.open(root).await?;
    for _ in 0..2 {
        session.run(ExecRequest::shell(REPLACE).timeout(Duration::from_secs(20))).await?;
        let look = "t=$(tty) && echo \"$t $(stat -Lc '%F %t' $t)\" && stat -Lc '%F %t:%T' /dev/null";
        let request =
            ExecRequest::shell(look).pty(PtySize { rows: 24, cols: 80 }).timeout(Duration::from_secs(20));
        let seen = session.run(request).await?;
        let text = String::from_utf8_lossy(&seen.stdout).replace("\r\n", "\n");
        // 0x88 is the major number of pseudo terminals, 1:3 the null device.
        let terminal = text.starts_with("/dev/pts/") && text.contains("character special file 88\n");
        let null = text.ends_with("character special file 1:3\n");
        ensure!(
            seen.exit.status == ExitStatus::Code(0) && terminal && null,
            "the terminal is {text:?}, {:?}",
            seen.exit
        );
    }
    ensure!(fs::read(SETTING).map_err(|error| error.to_string())? == before, "{SETTING} changed");
    stage.host.is_untouched()?;
    session.stop().await
}

async fn fs_29_a_working_directory_leads_nowhere_else(stage: &Stage) -> Check {
    wander(stage, RootAccess::ReadOnly).await
}

async fn writable_root_fs_29_a_working_directory_leads_nowhere_else(stage: &Stage) -> Check {
    wander(stage, RootAccess::Writable).await
}

/// CVE-2024-21626: a refused directory is as good as one inside the box.
async fn wander(stage: &Stage, root: RootAccess) -> Check {
    let _quiet = stage.quiet.read().await;
    let canary = stage.host.canary.display().to_string();
    let session = stage.open(root).await?;
    let mut places: Vec<String> = [
        "/proc/self/fd/7/../../..",
        "/proc/self/cwd/..",
        "/proc/1/cwd",
        "/proc/1/root",
        "/proc/self/root",
        "/workspace/../../..",
    ]
    .map(str::to_owned)
    .to_vec();
    places.extend((0..32).flat_map(|fd| [format!("/proc/self/fd/{fd}"), format!("/proc/1/fd/{fd}")]));
    session.text("ln -sfn /proc/1/root /workspace/init; ln -sfn /proc/self/fd/7 /workspace/seven; ln -sfn /proc/self/fd /workspace/all").await?;
    places.extend(
        ["/workspace/init", "/workspace/seven", "/workspace/all/5", "/workspace/all/6/.."].map(str::to_owned),
    );
    let climb = "../".repeat(20);
    let look = format!(
        "for p in .{canary} {climb}{canary} /proc/self/cwd/{climb}{canary}; do [ -e \"$p\" ] && echo \"out by $p\"; done; true"
    );
    for place in places {
        // Refused is well; a directory of the box is, too.
        if let Ok(seen) =
            session.outcome(ExecRequest::shell(&look).cwd(&place).timeout(Duration::from_secs(20))).await
        {
            let text = String::from_utf8_lossy(&seen.stdout);
            ensure!(text.is_empty(), "started in {place}: {text}");
        }
        let listed = session.file(FileRequest::List { path: place.clone() }).await;
        ensure!(!format!("{listed:?}").contains("\"canary\""), "listing {place} shows the canary");
    }
    stage.host.is_untouched()?;
    session.is_usable().await?;
    session.stop().await
}
