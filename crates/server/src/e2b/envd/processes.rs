//! The programs that were started in a sandbox, as its clients know them: by a number or a tag, with what they were
//! asked to be. Whether one still runs is the runtime's to say.

use std::collections::BTreeMap;
use std::sync::Mutex;

use sandcrate_e2b_wire::process::{ProcessConfig, ProcessInfo, Selector};
use sandcrate_runtime::{CommandId, Runtime, RuntimeError};
use tokio::sync::OnceCell;

use super::super::error::Failed;
use super::super::sandbox::locked;

#[derive(Debug, Clone)]
pub(crate) struct Known {
    pub(super) config: ProcessConfig,
    pub(super) tag: Option<String>,
    pub(super) pty: bool,
    pub(super) stdin: bool,
}

/// Of one sandbox. What has ended is forgotten when the next is started, so there are as many as may run.
#[derive(Debug, Default)]
pub(crate) struct Processes {
    started: Mutex<BTreeMap<u32, Known>>,
    /// Whether the box has a bash, once it was looked for.
    pub(super) bash: OnceCell<bool>,
}

/// The runtime's name of a process.
pub(super) fn command(pid: u32) -> CommandId {
    CommandId(pid.to_string())
}

impl Processes {
    /// Asks what runs while nobody else can add: an answer of before would not have what was started since, which would
    /// then be forgotten.
    pub(super) fn add<E>(
        &self,
        pid: u32,
        known: Known,
        running: impl FnOnce() -> Result<Vec<u32>, E>,
    ) -> Result<(), E> {
        let mut started = locked(&self.started);
        let running = running()?;
        started.retain(|pid, _| running.contains(pid));
        started.insert(pid, known);
        Ok(())
    }

    pub(crate) fn clear(&self) {
        locked(&self.started).clear();
    }

    /// One that runs.
    pub(super) fn select(
        &self,
        runtime: &Runtime,
        sandbox: &str,
        wanted: &Selector,
    ) -> Result<(u32, Known), Failed> {
        let found = {
            let started = locked(&self.started);
            match wanted {
                Selector::Pid(pid) => started.get(pid).map(|known| (*pid, known.clone())),
                Selector::Tag(tag) => {
                    let mut tagged =
                        started.iter().rev().filter(|(_, known)| known.tag.as_ref() == Some(tag));
                    tagged.next().map(|(pid, known)| (*pid, known.clone()))
                }
            }
        };
        let runs = |pid: u32| runtime.command(sandbox, &command(pid)).is_ok_and(|command| command.running);
        found.filter(|(pid, _)| runs(*pid)).ok_or_else(|| not_found(wanted))
    }

    pub(super) fn list(&self, running: &[u32]) -> Vec<ProcessInfo> {
        let started = locked(&self.started);
        let running = started.iter().filter(|(pid, _)| running.contains(pid));
        running
            .map(|(pid, known)| ProcessInfo {
                config: known.config.clone(),
                pid: *pid,
                tag: known.tag.clone(),
            })
            .collect()
    }
}

/// The numbers of what runs.
pub(super) fn running(runtime: &Runtime, sandbox: &str) -> Result<Vec<u32>, RuntimeError> {
    let commands = runtime.commands(sandbox)?.into_iter().filter(|command| command.running);
    Ok(commands.filter_map(|command| command.id.0.parse().ok()).collect())
}

fn not_found(wanted: &Selector) -> Failed {
    use sandcrate_e2b_wire::connect::Code;

    let which = match wanted {
        Selector::Pid(pid) => format!("pid {pid}"),
        Selector::Tag(tag) => format!("tag {}", tag.chars().take(64).collect::<String>()),
    };
    Failed::new(Code::NotFound, format!("no process with {which} runs in this sandbox"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_started_beside_others_is_not_forgotten() {
        let processes = Processes::default();
        let running = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for first in 0..4 {
                let (processes, running) = (&processes, &running);
                scope.spawn(move || {
                    for pid in (first..2000).step_by(4) {
                        locked(running).push(pid);
                        let known =
                            Known { config: ProcessConfig::default(), tag: None, pty: false, stdin: true };
                        processes.add(pid, known, || Ok::<_, ()>(locked(running).clone())).unwrap();
                    }
                });
            }
        });
        assert_eq!(processes.list(&locked(&running)).len(), 2000);
    }
}
