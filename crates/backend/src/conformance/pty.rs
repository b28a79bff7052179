//! Commands on a terminal.

use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::bench::{Bench, TestBox};
use super::live::Live;
use super::{Check, Need};
use crate::{ExecControl, ExecEvent, ExecRequest, ExitStatus, PtySize, Stream};

pub(super) fn cases() -> Vec<super::Case> {
    family!("pty" {
        [Need::Pty] all_three_streams_are_a_terminal,
            the_size_is_as_given,
            a_resize_is_seen,
            input_is_echoed_and_read_line_by_line,
            everything_arrives_on_stdout,
            ctrl_c_interrupts_the_foreground_program,
            ctrl_c_leaves_the_shell_behind_it_alone,
            ctrl_d_is_the_end_of_input,
            the_exit_code_is_reported,
            a_program_that_left_the_terminal_does_not_hold_the_reply;
        [Need::Pty, Need::KillOneCommand] a_dropped_terminal_hangs_up_and_ends_the_tree;
    })
}

const SIZE: PtySize = PtySize { rows: 33, cols: 101 };

async fn open(session: &TestBox, request: ExecRequest) -> Result<(Live, mpsc::Sender<Bytes>), String> {
    let mut live = session.live(request.pty(SIZE)).await?;
    let stdin = live.execution.take_stdin().ok_or("a terminal has no input")?;
    Ok((live, stdin))
}

async fn script(session: &TestBox, script: &str) -> Result<(String, ExitStatus), String> {
    let (mut live, _stdin) = open(session, ExecRequest::shell(script)).await?;
    let (seen, exit) = live.end().await?;
    Ok((seen.replace("\r\n", "\n"), exit.status))
}

async fn typed(stdin: &mpsc::Sender<Bytes>, text: &'static str) -> Check {
    stdin.send(Bytes::from_static(text.as_bytes())).await.map_err(|_| format!("{text:?} was not taken"))
}

async fn all_three_streams_are_a_terminal(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let seen = script(&session, "[ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo yes; : > /dev/tty && echo its own")
        .await?;
    ensure_eq!(seen, ("yes\nits own\n".to_owned(), ExitStatus::Code(0)), "the terminal");
    let plain = session.text("[ -t 0 ] || [ -t 1 ] || [ -t 2 ] || echo none").await?;
    ensure_eq!(plain, "none", "a command without a terminal");
    Ok(())
}

async fn the_size_is_as_given(bench: &Bench) -> Check {
    let session = bench.start().await?;
    ensure_eq!(script(&session, "stty size").await?.0, "33 101\n", "rows and columns");
    Ok(())
}

async fn a_resize_is_seen(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let request =
        ExecRequest::shell("trap 'stty size; exit 0' WINCH; echo ready; while :; do sleep 0.05; done");
    let (mut live, _stdin) = open(&session, request).await?;
    live.until("ready").await?;
    let size = PtySize { rows: 50, cols: 132 };
    ensure!(live.execution.control(ExecControl::Resize(size)).await, "the terminal takes no control");
    live.until("50 132").await?;
    live.end().await.map(drop)
}

async fn input_is_echoed_and_read_line_by_line(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let request = ExecRequest::shell("echo ready; read -r line; echo \"<$line>\"");
    let (mut live, stdin) = open(&session, request).await?;
    live.until("ready\r\n").await?;
    typed(&stdin, "hello\n").await?;
    let (seen, _) = live.end().await?;
    ensure_eq!(seen, "ready\r\nhello\r\n<hello>\r\n", "echo and answer");
    Ok(())
}

async fn everything_arrives_on_stdout(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let (mut live, _stdin) = open(&session, ExecRequest::shell("echo out; echo err >&2")).await?;
    let mut seen = Vec::new();
    loop {
        match live.execution.next().await {
            Some(ExecEvent::Output(Stream::Stdout, data)) => seen.extend_from_slice(&data),
            Some(ExecEvent::Exit(_)) => break,
            other => return Err(format!("a terminal gave {other:?}")),
        }
    }
    ensure_eq!(String::from_utf8_lossy(&seen), "out\r\nerr\r\n", "stdout");
    Ok(())
}

async fn ctrl_c_interrupts_the_foreground_program(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let (mut live, stdin) = open(&session, ExecRequest::shell("echo ready; exec sleep 60")).await?;
    live.until("ready").await?;
    typed(&stdin, "\x03").await?;
    let (_, exit) = live.end().await?;
    ensure_eq!(exit.status, ExitStatus::Signal(2), "the status");
    Ok(())
}

async fn ctrl_c_leaves_the_shell_behind_it_alone(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let beside = session.text("sleep 60 > /dev/null 2>&1 & echo $!").await?;
    let (mut live, stdin) = open(&session, ExecRequest::argv(["sh", "-i"])).await?;
    // The quotes keep the echo of what is typed from looking like the answer; the inner shell says it only when
    // it is the terminal's foreground job.
    typed(&stdin, "sh -c \"echo be''gin; sleep 60\"\n").await?;
    live.until("begin").await?;
    // dash itself loses an interrupt now and then (on any terminal): the key is pressed until it is felt.
    let mut tries = 0;
    loop {
        typed(&stdin, "\x03").await?;
        typed(&stdin, "echo ali''ve\n").await?;
        match timeout(Duration::from_secs(1), live.until("alive")).await {
            Ok(felt) => break drop(felt?),
            Err(_) if tries == 10 => return Err("ten interrupts were not felt".to_owned()),
            Err(_) => tries += 1,
        };
    }
    typed(&stdin, "exit 5\n").await?;
    let (seen, exit) = live.end().await?;
    ensure_eq!(exit.status, ExitStatus::Code(5), format!("the status of the shell that wrote {seen:?}"));
    ensure!(session.is_running(&beside).await?, "a process without the terminal is gone");
    Ok(())
}

async fn ctrl_d_is_the_end_of_input(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let (mut live, stdin) = open(&session, ExecRequest::shell("echo ready; cat; echo end")).await?;
    live.until("ready").await?;
    typed(&stdin, "line\n\x04").await?;
    let (seen, exit) = live.end().await?;
    ensure!(seen.ends_with("line\r\nend\r\n"), "the output is {seen:?}");
    ensure_eq!(exit.status, ExitStatus::Code(0), "the status");
    Ok(())
}

async fn the_exit_code_is_reported(bench: &Bench) -> Check {
    let session = bench.start().await?;
    ensure_eq!(
        script(&session, "echo last; exit 9").await?,
        ("last\n".to_owned(), ExitStatus::Code(9)),
        "the end"
    );
    ensure_eq!(script(&session, "kill -TERM $$; sleep 5").await?.1, ExitStatus::Signal(15), "a signal");
    let all = script(&session, "seq 1 20000").await?.0;
    ensure!(all.ends_with("\n19999\n20000\n"), "the last lines are lost: {} bytes came", all.len());
    Ok(())
}

async fn a_dropped_terminal_hangs_up_and_ends_the_tree(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let request = ExecRequest::shell("trap '' HUP TERM INT; echo $$; while :; do sleep 1; done");
    let (mut live, stdin) = open(&session, request).await?;
    let pid = live.line().await?.trim().to_owned();
    drop((live, stdin));
    session.until_gone(&pid).await
}

async fn a_program_that_left_the_terminal_does_not_hold_the_reply(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let seen = script(&session, "trap '' HUP; setsid sleep 60 & echo done").await?;
    ensure_eq!(seen.0, "done\n", "the reply");
    ensure_eq!(session.text("echo usable").await?, "usable", "the box afterwards");
    Ok(())
}
