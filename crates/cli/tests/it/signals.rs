//! Ctrl-C and its relatives, and a reader that goes away.

use std::io::Read;
use std::time::Duration;

use rustix::process::Signal;

use crate::driver::{run_shell, sandcrate};
use crate::skip::{Feature, skip_without};

#[test]
fn signals_to_us_end_the_box() {
    if skip_without(&[Feature::Box, Feature::Interrupts]) {
        return;
    }
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129), (Signal::QUIT, 131)] {
        let mut running = run_shell(&[], "trap '' INT TERM HUP QUIT; echo ready; sleep 60").start();
        running.wait_for("ready\n");
        running.signal(signal);
        let output = running.finish();
        assert_eq!((output.code, output.stderr.as_str()), (code, ""), "{signal:?}: {output:?}");
        assert!(output.wall < Duration::from_secs(20), "{signal:?}: {output:?}");
    }
}

/// A terminal sends Ctrl-C to the whole foreground group: the launcher must not take it before we do.
#[test]
fn ctrl_c_to_the_whole_group_ends_the_box_in_order() {
    if skip_without(&[Feature::Box, Feature::Interrupts]) {
        return;
    }
    let mut running = run_shell(&[], "echo ready; sleep 60").own_group().start();
    running.wait_for("ready\n");
    rustix::process::kill_process_group(rustix::process::Pid::from_child(&running.child), Signal::INT)
        .unwrap();
    let output = running.finish();
    assert_eq!((output.code, output.stderr.as_str()), (130, ""), "{output:?}");
}

#[test]
fn nohup_is_respected() {
    if skip_without(&[Feature::Box, Feature::Interrupts]) {
        return;
    }
    let mut running = run_shell(&["-i"], "echo ready; read x; echo still here").ignoring_hangup().start();
    running.wait_for("ready\n");
    running.signal(Signal::HUP);
    std::io::Write::write_all(running.child.stdin.as_mut().unwrap(), b"\n").unwrap();
    assert_eq!(running.finish().ok(), "still here\n");
}

#[test]
fn a_second_ctrl_c_changes_nothing() {
    if skip_without(&[Feature::Box, Feature::Interrupts]) {
        return;
    }
    let mut running = run_shell(&[], "echo ready; sleep 60").start();
    running.wait_for("ready\n");
    running.signal(Signal::INT);
    running.signal(Signal::INT);
    assert_eq!(running.finish().code, 130);
}

#[test]
fn an_interrupted_run_still_writes_its_document() {
    if skip_without(&[Feature::Box, Feature::Interrupts]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let running = run_shell(&["-o", "json", "-v", ".:/workspace"], "echo ready; touch ready; sleep 60")
        .dir(dir.path())
        .start();
    crate::driver::until("the command", || dir.path().join("ready").exists().then_some(()));
    running.signal(Signal::INT);
    let output = running.finish();
    let json = output.json();
    assert_eq!((output.code, &json["status"], &json["exit_code"]), (130, &"interrupted".into(), &130.into()));
    assert_eq!((&json["signal"], &json["stdout"]), (&2.into(), &"ready\n".into()));
}

#[test]
fn a_broken_pipe_ends_the_box_quietly() {
    if skip_without(&[Feature::Box, Feature::Interrupts]) {
        return;
    }
    let mut running = sandcrate(&["run", "--timeout", "60s", "--", "yes"]).start();
    let mut some = [0; 4096];
    running.child.stdout.as_mut().unwrap().read_exact(&mut some).unwrap();
    drop(running.child.stdout.take());
    let output = running.finish();
    assert_eq!((output.code, output.stderr.as_str()), (141, ""), "{output:?}");
}

#[test]
fn a_reader_that_stops_does_not_keep_us_from_ending() {
    if skip_without(&[Feature::Box, Feature::Interrupts]) {
        return;
    }
    let mut running = sandcrate(&["run", "--timeout", "60s", "--", "yes"]).start();
    let mut some = [0; 4096];
    // From here on nobody reads, and the pipe is full before long.
    running.child.stdout.as_mut().unwrap().read_exact(&mut some).unwrap();
    let stdout = running.child.stdout.take();
    running.signal(Signal::INT);
    assert_eq!(running.finish().code, 130);
    drop(stdout);
}
