//! The life of a session, and what its record says.

use sandcrate_protocol::{Control, ErrorKind};

use super::Check;
use super::bench::{Bench, chain, fails};
use crate::{
    Capabilities, DiskLimit, ExecRequest, FileRequest, Mount, MountAccess, Network, PtySize, RootAccess,
    SessionId, SessionSpec, Strictness, SweepReport,
};

pub(super) fn cases() -> Vec<super::Case> {
    family!("session" {
        [] a_session_starts_is_alive_and_stops,
            a_second_start_of_a_live_id_is_a_conflict,
            of_two_starts_at_once_exactly_one_wins,
            an_unknown_session_is_not_found,
            a_stop_is_idempotent,
            a_stopped_session_is_not_found,
            an_id_can_be_used_again_after_its_stop,
            ids_of_any_text_are_fine_and_distinct,
            the_record_has_a_finding_for_every_control,
            a_required_control_that_does_not_hold_fails_the_start,
            what_the_capabilities_deny_is_unsupported,
            a_failed_start_leaves_no_session,
            a_cancelled_start_leaves_no_session,
            a_sweep_leaves_live_sessions_alone_and_a_second_finds_nothing,
            a_probe_succeeds;
    })
}

async fn a_session_starts_is_alive_and_stops(bench: &Bench) -> Check {
    let spec = bench.spec()?;
    let id = spec.id.clone();
    ensure!(!bench.backend.is_alive(&id).await, "a session that was never started is alive");
    let session = bench.start_spec(spec).await?;
    ensure_eq!(session.info.id, id, "the id of the started session");
    ensure_eq!(session.info.backend, bench.backend.name(), "the backend's name in the record");
    ensure!(bench.backend.is_alive(&id).await, "a started session is not alive");
    session.stop().await?;
    ensure!(!bench.backend.is_alive(&id).await, "a stopped session is alive");
    Ok(())
}

async fn a_second_start_of_a_live_id_is_a_conflict(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let again = bench.backend.start(SessionSpec::new(session.info.id.clone())).await;
    fails("a second start", again, ErrorKind::SessionConflict, session.info.id.as_str())?;
    ensure_eq!(session.text("echo still").await?, "still", "the first session after it");
    Ok(())
}

async fn of_two_starts_at_once_exactly_one_wins(bench: &Bench) -> Check {
    let spec = bench.spec()?;
    let (one, two) = tokio::join!(bench.backend.start(spec.clone()), bench.backend.start(spec));
    let (lost, won) = if one.is_ok() { (two, one) } else { (one, two) };
    won.map_err(|error| format!("neither start won: {}", chain(&error)))?;
    fails("the other start", lost, ErrorKind::SessionConflict, "")
}

async fn an_unknown_session_is_not_found(bench: &Bench) -> Check {
    let id = bench.harness.fresh_session()?;
    let exec = bench.backend.exec(&id, ExecRequest::shell("true")).await;
    fails("exec", exec, ErrorKind::SessionNotFound, id.as_str())?;
    if bench.harness.capabilities().files {
        let stat = bench.backend.files(&id, FileRequest::Stat { path: "/tmp".to_owned() }).await;
        fails("files", stat, ErrorKind::SessionNotFound, id.as_str())?;
    }
    bench.backend.stop(&id).await.map_err(|error| format!("stop of an unknown id: {}", chain(&error)))
}

async fn a_stop_is_idempotent(bench: &Bench) -> Check {
    let session = bench.start().await?;
    session.stop().await?;
    session.stop().await?;
    let both = bench.start().await?;
    let (one, two) = tokio::join!(both.stop(), both.stop());
    one.and(two)
}

async fn a_stopped_session_is_not_found(bench: &Bench) -> Check {
    let session = bench.start().await?;
    session.stop().await?;
    let result = session.outcome(ExecRequest::shell("true")).await;
    fails("exec after stop", result, ErrorKind::SessionNotFound, session.info.id.as_str())
}

async fn an_id_can_be_used_again_after_its_stop(bench: &Bench) -> Check {
    let spec = bench.spec()?;
    let first = bench.start_spec(spec.clone()).await?;
    first.text("echo old > /workspace/old; echo old > /tmp/old; echo old > ~/old").await?;
    first.stop().await?;
    let second = bench.start_spec(spec).await?;
    ensure_eq!(
        second.text("ls /workspace/old /tmp/old ~/old 2> /dev/null | wc -l").await?,
        "0",
        "files of the old box"
    );
    Ok(())
}

/// AP-05: an id names no path, so none can climb or collide.
async fn ids_of_any_text_are_fine_and_distinct(bench: &Bench) -> Check {
    let mut sessions = Vec::new();
    for text in ["../../../x", "a/b", "a b", "ü…", ".", "A", "a", &"long".repeat(20)] {
        let unique = bench.harness.fresh_session()?;
        let id = SessionId::new(format!("{text}{unique}{text}")).map_err(|error| error.to_string())?;
        let session = bench.start_spec(bench.spec_named(id)).await?;
        session.text(&format!("printf %s '{text}' > /workspace/name")).await?;
        sessions.push((text.to_owned(), session));
    }
    for (text, session) in &sessions {
        ensure_eq!(session.text("cat /workspace/name").await?, *text, "the file of the session");
    }
    Ok(())
}

async fn the_record_has_a_finding_for_every_control(bench: &Bench) -> Check {
    let session = bench.start().await?;
    for control in Control::ALL {
        let finding = session.info.enforcement.get(control);
        let finding = finding.ok_or_else(|| format!("no finding for {control}"))?;
        ensure!(!finding.by.is_empty(), "the finding for {control} says nothing");
    }
    Ok(())
}

async fn a_required_control_that_does_not_hold_fails_the_start(bench: &Bench) -> Check {
    let known = bench.start().await?.info.enforcement;
    let (held, missing): (Vec<_>, Vec<_>) =
        Control::ALL.into_iter().partition(|control| known.holds(*control));
    let spec = SessionSpec { strictness: Strictness::Require(held), ..bench.spec()? };
    bench.start_spec(spec).await?;
    for control in missing {
        let spec = SessionSpec { strictness: Strictness::Require(vec![control]), ..bench.spec()? };
        let id = spec.id.clone();
        let start = bench.backend.start(spec).await;
        fails("a start that requires it", start, ErrorKind::Unenforceable, control.name())?;
        ensure!(!bench.backend.is_alive(&id).await, "a session without {control} lives");
    }
    Ok(())
}

async fn what_the_capabilities_deny_is_unsupported(bench: &Bench) -> Check {
    let Capabilities { pty, files, writable_root, host_network, host_mounts, hard_disk_quota, .. } =
        bench.harness.capabilities();
    let mut denied = Vec::new();
    if !writable_root {
        denied.push(SessionSpec { root: RootAccess::Writable, ..bench.spec()? });
    }
    if !host_network {
        denied.push(SessionSpec { network: Network::Host, ..bench.spec()? });
    }
    if !host_mounts {
        let (source, target) = (bench.harness.host_dir()?, "/data".to_owned());
        let mounts = vec![Mount::new(source, target, MountAccess::ReadOnly)];
        denied.push(SessionSpec { mounts, ..bench.spec()? });
    }
    if !hard_disk_quota {
        let mut spec = bench.spec()?;
        spec.limits.disk = DiskLimit::Hard(64 << 20);
        denied.push(spec);
    }
    for spec in denied {
        let what = format!("start with {:?}, {:?}, {:?}", spec.root, spec.network, spec.limits.disk);
        fails(&what, bench.backend.start(spec).await, ErrorKind::Unsupported, bench.backend.name())?;
    }
    let session = bench.start().await?;
    if !pty {
        let request = ExecRequest::shell("true").pty(PtySize { rows: 24, cols: 80 });
        fails("a terminal", session.outcome(request).await, ErrorKind::Unsupported, "")?;
    }
    if !files {
        let stat = session.file(FileRequest::Stat { path: "/tmp".to_owned() }).await;
        fails("a file operation", stat, ErrorKind::Unsupported, "")?;
    }
    Ok(())
}

async fn a_failed_start_leaves_no_session(bench: &Bench) -> Check {
    let good = bench.spec()?;
    let bad = SessionSpec { env: vec![("A=B".to_owned(), String::new())], ..good.clone() };
    fails("a start with a bad key", bench.backend.start(bad).await, ErrorKind::Validation, "A=B")?;
    ensure!(!bench.backend.is_alive(&good.id).await, "the session lives although its start failed");
    bench.start_spec(good).await.map(drop)
}

async fn a_cancelled_start_leaves_no_session(bench: &Bench) -> Check {
    let spec = bench.spec()?;
    for micros in [0, 50, 200, 1000, 3000] {
        let limit = std::time::Duration::from_micros(micros);
        if tokio::time::timeout(limit, bench.backend.start(spec.clone())).await.is_ok() {
            bench.backend.stop(&spec.id).await.map_err(|error| chain(&error))?;
        }
        // The clean-up of a dropped start may need a moment.
        let free = || async {
            match bench.backend.start(spec.clone()).await {
                Ok(_) => Ok(Some(())),
                Err(error) if error.kind() == ErrorKind::SessionConflict => Ok(None),
                Err(error) => Err(chain(&error)),
            }
        };
        super::bench::eventually("the id of a cancelled start is free again", free).await?;
        bench.backend.stop(&spec.id).await.map_err(|error| chain(&error))?;
    }
    Ok(())
}

async fn a_sweep_leaves_live_sessions_alone_and_a_second_finds_nothing(bench: &Bench) -> Check {
    let session = bench.start().await?;
    session.text("echo kept > /workspace/kept").await?;
    bench.backend.sweep().await.map_err(|error| format!("sweep: {}", chain(&error)))?;
    let second = bench.backend.sweep().await.map_err(|error| format!("sweep: {}", chain(&error)))?;
    ensure_eq!(second, SweepReport::default(), "what a second sweep removed");
    ensure_eq!(session.text("cat /workspace/kept").await?, "kept", "the live session after two sweeps");
    Ok(())
}

async fn a_probe_succeeds(bench: &Bench) -> Check {
    bench.backend.probe().await.map_err(|error| chain(&error))
}
