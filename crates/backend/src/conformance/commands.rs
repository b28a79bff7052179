//! What is run, and where: programs, arguments, scripts, working directories.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use sandcrate_protocol::ErrorKind;

use super::Check;
use super::bench::{Bench, fails, text_of};
use crate::{ExecRequest, SessionSpec};

pub(super) fn cases() -> Vec<super::Case> {
    family!("commands" {
        [] an_unknown_program_is_not_found,
            a_file_that_cannot_be_executed_says_so,
            arguments_are_passed_literally,
            a_script_of_3_mb_works_and_is_not_its_own_input,
            an_argument_of_200_kib_is_over_the_limit,
            nul_in_a_command_is_refused,
            a_command_starts_with_default_signals_and_no_foreign_files,
            commands_start_in_workspace,
            a_missing_workdir_is_made,
            a_bad_workdir_is_refused;
    })
}

async fn an_unknown_program_is_not_found(bench: &Bench) -> Check {
    let session = bench.start().await?;
    for program in ["no-such-program", "/workspace/no-such-program", "./no-such-program"] {
        let result = session.outcome(ExecRequest::argv([program])).await;
        fails(program, result, ErrorKind::CommandNotFound, "no-such-program")?;
    }
    ensure_eq!(session.text("echo usable").await?, "usable", "the box afterwards");
    Ok(())
}

async fn a_file_that_cannot_be_executed_says_so(bench: &Bench) -> Check {
    let session = bench.start().await?;
    session
        .text("printf 'echo x' > plain; printf '\\001\\002' > garbage; chmod 755 garbage; mkdir folder")
        .await?;
    for program in ["/workspace/plain", "/workspace/garbage", "/workspace/folder"] {
        let result = session.outcome(ExecRequest::argv([program])).await;
        fails(program, result, ErrorKind::CommandNotExecutable, program)?;
    }
    Ok(())
}

async fn arguments_are_passed_literally(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let odd: [&[u8]; 12] = [
        b"a b",
        b"*",
        b"",
        b"$HOME",
        b"`id`",
        b"a'b\"c",
        b"\\",
        b"-n",
        b"line\nline",
        b"\xff\xfe",
        "ü…".as_bytes(),
        b"",
    ];
    let mut argv = vec![OsString::from("printf"), OsString::from("%s\\0")];
    argv.extend(odd.iter().map(|argument| OsString::from_vec(argument.to_vec())));
    let result = session.run(ExecRequest::argv(argv)).await?;
    let expected: Vec<u8> = odd.iter().flat_map(|argument| [argument, &b"\0"[..]].concat()).collect();
    ensure_eq!(result.stdout[..], expected[..], "the arguments that arrived");
    Ok(())
}

async fn a_script_of_3_mb_works_and_is_not_its_own_input(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let line = format!("x={}\n", "y".repeat(1000));
    let script =
        format!("{}cat | wc -c\necho ${{#x}}\nx=0\n{}echo ${{#x}}", line.repeat(1500), line.repeat(1500));
    ensure!(script.len() > 3_000_000, "the script has {} bytes only", script.len());
    ensure_eq!(session.text(&script).await?, "0\n1000\n1000", "its output");
    Ok(())
}

async fn an_argument_of_200_kib_is_over_the_limit(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let longest = "x".repeat(crate::MAX_STRING_BYTES);
    let fits = session.run(ExecRequest::argv(["printf", "%s", &longest])).await?;
    ensure_eq!(fits.stdout_bytes, longest.len() as u64, "bytes of the longest argument");
    let result = session.outcome(ExecRequest::argv(["printf", "%s", &"x".repeat(200 << 10)])).await;
    fails("an argument of 200 KiB", result, ErrorKind::LimitExceeded, "argument")
}

/// AP-06.
async fn nul_in_a_command_is_refused(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let shell = session.outcome(ExecRequest::shell("echo a\0b")).await;
    fails("NUL in a script", shell, ErrorKind::Validation, "command")?;
    let argv = session.outcome(ExecRequest::argv(["echo", "a\0b"])).await;
    fails("NUL in an argument", argv, ErrorKind::Validation, "command")?;
    let empty = session.outcome(ExecRequest::argv(Vec::<OsString>::new())).await;
    fails("no program at all", empty, ErrorKind::Validation, "command")
}

/// A daemon ignores SIGPIPE and holds many files; neither may leak into commands.
async fn a_command_starts_with_default_signals_and_no_foreign_files(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let status = text_of(&session.run(ExecRequest::argv(["cat", "/proc/self/status"])).await?)?;
    for field in ["SigBlk:", "SigIgn:"] {
        let mask = status.lines().find_map(|line| line.strip_prefix(field)).map(str::trim);
        ensure_eq!(mask, Some("0000000000000000"), field);
    }
    // 3 is the directory that ls itself reads.
    let files = text_of(&session.run(ExecRequest::argv(["ls", "/proc/self/fd"])).await?)?;
    ensure_eq!(files, "0\n1\n2\n3", "open files of a program");
    Ok(())
}

async fn commands_start_in_workspace(bench: &Bench) -> Check {
    let session = bench.start().await?;
    ensure_eq!(
        session.text("pwd -P; echo x > here; cat /workspace/here").await?,
        "/workspace\nx",
        "the workdir"
    );
    let program = text_of(&session.run(ExecRequest::argv(["pwd"])).await?)?;
    ensure_eq!(program, "/workspace", "the workdir of a program");
    Ok(())
}

async fn a_missing_workdir_is_made(bench: &Bench) -> Check {
    let spec = SessionSpec { workdir: "/workspace/of/session".to_owned(), ..bench.spec()? };
    let session = bench.start_spec(spec).await?;
    ensure_eq!(
        session.text("pwd -P; echo x > mine; cat mine").await?,
        "/workspace/of/session\nx",
        "of the session"
    );
    let request = ExecRequest::shell("pwd -P; echo y > mine; cat mine").cwd("/workspace/of/command");
    let seen = text_of(&session.run(request).await?)?;
    ensure_eq!(seen, "/workspace/of/command\ny", "of the command");
    let tmp = text_of(&session.run(ExecRequest::shell("pwd -P").cwd("/tmp/a/b")).await?)?;
    ensure_eq!(tmp, "/tmp/a/b", "below /tmp");
    Ok(())
}

/// AP-10.
async fn a_bad_workdir_is_refused(bench: &Bench) -> Check {
    let session = bench.start().await?;
    for bad in ["relative", "", "/workspace/../etc", "/workspace/a\0b", "/a\nb"] {
        let result = session.outcome(ExecRequest::shell("true").cwd(bad)).await;
        fails(&format!("cwd {bad:?}"), result, ErrorKind::Validation, "workdir")?;
        let spec = SessionSpec { workdir: bad.to_owned(), ..bench.spec()? };
        fails(
            &format!("workdir {bad:?}"),
            bench.backend.start(spec).await,
            ErrorKind::Validation,
            "workdir",
        )?;
    }
    Ok(())
}
