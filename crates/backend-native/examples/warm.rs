//! Many commands in one session, or many sessions: something to hold a profiler at.
//! Usage: warm [COUNT] [cold]

use std::time::{Duration, Instant};

use sandcrate_backend::{Backend, ExecRequest, SessionId, SessionSpec};
use sandcrate_backend_native::{NativeBackend, NativeConfig};

fn main() {
    sandcrate_jail::dispatch_role();
    let count: u32 = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(100);
    let cold = std::env::args().nth(2).is_some();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let backend = NativeBackend::open(NativeConfig::for_this_user()).await.expect("a backend");
        let mut times: [Vec<Duration>; 3] = Default::default();
        for round in 0..if cold { count } else { 1 } {
            let id = SessionId::new(format!("s{round}")).expect("an id");
            let begin = Instant::now();
            backend.start(SessionSpec::new(id.clone())).await.expect("a session");
            times[0].push(begin.elapsed());
            for _ in 0..if cold { 1 } else { count } {
                let begin = Instant::now();
                let execution = backend.exec(&id, ExecRequest::argv(["/bin/true"])).await.expect("a command");
                execution.collect(1024).await.expect("its end");
                times[1].push(begin.elapsed());
            }
            let begin = Instant::now();
            backend.stop(&id).await.expect("the end");
            times[2].push(begin.elapsed());
        }
        for (name, times) in ["start", "exec", "stop"].iter().zip(&mut times) {
            times.sort();
            eprintln!(
                "{name}: p10 {:?} p50 {:?} p95 {:?}",
                times[times.len() / 10],
                times[times.len() / 2],
                times[times.len() * 95 / 100]
            );
        }
        backend.shutdown().await;
    });
}
