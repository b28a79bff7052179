//! `-t`: a terminal in the box, and the caller's own put back as it was.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Stdio;

use rustix::process::Signal;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use crate::driver::{Call, Running, read_until, sandcrate, until};
use crate::skip::{Feature, skip_without};

/// A terminal of ours, with `sandcrate` on it.
pub(crate) struct Terminal {
    pub(crate) master: File,
    slave: OwnedFd,
    pub(crate) running: Running,
}

impl Terminal {
    fn start(args: &[&str]) -> Self {
        Self::start_call(sandcrate(args))
    }

    pub(crate) fn start_call(call: Call) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let slave =
            OwnedFd::from(File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap());
        let stdio = || Stdio::from(slave.try_clone().unwrap());
        resize(&master, 33, 77);
        let running = call.env("TERM", "vt100").start_on(stdio(), stdio(), stdio());
        Self { master: File::from(master), slave, running }
    }

    #[track_caller]
    pub(crate) fn expect(&mut self, text: &str) -> String {
        read_until(&mut self.master, text)
    }

    pub(crate) fn keys(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }

    pub(crate) fn is_raw(&self) -> bool {
        !tcgetattr(&self.slave).unwrap().local_modes.contains(LocalModes::ICANON)
    }
}

pub(crate) fn resize(terminal: impl AsFd, rows: u16, cols: u16) {
    tcsetwinsize(terminal, Winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
}

#[test]
fn the_program_has_a_terminal_of_our_size_and_kind() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let script = "test -t 0 -a -t 1 -a -t 2 && echo term=$TERM; stty size; read x; echo got=$x; exit 5";
    let mut terminal = Terminal::start(&["run", "-it", "--", "sh", "-c", script]);
    terminal.expect("term=vt100");
    terminal.expect("33 77");
    assert!(terminal.is_raw(), "keys go to the program as they are");
    terminal.keys("hello\r");
    terminal.expect("got=hello");
    let code = until("the end", || terminal.running.child.try_wait().unwrap()).code();
    assert_eq!(code, Some(5));
    assert!(!terminal.is_raw(), "the terminal is as it was");
}

#[test]
fn ctrl_c_goes_to_the_program() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let mut terminal = Terminal::start(&[
        "run",
        "-it",
        "--",
        "sh",
        "-c",
        "trap 'echo caught; exit 9' INT; echo ready; sleep 60 & wait",
    ]);
    terminal.expect("ready");
    terminal.keys("\x03");
    terminal.expect("caught");
    assert_eq!(until("the end", || terminal.running.child.try_wait().unwrap()).code(), Some(9));
}

#[test]
fn a_resize_reaches_the_program() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let script = "trap 'stty size; exit' WINCH; echo ready; sleep 60 & while :; do wait; done";
    let mut terminal = Terminal::start(&["run", "-it", "--", "sh", "-c", script]);
    terminal.expect("ready");
    resize(&terminal.master, 44, 99);
    // The kernel tells the foreground of a controlling terminal; ours is none.
    terminal.running.signal(Signal::WINCH);
    terminal.expect("44 99");
}

#[test]
fn the_terminal_is_restored_when_a_signal_ends_us() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    for signal in [Signal::TERM, Signal::HUP] {
        let mut terminal = Terminal::start(&["run", "-it", "--", "sh", "-c", "echo ready; sleep 60"]);
        terminal.expect("ready");
        assert!(terminal.is_raw());
        terminal.running.signal(signal);
        until("the end", || terminal.running.child.try_wait().unwrap());
        assert!(!terminal.is_raw(), "{signal:?}");
    }
}

#[test]
fn a_terminal_in_the_box_does_not_need_one_outside() {
    if skip_without(&[Feature::Box]) {
        return;
    }
    let output =
        sandcrate(&["run", "-it", "--", "sh", "-c", "test -t 0 && stty size; cat"]).input("line\n").run();
    assert_eq!(output.code, 0, "{output:?}");
    assert!(output.stdout.contains("24 80\r\n") && output.stdout.ends_with("line\r\n"), "{output:?}");
}
