//! The file interface: what it writes commands read, and the reverse.

use bytes::Bytes;
use sandcrate_protocol::ErrorKind;

use super::bench::{Bench, TestBox, chain, fails};
use super::{Check, Need};
use crate::{FileEntry, FileKind, FileReply, FileRequest};

pub(super) fn cases() -> Vec<super::Case> {
    family!("files" {
        [] files_persist_between_commands_and_not_between_sessions;
        [Need::Files] what_is_written_is_read_by_commands_and_the_reverse,
            binary_content_is_kept,
            content_of_5_mib_is_kept,
            a_write_replaces_the_content,
            an_append_adds_to_the_end,
            reads_begin_and_end_where_asked,
            a_stat_tells_what_a_path_is,
            a_listing_has_every_entry_however_odd_its_name,
            directories_are_made_with_their_parents,
            a_rename_moves_files_and_directories,
            a_removal_takes_the_tree_and_nothing_behind_links,
            a_removal_that_is_refused_removes_nothing,
            relative_paths_start_at_the_workdir,
            owners_are_the_same_for_both_sides;
    })
}

async fn stat(session: &TestBox, path: &str) -> Result<FileEntry, String> {
    match session.file(FileRequest::Stat { path: path.to_owned() }).await {
        Ok(FileReply::Entry(entry)) => Ok(entry),
        Ok(other) => Err(format!("stat {path} gave {other:?}")),
        Err(error) => Err(format!("stat {path}: {}", chain(&error))),
    }
}

async fn done(session: &TestBox, request: FileRequest) -> Check {
    let what = format!("{request:?}");
    match session.file(request).await {
        Ok(FileReply::Done) => Ok(()),
        Ok(other) => Err(format!("{what} gave {other:?}")),
        Err(error) => Err(format!("{what}: {}", chain(&error))),
    }
}

async fn read(session: &TestBox, path: &str) -> Result<Bytes, String> {
    session.read(path).await.map_err(|error| format!("read {path}: {}", chain(&error)))
}

async fn a_removal_that_is_refused_removes_nothing(bench: &Bench) -> Check {
    let session = bench.start().await?;
    for path in ["/", "/tmp", "/workspace/", "/workspace"] {
        session.text("mkdir -p d; echo kept > d/f; echo kept > /tmp/f").await?;
        let mode = stat(&session, path).await?.mode;
        if session.file(FileRequest::Remove { path: path.to_owned() }).await.is_ok() {
            // An ordinary directory of a root that can be written.
            ensure!(path != "/" && stat(&session, path).await.is_err(), "{path} was removed and is there");
            continue;
        }
        let kept = session.text("cat d/f /tmp/f").await.map_err(|error| format!("after {path}: {error}"))?;
        ensure_eq!(kept, "kept\nkept", format!("what is below {path}"));
        ensure_eq!(stat(&session, path).await?.mode, mode, format!("the mode of {path}"));
    }
    Ok(())
}

async fn files_persist_between_commands_and_not_between_sessions(bench: &Bench) -> Check {
    let (one, other) = (bench.start().await?, bench.start().await?);
    one.text("for place in /workspace /tmp ~; do echo mine > $place/mine; done").await?;
    ensure_eq!(
        one.text("cat /workspace/mine /tmp/mine ~/mine").await?,
        "mine\nmine\nmine",
        "in the same session"
    );
    let elsewhere = other.text("ls /workspace/mine /tmp/mine ~/mine 2> /dev/null | wc -l").await?;
    ensure_eq!(elsewhere, "0", "files seen in another session");
    Ok(())
}

async fn what_is_written_is_read_by_commands_and_the_reverse(bench: &Bench) -> Check {
    let session = bench.start().await?;
    for place in ["/workspace", "/tmp"] {
        session.write(&format!("{place}/by-api"), "from the api").await?;
        let seen = session
            .text(&format!("cat {place}/by-api; printf 'from a command' > {place}/by-command"))
            .await?;
        ensure_eq!(seen, "from the api", "what a command reads");
        ensure_eq!(
            read(&session, &format!("{place}/by-command")).await?[..],
            b"from a command"[..],
            "what the api reads"
        );
    }
    Ok(())
}

async fn binary_content_is_kept(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let all: Bytes = (0..=255).collect::<Vec<u8>>().into();
    session.write("/workspace/binary", all.clone()).await?;
    ensure_eq!(read(&session, "/workspace/binary").await?, all, "read back");
    ensure_eq!(session.sh("cat binary").await?.stdout, all, "as a command sees it");
    session.write("/workspace/empty", "").await?;
    ensure_eq!(read(&session, "/workspace/empty").await?, Bytes::new(), "an empty file");
    Ok(())
}

async fn content_of_5_mib_is_kept(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let content: Bytes = (0..5_u32 << 20).map(|index| (index % 251) as u8).collect();
    session.write("/workspace/large", content.clone()).await?;
    ensure!(session.sh("cat large").await?.stdout == content, "a command sees another content");
    ensure!(read(&session, "/workspace/large").await? == content, "another content is read back");
    Ok(())
}

async fn a_write_replaces_the_content(bench: &Bench) -> Check {
    let session = bench.start().await?;
    session.write("/workspace/file", "a long content").await?;
    session.text("chmod 750 file; ln -s file link").await?;
    session.write("/workspace/file", "short").await?;
    ensure_eq!(session.text("cat file").await?, "short", "the new content");
    session.write("/workspace/link", "through").await?;
    ensure_eq!(session.text("cat file; [ -L link ]").await?, "through", "the content behind a link");
    ensure_eq!(stat(&session, "/workspace/file").await?.mode, 0o750, "the mode");
    Ok(())
}

async fn an_append_adds_to_the_end(bench: &Bench) -> Check {
    let session = bench.start().await?;
    for data in ["one\n", "two\n"] {
        let data = Bytes::from_static(data.as_bytes());
        let append = FileRequest::Append { path: "new/log".to_owned(), data };
        session.file(append).await.map_err(|error| chain(&error))?;
    }
    ensure_eq!(session.text("cat new/log").await?, "one\ntwo", "the content");
    Ok(())
}

async fn reads_begin_and_end_where_asked(bench: &Bench) -> Check {
    let session = bench.start().await?;
    session.write("/workspace/digits", "0123456789").await?;
    for (offset, limit, expected) in [
        (0, 4, "0123"),
        (3, 4, "3456"),
        (8, 100, "89"),
        (10, 5, ""),
        (500, 5, ""),
        (2, 0, ""),
        (u64::MAX, 5, ""),
    ] {
        let request = FileRequest::Read { path: "/workspace/digits".to_owned(), offset, limit };
        let reply = session.file(request).await.map_err(|error| format!("at {offset}: {}", chain(&error)))?;
        let expected = FileReply::Data { data: Bytes::from(expected), file_bytes: 10 };
        ensure_eq!(reply, expected, format!("{limit} bytes at {offset}"));
    }
    Ok(())
}

async fn a_stat_tells_what_a_path_is(bench: &Bench) -> Check {
    let session = bench.start().await?;
    session
        .text("printf 12345 > file; chmod 640 file; mkdir -m 700 folder; ln -s some/where link; mkfifo fifo")
        .await?;
    let now: i64 = session.text("date +%s").await?.parse().map_err(|_| "date gave no number")?;
    let file = stat(&session, "/workspace/file").await?;
    ensure_eq!(
        (file.name.as_str(), file.kind, file.bytes, file.mode),
        ("file", FileKind::File, 5, 0o640),
        "the file"
    );
    ensure!((file.modified - now).abs() < 60, "the file is of {}, now is {now}", file.modified);
    let folder = stat(&session, "/workspace/folder").await?;
    ensure_eq!((folder.kind, folder.mode), (FileKind::Directory, 0o700), "the directory");
    let link = stat(&session, "/workspace/link").await?;
    ensure_eq!((link.kind, link.link_target.as_deref()), (FileKind::Symlink, Some("some/where")), "the link");
    ensure_eq!(stat(&session, "/workspace/fifo").await?.kind, FileKind::Other, "the fifo");
    ensure_eq!(stat(&session, "/").await?.kind, FileKind::Directory, "the root");
    Ok(())
}

async fn a_listing_has_every_entry_however_odd_its_name(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let script = "mkdir d && cd d && mkdir folder .hidden && ln -s nowhere link && mkfifo fifo && \
                  touch -- -rf 'a b' '...' '*' \"$(printf 'new\\nline')\" \"$(printf 'bad\\377')\" 'ü…'";
    session.text(script).await?;
    let reply = session.file(FileRequest::List { path: "/workspace/d".to_owned() }).await;
    let Ok(FileReply::Entries(entries)) = reply else { return Err(format!("the listing is {reply:?}")) };
    let mut seen: Vec<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
    seen.sort_unstable();
    let mut expected =
        ["folder", ".hidden", "link", "fifo", "-rf", "a b", "...", "*", "new\nline", "bad\u{fffd}", "ü…"];
    expected.sort_unstable();
    ensure_eq!(seen, expected, "the names");
    let link =
        entries.iter().find(|entry| entry.name == "link").and_then(|entry| entry.link_target.as_deref());
    ensure_eq!(link, Some("nowhere"), "the target of the link");
    session.text("mkdir many && cd many && seq 1 3000 | while read -r n; do : > $n; done").await?;
    match session.file(FileRequest::List { path: "/workspace/many".to_owned() }).await {
        Ok(FileReply::Entries(many)) => ensure_eq!(many.len(), 3000, "entries of a large directory"),
        other => return Err(format!("the large listing is {other:?}")),
    }
    Ok(())
}

async fn directories_are_made_with_their_parents(bench: &Bench) -> Check {
    let session = bench.start().await?;
    for _ in 0..2 {
        done(&session, FileRequest::MakeDir { path: "/workspace/a/b/c".to_owned() }).await?;
    }
    session.write("/workspace/x/y/z.txt", "made").await?;
    ensure_eq!(
        session.text("[ -d a/b/c ] && touch a/b/c/mine && cat x/y/z.txt").await?,
        "made",
        "both trees"
    );
    Ok(())
}

async fn a_rename_moves_files_and_directories(bench: &Bench) -> Check {
    let session = bench.start().await?;
    session.text("echo one > one; echo two > two; mkdir -p d/e; echo deep > d/e/f").await?;
    let rename = |from: &str, to: &str| FileRequest::Rename { from: from.to_owned(), to: to.to_owned() };
    done(&session, rename("/workspace/one", "/workspace/two")).await?;
    done(&session, rename("/workspace/d", "/workspace/moved")).await?;
    ensure_eq!(
        session.text("cat two moved/e/f; ls -d one d 2> /dev/null | wc -l").await?,
        "one\ndeep\n0",
        "after it"
    );
    Ok(())
}

async fn a_removal_takes_the_tree_and_nothing_behind_links(bench: &Bench) -> Check {
    let session = bench.start().await?;
    session.text("mkdir -p keep tree/a/b; echo x > keep/x; echo y > tree/a/b/y; ln -s ../keep tree/l; ln -s keep l").await?;
    done(&session, FileRequest::Remove { path: "/workspace/tree".to_owned() }).await?;
    done(&session, FileRequest::Remove { path: "/workspace/l".to_owned() }).await?;
    ensure_eq!(session.text("ls; cat keep/x").await?, "keep\nx", "what is left");
    let again = session.file(FileRequest::Remove { path: "/workspace/tree".to_owned() }).await;
    fails("a second removal", again, ErrorKind::FileNotFound, "tree")
}

async fn relative_paths_start_at_the_workdir(bench: &Bench) -> Check {
    let session = bench
        .start_spec(crate::SessionSpec { workdir: "/workspace/sub".to_owned(), ..bench.spec()? })
        .await?;
    session.write("file", "relative").await?;
    ensure_eq!(session.text("cat /workspace/sub/file").await?, "relative", "the file");
    Ok(())
}

async fn owners_are_the_same_for_both_sides(bench: &Bench) -> Check {
    let session = bench.start().await?;
    session.write("/workspace/new/by-api", "x").await?;
    let owned = "[ -O new ] && [ -O new/by-api ] && [ -w new/by-api ] && rm new/by-api && umask 077 && echo y > private";
    session
        .text(owned)
        .await
        .map_err(|error| format!("the file of the api is not the command's own: {error}"))?;
    ensure_eq!(read(&session, "/workspace/private").await?[..], b"y\n"[..], "a private file of the command");
    Ok(())
}
