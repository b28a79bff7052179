//! Development stand-in: runs commands on the host without any box. Never shipped.
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};
use async_trait::async_trait;
use bytes::Bytes;
use sandcrate_backend::*;
use sandcrate_protocol::{Control, Enforcement};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[derive(Debug)]
pub(crate) struct NativeConfig { pub(crate) state_dir: PathBuf, pub(crate) pool: usize }
impl NativeConfig {
    pub(crate) fn for_this_user() -> Self { Self { state_dir: "/var/lib/sandcrate".into(), pool: 0 } }
}
#[derive(Debug)]
pub(crate) struct NativeBackend(std::sync::Mutex<Option<SessionSpec>>);
impl NativeBackend {
    pub(crate) async fn open(_config: NativeConfig) -> Result<Self, BackendError> { Ok(Self(Default::default())) }
}
#[async_trait]
impl Backend for NativeBackend {
    fn name(&self) -> &'static str { "native" }
    fn capabilities(&self) -> Capabilities {
        Capabilities { pty: true, files: true, writable_root: true, host_network: true, host_mounts: true, hard_disk_quota: true, kill_one_command: true }
    }
    async fn probe(&self) -> Result<(), BackendError> { Ok(()) }
    async fn start(&self, spec: SessionSpec) -> Result<SessionInfo, BackendError> {
        let id = spec.id.clone();
        *self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(spec);
        let mut enforcement = Enforcement::new();
        for control in Control::ALL { enforcement.absent(control, "stub"); }
        enforcement.enforced(Control::Memory, "cgroup v1 memory");
        enforcement.degraded(Control::Cpu, "none");
        Ok(SessionInfo { id, backend: "native", enforcement, start_time: Duration::from_millis(1) })
    }
    async fn exec(&self, _session: &SessionId, request: ExecRequest) -> Result<Execution, BackendError> {
        let spec = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        let spec = spec.ok_or_else(|| BackendError::invalid("x", "y"))?;
        let Command::Argv(argv) = request.command.clone() else { return Err(BackendError::invalid("a", "b")) };
        let (execution, ends) = Execution::channel(request.stdin);
        let program = argv[0].to_string_lossy().into_owned();
        let mut child = tokio::process::Command::new(&argv[0]).args(&argv[1..]).envs(spec.env).kill_on_drop(true)
            .stdin(if request.stdin == StdinMode::Piped { Stdio::piped() } else { Stdio::null() }).stdout(Stdio::piped()).stderr(Stdio::piped())
            .spawn().map_err(|error| if error.kind() == std::io::ErrorKind::NotFound { BackendError::CommandNotFound { program } } else { BackendError::CommandNotExecutable { program, why: error.to_string() } })?;
        tokio::spawn(async move {
            let started = Instant::now();
            let mut ends = ends;
            let pump = |mut pipe: Box<dyn tokio::io::AsyncRead + Send + Unpin>, stream, events: tokio::sync::mpsc::Sender<ExecEvent>| async move {
                let mut buffer = vec![0; 65536];
                while let Ok(length) = pipe.read(&mut buffer).await {
                    if length == 0 || events.send(ExecEvent::Output(stream, Bytes::copy_from_slice(&buffer[..length]))).await.is_err() { break }
                }
            };
            let (Some(out), Some(err)) = (child.stdout.take(), child.stderr.take()) else { return };
            let stdin = child.stdin.take();
            tokio::spawn(async move {
                let Some(mut stdin) = stdin else { return };
                while let Some(data) = ends.stdin.recv().await { if stdin.write_all(&data).await.is_err() { break } }
            });
            let both = async { tokio::join!(pump(Box::new(out), Stream::Stdout, ends.events.clone()), pump(Box::new(err), Stream::Stderr, ends.events.clone())); child.wait().await };
            let (status, timed_out) = tokio::select! {
                status = both => (status, false),
                () = tokio::time::sleep(request.timeout.unwrap_or(Duration::from_secs(100_000))) => (Ok(std::os::unix::process::ExitStatusExt::from_raw(9)), true),
                () = ends.events.closed() => return,
            };
            let Ok(status) = status else { return };
            let status = match status.code() { Some(code) => ExitStatus::Code(code), None => ExitStatus::Signal(std::os::unix::process::ExitStatusExt::signal(&status).unwrap_or(0)) };
            let _ = ends.events.send(ExecEvent::Exit(ExecExit { status, timed_out, usage: Usage { wall: started.elapsed(), ..Usage::default() }, limits_hit: vec![], dropped_bytes: 0 })).await;
        });
        Ok(execution)
    }
    async fn files(&self, _session: &SessionId, _request: FileRequest) -> Result<FileReply, BackendError> { Ok(FileReply::Done) }
    async fn is_alive(&self, _session: &SessionId) -> bool { true }
    async fn stop(&self, _session: &SessionId) -> Result<(), BackendError> { Ok(()) }
    async fn adopt(&self) -> Result<Vec<SessionInfo>, BackendError> { Ok(vec![]) }
    async fn sweep(&self) -> Result<SweepReport, BackendError> { Ok(SweepReport::default()) }
    async fn shutdown(&self) {}
}
