//! Managed processes of sessions, as callers of the runtime have them.

use std::sync::Arc;

use sandcrate_protocol::{ProcessInfo, ProcessSpec};

use super::{Result, Runtime};
use crate::error::RuntimeError;
use crate::output_log::Subscription;
use crate::process::{self, Process};
use crate::relay::Attachment;

impl Runtime {
    /// Starts a managed process; one of the same id is ended first.
    pub async fn start_process(&self, session: &str, spec: &ProcessSpec) -> Result<ProcessInfo> {
        let session = self.inner.existing(session)?;
        let limits = &self.inner.config.limits;
        let _busy = session.use_now();
        let _order = session.processes.order.lock().await;
        session.processes.check_room(&spec.process_id, limits.processes)?;
        self.inner.check_process_room(&session, &spec.process_id)?;
        if let Some(old) = session.processes.get(&spec.process_id) {
            old.stop().await;
        }
        let execution = self.inner.start_in(&session, process::request(spec)).await?;
        let (process, driver) = Process::new(
            session.id.to_string(),
            spec.clone(),
            execution,
            limits.log_bytes,
            Arc::clone(&session.clock),
        );
        session.tasks.spawn(driver);
        let info = process.info();
        session.processes.insert(spec.process_id.clone(), process, limits.exited_processes);
        self.inner.forget_completed();
        Ok(info)
    }

    pub fn process(&self, session: &str, process: &str) -> Result<ProcessInfo> {
        self.managed(session, process).map(|process| process.info())
    }

    /// Whether [`Self::attach_process`] has anything to give; asked before a connection is made for it.
    pub fn check_attachable(&self, session: &str, process: &str) -> Result<()> {
        self.managed(session, process)?.check_attachable()
    }

    pub fn processes(&self, session: &str) -> Result<Vec<ProcessInfo>> {
        Ok(self.inner.existing(session)?.processes.infos())
    }

    /// Ends the program and its children, and forgets the process. An ended one is only forgotten.
    pub async fn stop_process(&self, session: &str, process: &str) -> Result<()> {
        let managed = self.managed(session, process)?;
        let session = self.inner.existing(session)?;
        let _order = session.processes.order.lock().await;
        managed.stop().await;
        session.processes.remove(process);
        session.clock.touch();
        Ok(())
    }

    pub async fn signal_process(&self, session: &str, process: &str, signal: i32) -> Result<()> {
        self.managed(session, process)?.signal(signal).await
    }

    /// What is kept of both streams, then what follows.
    pub fn process_log(&self, session: &str, process: &str) -> Result<Subscription> {
        self.managed(session, process).map(|process| process.log())
    }

    /// The exclusive line to a process. With `wait`, until whoever has it leaves; else a conflict at once.
    pub async fn attach_process(&self, session: &str, process: &str, wait: bool) -> Result<Attachment> {
        self.managed(session, process)?.attach(wait).await
    }

    fn managed(&self, session: &str, process: &str) -> Result<Arc<Process>> {
        let found = self.inner.existing(session)?.processes.get(process);
        found.ok_or_else(|| RuntimeError::ProcessNotFound {
            session: session.to_owned(),
            process: process.to_owned(),
        })
    }
}
