//! Moving bytes between a command's pipes (or terminal) and its caller.

use std::sync::Arc;
use std::time::Duration;

use sandcrate_backend::{ExecEvent, Stream};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use crate::fd_io::{CHUNK, FdIo};
use crate::streams::Output;

/// How long a consumer that does not read holds the command up before its output is dropped.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// A terminal that has been quiet for so long has nothing more to say; and how long it may go on saying it.
const TERMINAL_REST: Duration = Duration::from_millis(20);
const TERMINAL_LIMIT: Duration = Duration::from_millis(200);

/// Moves input to the program until either side has had enough.
pub(crate) async fn feed(
    stdin: Option<Arc<FdIo>>,
    mut input: mpsc::Receiver<bytes::Bytes>,
    mut finished: watch::Receiver<bool>,
) {
    let Some(stdin) = stdin else { return };
    let work = async {
        while let Some(data) = input.recv().await {
            // A program that closed its input wants no more of it.
            if stdin.write_all(&data).await.is_err() {
                break;
            }
        }
    };
    tokio::select! {
        () = work => {}
        _ = finished.wait_for(|done| *done) => {}
    }
}

/// Moves one stream's output to the caller. When the program has ended, what waits in the pipe is still taken;
/// what children write later is drained and thrown away, so that no closed pipe kills them. An output that is left
/// behind has been read to its end. Returns the bytes dropped because the caller did not take them.
pub(crate) async fn pump(
    stream: Stream,
    output: &mut Option<Output>,
    events: mpsc::Sender<ExecEvent>,
    mut finished: watch::Receiver<bool>,
    drains: Arc<tokio::sync::Semaphore>,
    terminal: bool,
) -> u64 {
    let Some(Output { io, held }) = output.as_mut() else { return 0 };
    let mut sink = Sink::new(stream, events);
    loop {
        let data = tokio::select! {
            biased;
            data = io.read() => data,
            _ = finished.wait_for(|done| *done) => break,
        };
        match data {
            Ok(data) if !data.is_empty() => sink.push(data).await,
            _ => return sink.dropped,
        }
    }
    if terminal {
        // A terminal hands on what was written a little later; it is at rest when nothing has come for a while.
        let rest = async {
            while let Ok(Ok(data)) = timeout(TERMINAL_REST, io.read()).await {
                if data.is_empty() {
                    break;
                }
                sink.push(data).await;
            }
        };
        // A program that was left behind may write for ever.
        let _ = timeout(TERMINAL_LIMIT, rest).await;
    }
    drop(held.take());
    if !take_rest(io, &mut sink).await
        && let Some(Output { io, .. }) = output.take()
        && let Ok(permit) = drains.try_acquire_owned()
    {
        // Ends with the last writer, at the latest with the box.
        tokio::spawn(async move {
            while io.read().await.is_ok_and(|data| !data.is_empty()) {}
            drop(permit);
        });
    }
    sink.dropped
}

/// Takes what waits in the pipe of a program that has ended, and says whether that is the end of it: children may write
/// on, and for ever.
async fn take_rest(io: &FdIo, sink: &mut Sink) -> bool {
    let mut most = CHUNK;
    let mut first = true;
    while most > 0 {
        match io.read_now(most) {
            Ok(Some(data)) if data.is_empty() => return true,
            Ok(Some(data)) => {
                most = if first { io.waiting() } else { most.saturating_sub(data.len()) };
                first = false;
                sink.push(data).await;
            }
            _ => return false,
        }
    }
    io.is_at_end()
}

/// Where one stream's output goes, and what becomes of it when nobody takes it.
#[derive(Debug)]
pub struct Sink {
    stream: Stream,
    events: mpsc::Sender<ExecEvent>,
    dropped: u64,
    /// False once the caller has let output wait too long: from then on only what fits at once is kept.
    patient: bool,
}

impl Sink {
    pub fn new(stream: Stream, events: mpsc::Sender<ExecEvent>) -> Self {
        Self { stream, events, dropped: 0, patient: true }
    }

    /// Bytes that were not taken in time.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    pub async fn push(&mut self, data: bytes::Bytes) {
        let bytes = data.len() as u64;
        let event = ExecEvent::Output(self.stream, data);
        let taken = if self.patient {
            self.patient = timeout(PATIENCE, self.events.send(event)).await.is_ok_and(|sent| sent.is_ok());
            self.patient
        } else {
            let taken = self.events.try_send(event).is_ok();
            self.patient = taken;
            taken
        };
        if !taken {
            self.dropped += bytes;
        }
    }
}
