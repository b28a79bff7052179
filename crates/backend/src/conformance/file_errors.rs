//! The file interface against what does not fit and what lies in wait.

use std::path::Path;

use sandcrate_protocol::ErrorKind;

use super::bench::{Bench, TestBox, chain, fails};
use super::{Check, Need};
use crate::FileRequest;

pub(super) fn cases() -> Vec<super::Case> {
    family!("file_errors" {
        [Need::Files] a_missing_path_is_not_found,
            a_wrong_kind_of_file_fails,
            bad_paths_are_refused,
            a_read_only_place_is_not_written,
            kernel_settings_are_not_written_through_a_link,
            a_link_out_of_the_root_stays_in_the_box,
            a_fifo_does_not_hang,
            a_link_loop_fails,
            the_interface_has_no_more_rights_than_commands;
    })
}

fn at(path: &str) -> String {
    format!("/workspace/{path}")
}

fn read(path: &str) -> FileRequest {
    FileRequest::Read { path: path.to_owned(), offset: 0, limit: 100 }
}

fn write(path: &str) -> FileRequest {
    FileRequest::Write { path: path.to_owned(), data: "written".into() }
}

async fn expect(session: &TestBox, request: FileRequest, kind: ErrorKind, naming: &str) -> Check {
    let what = format!("{request:?}");
    fails(&what, session.file(request).await, kind, naming)
}

async fn a_missing_path_is_not_found(bench: &Bench) -> Check {
    let session = bench.start().await?;
    for path in ["none", "none/below"] {
        let requests = [
            read(&at(path)),
            FileRequest::Stat { path: at(path) },
            FileRequest::List { path: at(path) },
            FileRequest::Remove { path: at(path) },
            FileRequest::Rename { from: at(path), to: at("new") },
        ];
        for request in requests {
            expect(&session, request, ErrorKind::FileNotFound, "none").await?;
        }
    }
    Ok(())
}

async fn a_wrong_kind_of_file_fails(bench: &Bench) -> Check {
    let session = bench.start().await?;
    session.text("mkdir folder; echo x > folder/x; echo y > file").await?;
    let requests = [
        read(&at("folder")),
        write(&at("folder")),
        FileRequest::List { path: at("file") },
        FileRequest::MakeDir { path: at("file") },
        FileRequest::MakeDir { path: at("file/below") },
        FileRequest::Rename { from: at("file"), to: at("folder") },
        FileRequest::Rename { from: at("folder"), to: at("folder/below") },
    ];
    for request in requests {
        expect(&session, request, ErrorKind::FileFailed, "/workspace/").await?;
    }
    expect(&session, write(&at("file/below")), ErrorKind::FileFailed, "/workspace/file").await?;
    ensure_eq!(session.text("cat file folder/x").await?, "y\nx", "what was there");
    Ok(())
}

/// AP-06.
async fn bad_paths_are_refused(bench: &Bench) -> Check {
    let session = bench.start().await?;
    for path in ["", "/workspace/a\0b", &"x/".repeat(4000)] {
        expect(&session, read(path), ErrorKind::Validation, "path").await?;
        expect(&session, write(path), ErrorKind::Validation, "path").await?;
    }
    expect(&session, write(&at(&"n".repeat(300))), ErrorKind::FileFailed, "").await
}

async fn a_read_only_place_is_not_written(bench: &Bench) -> Check {
    let session = bench.start().await?;
    for path in ["/usr/new", "/etc/passwd", "/proc/self/comm/x", "/new"] {
        expect(&session, write(path), ErrorKind::FileFailed, path).await?;
    }
    expect(&session, FileRequest::Remove { path: "/etc/passwd".to_owned() }, ErrorKind::FileFailed, "/etc")
        .await?;
    expect(&session, FileRequest::MakeDir { path: "/usr/new".to_owned() }, ErrorKind::FileFailed, "/usr")
        .await
}

async fn kernel_settings_are_not_written_through_a_link(bench: &Bench) -> Check {
    const SETTING: &str = "/proc/sys/kernel/core_pattern";
    let host = || std::fs::read(SETTING).map_err(|error| error.to_string());
    let before = host()?;
    let session = bench.start().await?;
    session.text(&format!("ln -s {SETTING} link; ln -s /proc/self/root{SETTING} magic")).await?;
    for path in [at("link"), at("magic"), SETTING.to_owned()] {
        let result = session.file(write(&path)).await;
        // Put back at once what should never have changed.
        if host()? != before {
            std::fs::write(SETTING, &before).map_err(|error| error.to_string())?;
            return Err(format!("a write to {path} has changed {SETTING} of the host"));
        }
        let Err(error) = result else { return Err(format!("a write to {path} was accepted")) };
        let refused = [ErrorKind::FileFailed, ErrorKind::FileNotFound].contains(&error.kind());
        ensure!(refused, "a write to {path} gave {:?}: {}", error.kind(), chain(&error));
    }
    Ok(())
}

async fn a_link_out_of_the_root_stays_in_the_box(bench: &Bench) -> Check {
    let outside = bench.harness.host_dir()?;
    let secret = outside.join("secret");
    std::fs::write(&secret, "of the host").map_err(|error| error.to_string())?;
    let session = bench.start().await?;
    let (secret, outside) = (secret.display(), outside.display());
    let up = "../../../../../../../..";
    let links = format!(
        "ln -s {up}{secret} up; ln -s {secret} straight; ln -s {up}{outside} folder; \
                         ln -s /proc/1/root{secret} init; ln -s /proc/self/cwd/{up}{secret} cwd; \
                         ln -s {up}/etc/hostname hostname"
    );
    session.text(&links).await?;
    for link in ["up", "straight", "folder/secret", "init", "cwd", &format!("{up}{secret}")] {
        match session.read(&at(link)).await {
            Ok(data) => return Err(format!("{link} gave {data:?} of the host")),
            Err(error) => {
                let refused = [ErrorKind::FileNotFound, ErrorKind::FileFailed].contains(&error.kind());
                ensure!(refused, "{link} gave {:?}: {}", error.kind(), chain(&error));
            }
        }
    }
    let by_command = session.sh("cat /etc/hostname").await?.stdout;
    let by_api = session.read(&at("hostname")).await.unwrap_or_default();
    ensure_eq!(by_api, by_command, "the box's own /etc/hostname through a link that climbs");
    // Were the write to climb, it would land beside the secret.
    let _ = session.file(write(&at("folder/new"))).await;
    ensure!(!Path::new(&format!("{outside}/new")).exists(), "a write has landed on the host");
    Ok(())
}

async fn a_fifo_does_not_hang(bench: &Bench) -> Check {
    let session = bench.start().await?;
    session.text("mkfifo fifo; ln -s fifo link").await?;
    for path in [at("fifo"), at("link")] {
        expect(&session, read(&path), ErrorKind::FileFailed, "/workspace/").await?;
        expect(&session, write(&path), ErrorKind::FileFailed, "/workspace/").await?;
    }
    // Endless and never ready, each in its way.
    for path in ["/dev/zero", "/dev/tty"] {
        let result = session.file(read(path)).await;
        let kind = result.err().map(|error| error.kind());
        ensure!(kind != Some(ErrorKind::Timeout), "a read of {path} hangs");
    }
    Ok(())
}

async fn a_link_loop_fails(bench: &Bench) -> Check {
    let session = bench.start().await?;
    session.text("ln -s two one; ln -s one two").await?;
    expect(&session, read(&at("one")), ErrorKind::FileFailed, "one").await?;
    expect(&session, write(&at("two/x")), ErrorKind::FileFailed, "two").await
}

async fn the_interface_has_no_more_rights_than_commands(bench: &Bench) -> Check {
    let session = bench.start().await?;
    session.text("echo x > closed; chmod 000 closed; mkdir shut; echo y > shut/y; chmod 000 shut").await?;
    let by_command = session.sh("cat closed shut/y").await?.exit.status.shell_code();
    ensure!(by_command != 0, "a command reads files without permission");
    expect(&session, read(&at("closed")), ErrorKind::FileFailed, "closed").await?;
    expect(&session, read(&at("shut/y")), ErrorKind::FileFailed, "shut").await
}
