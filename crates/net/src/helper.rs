//! The process that serves the networks of boxes, and nothing else.
//!
//! It is started with its end of the channel as standard input, opens no file, and needs no privilege: sockets,
//! epoll, the descriptors that it is given. It ends when the daemon does. `jail` puts it behind a filter of its
//! own before the first packet.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use crate::channel;
use crate::message::{HelperReply, HelperRequest};
use crate::stack::Stack;

/// Denials in one message: it must fit into a packet.
const DENIALS: usize = 64;
/// Longest sleep; nothing depends on it.
const SLEEP: Duration = Duration::from_secs(60);
/// How soon denials are offered again to a daemon whose socket was full.
const RETRY: Duration = Duration::from_millis(20);

/// Serves until the daemon's end of `control` is closed.
pub fn run_helper(control: &OwnedFd) -> io::Result<()> {
    let mut stack = Stack::new()?;
    stack.watch_control(control.as_fd())?;
    rustix::io::ioctl_fionbio(control, true)?;
    let mut waiting: Vec<HelperReply> = Vec::new();
    loop {
        let sleep = if waiting.is_empty() { SLEEP } else { RETRY };
        if stack.turn(sleep)? {
            match channel::recv(control.as_fd()) {
                Ok(Some((request, fds))) => serve(&mut stack, request, fds, &mut waiting),
                Ok(None) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        if !deliver(control.as_fd(), &mut waiting)? {
            continue;
        }
        for (box_id, denials, lost) in stack.take_denials(DENIALS) {
            waiting.push(HelperReply::Denied { box_id, denials, lost });
        }
        deliver(control.as_fd(), &mut waiting)?;
    }
}

/// Sends what waits, in order; false when the socket is full. What waits is bounded: denials are not taken from
/// their logs before, and a daemon that asks reads its replies.
fn deliver(control: BorrowedFd<'_>, waiting: &mut Vec<HelperReply>) -> io::Result<bool> {
    let mut sent = 0;
    for reply in waiting.iter() {
        match channel::send(control, reply, &[]) {
            Ok(()) => sent += 1,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    waiting.drain(..sent);
    Ok(waiting.is_empty())
}

fn serve(stack: &mut Stack, request: HelperRequest, fds: Vec<OwnedFd>, waiting: &mut Vec<HelperReply>) {
    // Whoever asks what was used is told first what was refused: a command's result has both.
    if let HelperRequest::Count { box_id } | HelperRequest::Detach { box_id } = request {
        while let Some((denials, lost)) = stack.take_denials_of(box_id, DENIALS) {
            waiting.push(HelperReply::Denied { box_id, denials, lost });
        }
    }
    waiting.extend(reply(stack, request, fds));
}

fn reply(stack: &mut Stack, request: HelperRequest, fds: Vec<OwnedFd>) -> Option<HelperReply> {
    let failed = |box_id, reason: &str| Some(HelperReply::Failed { box_id, reason: reason.to_owned() });
    let mut fds = fds.into_iter();
    match request {
        HelperRequest::Attach { box_id, config } => {
            let Some(tun) = fds.next() else { return failed(box_id, "no tun device came with the request") };
            match stack.attach(box_id, tun, *config) {
                Ok(()) => Some(HelperReply::Attached { box_id }),
                Err(error) => failed(box_id, &error.to_string()),
            }
        }
        HelperRequest::SetPolicy { box_id, policy, grants, limits } => {
            if stack.set_policy(box_id, policy, grants, limits) {
                Some(HelperReply::PolicySet { box_id })
            } else {
                failed(box_id, "no such box")
            }
        }
        HelperRequest::Detach { box_id } => match stack.detach(box_id) {
            Some(counters) => Some(HelperReply::Detached { box_id, counters }),
            None => failed(box_id, "no such box"),
        },
        HelperRequest::Count { box_id } => match stack.counters(box_id) {
            Some(counters) => Some(HelperReply::Counted { box_id, counters }),
            None => failed(box_id, "no such box"),
        },
        // A stream that cannot be carried is closed: its peer sees the end.
        HelperRequest::Forward { box_id, port } => {
            if let Some(stream) = fds.next() {
                let _ = stack.forward(box_id, stream, port);
            }
            None
        }
        HelperRequest::Sever { box_id, connections } => {
            stack.sever(box_id, &connections);
            None
        }
        HelperRequest::Surroundings { resolvers, own } => {
            stack.set_surroundings(&resolvers, &own);
            None
        }
    }
}
