//! The task that owns the helper: it alone sends and receives, keeps what a new helper would need, and starts one
//! when the last is gone.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sandcrate_backend::Isolation;
use sandcrate_net::message::{HelperReply, HelperRequest};
use sandcrate_net::{BoxId, NetworkConfig};
use sandcrate_protocol::network::{Counters, Denial, DenialKind};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::connections::{self, Connections};
use super::helper::Helper;
use super::ledger::Ledger;
use super::surroundings::Surroundings;
use crate::lock::lock;

/// Replies that may be due; beyond it nothing is asked.
const MAX_PENDING: usize = 256;
/// A helper that owes a reply for so long is replaced.
const REPLY_LIMIT: Duration = Duration::from_secs(10);
/// How often the host's resolvers and addresses are looked at, and overdue replies for.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Starts of a helper before we give up, until the next request for one.
const MAX_STARTS: u32 = 8;
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// A helper that lived so long was sound when it started.
const SOUND: Duration = Duration::from_secs(5);

type Answer<T> = oneshot::Sender<Result<T, String>>;

/// What a box's network asks of the owner.
#[derive(Debug)]
pub(super) enum Ask {
    Attach {
        id: BoxId,
        tun: OwnedFd,
        init: i32,
        config: Box<NetworkConfig>,
        ledger: Arc<Ledger>,
        reply: Answer<String>,
    },
    SetPolicy {
        id: BoxId,
        isolation: Box<Isolation>,
        reply: Answer<()>,
    },
    Forward {
        id: BoxId,
        port: u16,
        stream: OwnedFd,
        reply: Answer<()>,
    },
    Count {
        id: BoxId,
        reply: oneshot::Sender<Counters>,
    },
}

/// Boxes whose network is over: told without waiting, so it can be done when something is dropped. At most two
/// entries for each box.
#[derive(Debug, Default)]
pub(super) struct Departed {
    state: Mutex<(Vec<BoxId>, bool)>,
    wake: Notify,
}

impl Departed {
    pub(super) fn add(&self, id: BoxId) {
        lock(&self.state).0.push(id);
        self.wake.notify_one();
    }

    /// No network is wanted any more.
    pub(super) fn close(&self) {
        lock(&self.state).1 = true;
        self.wake.notify_one();
    }

    fn take(&self) -> (Vec<BoxId>, bool) {
        let mut state = lock(&self.state);
        (std::mem::take(&mut state.0), state.1)
    }
}

struct Attached {
    tun: OwnedFd,
    /// The box's init; 0 where it cannot be seen.
    init: i32,
    config: Box<NetworkConfig>,
    ledger: Arc<Ledger>,
    /// Who waits for the box to be served.
    attaching: Option<Answer<String>>,
    /// Who waits for a policy to be in force.
    setting: Vec<Answer<()>>,
}

/// A reply that is due.
enum Due {
    Attached(BoxId),
    PolicySet(BoxId),
    /// The device is closed here when the helper has closed its own.
    Detached(BoxId, OwnedFd),
    Counted(BoxId, oneshot::Sender<Counters>),
}

struct Owner {
    program: PathBuf,
    helper: Option<Helper>,
    started: Instant,
    failed_starts: u32,
    boxes: HashMap<BoxId, Attached>,
    due: VecDeque<(Instant, Due)>,
    surroundings: Surroundings,
    /// Devices that are over. The last close of one waits for the other processors, which neither the helper nor
    /// this task has time for.
    closing: Vec<OwnedFd>,
    closer: Option<JoinHandle<()>>,
    /// Looks for connections that ended with the last helper.
    searcher: Option<JoinHandle<Vec<Connections>>>,
}

/// Serves until nobody can ask any more, or nobody wants to.
pub(super) async fn run(program: PathBuf, mut asks: mpsc::Receiver<Ask>, departed: Arc<Departed>) {
    let mut owner = Owner {
        program,
        helper: None,
        started: Instant::now(),
        failed_starts: 0,
        boxes: HashMap::new(),
        due: VecDeque::new(),
        surroundings: Surroundings::look(),
        closing: Vec::new(),
        closer: None,
        searcher: None,
    };
    // Whoever woke us is about to ask.
    let _ = owner.start().await;
    let mut look = interval(LOOK_EVERY);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let room = owner.due.len() < MAX_PENDING;
        tokio::select! {
            biased;
            reply = receive(owner.helper.as_ref()) => match reply {
                Ok(reply) => owner.handle(reply).await,
                Err(why) => owner.lose(&why).await,
            },
            () = departed.wake.notified() => {
                let (gone, closed) = departed.take();
                for id in gone {
                    owner.detach(id).await;
                }
                if closed {
                    break;
                }
            }
            ask = asks.recv(), if room => match ask {
                Some(ask) => owner.serve(ask).await,
                None => break,
            },
            _ = ended(owner.closer.as_mut()) => owner.closer = None,
            found = ended(owner.searcher.as_mut()) => owner.sever(found).await,
            _ = look.tick() => owner.look().await,
        }
        owner.close_devices();
    }
    // The helper first, so that the last close is ours.
    drop(owner.helper.take());
    let last: Vec<OwnedFd> =
        owner.boxes.drain().map(|(_, attached)| attached.tun).chain(owner.closing).collect();
    let _ = tokio::task::spawn_blocking(move || drop(last)).await;
}

/// What a thread came to; never, without one.
async fn ended<T>(thread: Option<&mut JoinHandle<T>>) -> Option<T> {
    match thread {
        Some(thread) => thread.await.ok(),
        None => std::future::pending().await,
    }
}

/// The helper's next message; never, without one.
async fn receive(helper: Option<&Helper>) -> Result<HelperReply, String> {
    let Some(helper) = helper else { return std::future::pending().await };
    match helper.recv().await {
        Ok(Some(HelperReply::Unusable { reason })) => Err(reason),
        Ok(Some(reply)) => Ok(reply),
        Ok(None) => Err("it ended".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

impl Owner {
    async fn serve(&mut self, ask: Ask) {
        match ask {
            Ask::Attach { id, tun, init, config, ledger, reply } => {
                let attached =
                    Attached { tun, init, config, ledger, attaching: Some(reply), setting: Vec::new() };
                self.boxes.insert(id, attached);
                if self.helper.is_some() {
                    self.attach(id).await;
                } else if let Err(why) = self.start().await {
                    self.refuse(id, &why);
                }
            }
            Ask::SetPolicy { id, isolation, reply } => {
                let Some(attached) = self.boxes.get_mut(&id) else { return };
                let Isolation { policy, grants, limits } = *isolation;
                // Whatever becomes of this helper, the next one has it.
                (attached.config.policy, attached.config.grants, attached.config.limits) =
                    (policy.clone(), grants.clone(), limits.clone());
                attached.setting.push(reply);
                if self.helper.is_some() {
                    let request = HelperRequest::SetPolicy { box_id: id, policy, grants, limits };
                    self.request(&request, Some(Due::PolicySet(id))).await;
                } else if let Err(why) = self.start().await {
                    self.refuse(id, &why);
                }
            }
            Ask::Forward { id, port, stream, reply } => self.forward(id, port, stream, reply).await,
            Ask::Count { id, reply } => {
                let Some(attached) = self.boxes.get(&id) else { return };
                if self.helper.is_some() {
                    self.request(&HelperRequest::Count { box_id: id }, Some(Due::Counted(id, reply))).await;
                } else {
                    let _ = reply.send(attached.ledger.total());
                }
            }
        }
    }

    async fn forward(&mut self, id: BoxId, port: u16, stream: OwnedFd, reply: Answer<()>) {
        let request = HelperRequest::Forward { box_id: id, port };
        let sent = match &self.helper {
            Some(helper) if self.boxes.contains_key(&id) => {
                helper.send(&request, &[stream.as_fd()]).await.map_err(|error| error.to_string())
            }
            _ => Err("the box has no network now".to_owned()),
        };
        // A helper that is gone shows in what is received.
        let _ = reply.send(sent);
    }

    /// Sends a box's device and configuration.
    async fn attach(&mut self, id: BoxId) {
        let (Some(helper), Some(attached)) = (&self.helper, self.boxes.get_mut(&id)) else { return };
        attached.config.resolvers.clone_from(&self.surroundings.resolvers);
        attached.config.own.clone_from(&self.surroundings.own);
        let request = HelperRequest::Attach { box_id: id, config: attached.config.clone() };
        match helper.send(&request, &[attached.tun.as_fd()]).await {
            Ok(()) => self.due.push_back((Instant::now(), Due::Attached(id))),
            Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => {
                self.refuse(id, "the policy is too long");
            }
            // The end of the helper comes next.
            Err(_) => {}
        }
    }

    async fn detach(&mut self, id: BoxId) {
        let Some(attached) = self.boxes.remove(&id) else { return };
        if self.helper.is_some() {
            let due = Due::Detached(id, attached.tun);
            self.request(&HelperRequest::Detach { box_id: id }, Some(due)).await;
        } else {
            self.closing.push(attached.tun);
        }
    }

    /// Closes devices on a thread that may wait, one batch at a time.
    fn close_devices(&mut self) {
        if self.closer.is_none() && !self.closing.is_empty() {
            let batch = std::mem::take(&mut self.closing);
            self.closer = Some(tokio::task::spawn_blocking(move || drop(batch)));
        }
    }

    /// Has connections end that nobody carries any more: one with nothing on its way would not notice.
    async fn sever(&mut self, found: Option<Vec<Connections>>) {
        self.searcher = None;
        for (box_id, connections) in found.into_iter().flatten() {
            self.request(&HelperRequest::Sever { box_id, connections }, None).await;
        }
    }

    async fn request(&mut self, request: &HelperRequest, due: Option<Due>) {
        let Some(helper) = &self.helper else { return };
        // A helper that is gone, or takes nothing, is noticed by what it owes.
        let _ = helper.send(request, &[]).await;
        self.due.extend(due.map(|due| (Instant::now(), due)));
    }

    async fn handle(&mut self, reply: HelperReply) {
        if let HelperReply::Denied { box_id, denials, lost } = reply {
            if let Some(attached) = self.boxes.get(&box_id) {
                attached.ledger.record(denials, lost);
            }
            return;
        }
        match (self.due.pop_front().map(|(_, due)| due), reply) {
            (Some(Due::Attached(id)), HelperReply::Attached { box_id }) if id == box_id => self.in_force(id),
            (Some(Due::PolicySet(id)), HelperReply::PolicySet { box_id }) if id == box_id => {
                if let Some(attached) = self.boxes.get_mut(&id)
                    && !attached.setting.is_empty()
                {
                    let _ = attached.setting.remove(0).send(Ok(()));
                }
            }
            (Some(Due::Counted(id, waits)), HelperReply::Counted { box_id, counters }) if id == box_id => {
                if let Some(attached) = self.boxes.get(&id) {
                    let _ = waits.send(attached.ledger.counted(counters));
                }
            }
            (
                Some(Due::Detached(id, tun)),
                HelperReply::Detached { box_id, .. } | HelperReply::Failed { box_id, .. },
            ) if id == box_id => self.closing.push(tun),
            (Some(Due::Attached(id) | Due::PolicySet(id)), HelperReply::Failed { box_id, reason })
                if id == box_id =>
            {
                self.refuse(id, &reason)
            }
            (Some(Due::Counted(id, _)), HelperReply::Failed { box_id, .. }) if id == box_id => {}
            // Who answers what was not asked cannot be believed in anything.
            _ => self.lose("it said what nobody had asked").await,
        }
    }

    /// The box is served, by its present policy.
    fn in_force(&mut self, id: BoxId) {
        let confined = self.helper.as_ref().map_or(String::new(), |helper| helper.confined.clone());
        let Some(attached) = self.boxes.get_mut(&id) else { return };
        if let Some(waits) = attached.attaching.take() {
            let _ = waits.send(Ok(confined));
        }
    }

    fn refuse(&mut self, id: BoxId, why: &str) {
        let Some(attached) = self.boxes.get_mut(&id) else { return };
        for waits in attached.setting.drain(..) {
            let _ = waits.send(Err(why.to_owned()));
        }
        match attached.attaching.take() {
            Some(waits) => {
                let _ = waits.send(Err(why.to_owned()));
                self.closing.extend(self.boxes.remove(&id).map(|attached| attached.tun));
            }
            None => attached.ledger.record(vec![outage(why, "the box has no network any more")], 0),
        }
    }

    /// The helper is gone, or as good as. Everybody is told, and another one started.
    async fn lose(&mut self, why: &str) {
        tracing::warn!(why, "the network helper is gone; starting another");
        // Ends it, if it has not ended.
        self.helper = None;
        for (_, due) in std::mem::take(&mut self.due) {
            match due {
                Due::Counted(id, waits) => {
                    if let Some(attached) = self.boxes.get(&id) {
                        let _ = waits.send(attached.ledger.total());
                    }
                }
                Due::Detached(_, tun) => self.closing.push(tun),
                Due::Attached(_) | Due::PolicySet(_) => {}
            }
        }
        for attached in self.boxes.values().filter(|attached| attached.attaching.is_none()) {
            attached.ledger.begin_anew();
            attached.ledger.record(
                vec![outage(
                    why,
                    "connections that were open are gone; the network comes back by itself, try again",
                )],
                0,
            );
        }
        if self.started.elapsed() >= SOUND {
            self.failed_starts = 0;
        }
        let severed: Vec<(BoxId, i32)> =
            self.boxes.iter().map(|(id, attached)| (*id, attached.init)).collect();
        match self.start().await {
            Ok(()) => {
                let search = move || connections::of_boxes(&severed);
                self.searcher = Some(tokio::task::spawn_blocking(search));
            }
            Err(why) => {
                let ids: Vec<BoxId> = self.boxes.keys().copied().collect();
                for id in ids {
                    self.refuse(id, &why);
                }
            }
        }
    }

    /// Starts a helper and gives it every box. After some failures it is left to the next request.
    async fn start(&mut self) -> Result<(), String> {
        let mut pause = FIRST_PAUSE;
        loop {
            self.failed_starts += 1;
            match Helper::start(&self.program).await {
                Ok(helper) => {
                    tracing::debug!(confined = helper.confined, "the network helper serves");
                    self.helper = Some(helper);
                    self.started = Instant::now();
                    break;
                }
                Err(why) if self.failed_starts >= MAX_STARTS => {
                    self.failed_starts = 0;
                    tracing::error!(why, "the network helper cannot be started");
                    return Err(format!("the network helper cannot be started: {why}"));
                }
                Err(why) => tracing::warn!(why, "the network helper did not start"),
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        self.surroundings = Surroundings::look();
        let ids: Vec<BoxId> = self.boxes.keys().copied().collect();
        for id in ids {
            self.attach(id).await;
        }
        // With the box comes its policy.
        for attached in self.boxes.values_mut() {
            for waits in attached.setting.drain(..) {
                let _ = waits.send(Ok(()));
            }
        }
        Ok(())
    }

    async fn look(&mut self) {
        if self.due.front().is_some_and(|(since, _)| since.elapsed() > REPLY_LIMIT) {
            return self.lose("it does not answer").await;
        }
        if self.boxes.is_empty() || self.helper.is_none() {
            return;
        }
        let now = Surroundings::look();
        if now != self.surroundings {
            self.surroundings = now;
            let Surroundings { resolvers, own } = self.surroundings.clone();
            self.request(&HelperRequest::Surroundings { resolvers, own }, None).await;
        }
    }
}

fn outage(why: &str, hint: &str) -> Denial {
    Denial::new(DenialKind::Outage, "the box's network", format!("the network helper: {why}"), hint)
}
