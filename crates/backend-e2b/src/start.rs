//! Making a session: a sandbox, the places that its box is to have, and the record of what holds it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use sandcrate_backend::{
    BackendError, DiskLimit, Mount, MountAccess, SessionInfo, SessionSpec, check_target,
};
use sandcrate_e2b_wire::control::{NewSandbox, Sandbox, SandboxDetail};

use crate::NAME;
use crate::control::Control;
use crate::envd::{Envd, Peer, User};
use crate::helper;
use crate::http::EndpointError;
use crate::network::traffic;
use crate::places::Places;
use crate::record::record;
use crate::session::{LIFETIME_SECONDS, Parts, Session};
use crate::sync::Shares;

/// Metadata of our sandboxes: whose they are. The first two tell them from those of others with the same key.
pub(crate) const STATE: &str = "sandcrate.instance";
pub(crate) const OWNER: &str = "sandcrate.owner";
const SESSION: &str = "sandcrate.session";
/// As LangBot's runtime has it.
const HOST_MOUNT: &str = "host-mount";
/// Of one value, as endpoints take it.
const METADATA_BYTES: usize = 1000;
const WORKSPACE: &str = "/workspace";
const REMOTE_WORKSPACE: &str = "/home/user/workspace";

/// Makes the directories and says of each whether it can be written; first the home and the user. The first argument is
/// the workspace. What would begin in the root itself, or is there and empty, becomes a link into the home: a root may be
/// small and in memory. What is mounted stays.
const PREPARE: &str = r#"h=${HOME:-/}; w=$1; shift
printf '%s\n' "$h"; id -un 2>/dev/null || echo user
for d; do
  t=${d#/}; t=/${t%%/*}
  if [ "$t" = "$w" ] && [ ! -L "$t" ]; then rmdir -- "$t" 2>/dev/null; fi
  if [ ! -e "$t" ]; then
    if [ "$t" = "$w" ]; then l=$h/workspace; else l=$h/.sandcrate$t; fi
    mkdir -p -- "$l" && ln -s -- "$l" "$t"
  fi 2>/dev/null
  if mkdir -p -- "$d" 2>/dev/null && [ -w "$d" ]; then echo yes; else echo no; fi
done"#;
/// The same by root, for directories that are not there. The first argument is who gets them.
const PREPARE_BY_ROOT: &str = r#"u=$1; shift
for d; do if [ ! -e "$d" ] && mkdir -p -- "$d" 2>/dev/null && chown "$u" "$d" 2>/dev/null; then echo yes; else echo no; fi; done"#;

/// What belongs to every session of an instance.
#[derive(Debug, Clone)]
pub(crate) struct Workshop {
    pub(crate) control: Control,
    pub(crate) state_id: String,
    pub(crate) owner: String,
    pub(crate) state_dir: PathBuf,
    pub(crate) default_image: String,
}

/// A sandbox that is there.
struct There {
    envd: Envd,
    sandbox: String,
    given: Arc<BTreeMap<String, String>>,
}

/// Refuses what can be known to fail before anything is made.
pub(crate) fn check(spec: &SessionSpec) -> Result<(), BackendError> {
    spec.validate()?;
    traffic(&spec.network)?;
    if let DiskLimit::Hard(_) = spec.limits.disk {
        return Err(BackendError::Unsupported {
            backend: NAME,
            what: "a hard disk quota".to_owned(),
            hint: "the disk of a sandbox is its template's; ask for an accounted one, or for another backend"
                .to_owned(),
        });
    }
    Ok(())
}

impl Workshop {
    /// Opens what is to be shared; off the async threads.
    pub(crate) async fn open_shares(&self, spec: &SessionSpec) -> Result<Shares, BackendError> {
        let (mounts, storage, workspace) =
            (spec.mounts.clone(), spec.storage.clone(), spec.workspace.clone());
        let own_state = vec![self.state_dir.clone()];
        let open = move || {
            let kept =
                storage.map(|storage| kept_workspace(&storage, &workspace, &mounts)).transpose()?.flatten();
            Shares::open(&mounts.into_iter().chain(kept).collect::<Vec<_>>(), &own_state)
        };
        let opened = tokio::task::spawn_blocking(open).await;
        opened.unwrap_or_else(|error| {
            Err(BackendError::failed("opening shared directories", std::io::Error::other(error)))
        })
    }

    /// Makes a sandbox for the specification.
    pub(crate) async fn make(&self, spec: SessionSpec, number: u64) -> Result<Arc<Session>, BackendError> {
        let began = Instant::now();
        let shares = self.open_shares(&spec).await?;
        let wanted = self.wanted(&spec)?;
        let made =
            self.control.create(&wanted).await.map_err(|error| create_error(&wanted.template_id, error))?;
        let sandbox = made.sandbox_id.clone();
        let backend_id = sandbox.clone();
        match self.furnish(spec, &made, shares, number, backend_id, began).await {
            Ok(session) => Ok(session),
            Err(error) => {
                if let Err(left) = self.control.kill(&sandbox).await {
                    tracing::warn!(
                        sandbox,
                        error = &left as &dyn std::error::Error,
                        "a failed start left its sandbox"
                    );
                }
                Err(error)
            }
        }
    }

    fn wanted(&self, spec: &SessionSpec) -> Result<NewSandbox, BackendError> {
        let traffic = traffic(&spec.network)?;
        let template = match &spec.image {
            Some(image) if !image.is_empty() && *image != self.default_image => image.clone(),
            _ => self.control.access.template.clone(),
        };
        let mut metadata = BTreeMap::from([
            (STATE.to_owned(), self.state_id.clone()),
            (OWNER.to_owned(), self.owner.clone()),
            (SESSION.to_owned(), spec.id.to_string()),
        ]);
        if !spec.mounts.is_empty() {
            metadata.insert(HOST_MOUNT.to_owned(), host_mounts(&spec.mounts));
        }
        Ok(NewSandbox {
            template_id: template,
            timeout: Some(LIFETIME_SECONDS),
            allow_internet_access: Some(traffic.internet),
            network: traffic.rules,
            metadata,
            env_vars: spec.env.iter().cloned().collect(),
            ..NewSandbox::default()
        })
    }

    async fn furnish(
        &self,
        spec: SessionSpec,
        made: &Sandbox,
        shares: Shares,
        number: u64,
        backend_id: String,
        began: Instant,
    ) -> Result<Arc<Session>, BackendError> {
        let access = &self.control.access;
        let base =
            |peer| access.sandbox_url(&made.sandbox_id, made.domain.as_deref(), peer == Peer::Sandcrate);
        let envd = Envd::new(self.control.http.clone(), made, base);
        let given = Arc::new(spec.env.iter().cloned().collect());
        let there = There { envd, sandbox: made.sandbox_id.clone(), given };
        self.settle_in(spec, there, shares, number, backend_id, began).await
    }

    /// The same for a sandbox that is there already.
    async fn settle_in(
        &self,
        spec: SessionSpec,
        there: There,
        shares: Shares,
        number: u64,
        backend_id: String,
        began: Instant,
    ) -> Result<Arc<Session>, BackendError> {
        let There { envd, sandbox, given } = there;
        let (places, detail) =
            tokio::join!(prepare(&envd, &spec, shares.directories()), self.control.detail(&sandbox));
        let places = places.map_err(EndpointError::unavailable)?;
        let detail: Option<SandboxDetail> = detail.ok();
        shares.place(&places).await;
        let enforcement = record(&spec, detail.as_ref(), envd.peer, &places);
        spec.strictness.check(&enforcement)?;
        let report = shares.push(&envd).await?;
        if let Some(text) = report.text() {
            tracing::info!(
                session.id = spec.id.as_str(),
                text,
                "not everything that is shared is in the sandbox"
            );
        }
        let info = SessionInfo {
            id: spec.id.clone(),
            backend: NAME,
            backend_id,
            enforcement,
            start_time: began.elapsed(),
        };
        let control = self.control.clone();
        Ok(Session::new(Parts { info, number, spec, sandbox, given, control, envd, places, shares }))
    }

    /// Another box of a session in the sandbox that it has: everything in it is ended, the private files stay.
    pub(crate) async fn remake(
        &self,
        old: &Session,
        spec: SessionSpec,
        shares: Shares,
        number: u64,
    ) -> Result<Arc<Session>, BackendError> {
        let began = Instant::now();
        old.leave("it was made anew").await;
        helper::run(&old.envd, User::Default, EMPTY, &[], Bytes::new())
            .await
            .map_err(EndpointError::unavailable)?;
        let backend_id = format!("{}.{number}", old.sandbox);
        let there =
            There { envd: old.envd.clone(), sandbox: old.sandbox.clone(), given: Arc::clone(&old.given) };
        self.settle_in(spec, there, shares, number, backend_id, began).await
    }
}

/// Ends every process that its user may end, but this one, and empties /tmp.
const EMPTY: &str = r#"kill -9 -1 2>/dev/null; find /tmp -mindepth 1 -delete 2>/dev/null; true"#;

/// Makes what the box is to have, as its user and then as root; what neither can make lies elsewhere.
async fn prepare(envd: &Envd, spec: &SessionSpec, shared: &[String]) -> Result<Places, EndpointError> {
    const WHAT: &str = "making the box's directories";
    let workspace = check_target(&spec.workspace).unwrap_or_else(|_| spec.workspace.clone());
    let mut wanted = vec![workspace.clone(), spec.workdir.clone()];
    wanted.extend(shared.iter().cloned());
    wanted.sort();
    wanted.dedup();
    let mut arguments: Vec<&str> = [&workspace].into_iter().chain(&wanted).map(String::as_str).collect();
    let output = helper::run(envd, User::Default, PREPARE, &arguments, Bytes::new()).await?.succeeded()?;
    let text = String::from_utf8_lossy(&output).into_owned();
    let mut lines = text.lines();
    let (Some(home), Some(user)) = (lines.next(), lines.next()) else {
        return Err(EndpointError::Malformed { what: WHAT, problem: "it says nothing".to_owned() });
    };
    let mut refused = refused(&wanted, lines);
    if !refused.is_empty() && envd.peer == Peer::Other {
        arguments = [user].into_iter().chain(refused.iter().map(String::as_str)).collect();
        // A template without root has nobody to make them.
        if let Ok(done) = helper::run(envd, User::Root, PREPARE_BY_ROOT, &arguments, Bytes::new()).await
            && let Ok(output) = done.succeeded()
        {
            refused = self::refused(&refused, String::from_utf8_lossy(&output).lines());
        }
    }
    let places = Places::moved(&refused, &workspace, home);
    let elsewhere: Vec<String> = refused.iter().map(|path| places.remote(path)).collect();
    if !elsewhere.is_empty() {
        let arguments: Vec<&str> = elsewhere.iter().map(String::as_str).collect();
        helper::run(envd, User::Default, r#"mkdir -p -- "$@""#, &arguments, Bytes::new())
            .await?
            .succeeded()?;
    }
    Ok(places)
}

fn refused<'a>(wanted: &[String], answers: impl Iterator<Item = &'a str>) -> Vec<String> {
    wanted.iter().zip(answers).filter(|(_, answer)| *answer != "yes").map(|(path, _)| path.clone()).collect()
}

/// The private workspace of a session that is kept, unless something else is mounted there.
fn kept_workspace(storage: &Path, workspace: &str, mounts: &[Mount]) -> Result<Option<Mount>, BackendError> {
    let workspace = check_target(workspace)?;
    let taken =
        mounts.iter().any(|mount| check_target(&mount.target).is_ok_and(|target| target == workspace));
    if taken {
        return Ok(None);
    }
    let failed = |error| BackendError::failed("making the session's storage", error);
    std::fs::create_dir_all(storage.join("workspace")).map_err(failed)?;
    // A part of our own state, which whoever asks for it vouches for.
    let storage = storage.canonicalize().map_err(failed)?;
    let mut mount = Mount::new(storage.join("workspace"), workspace, MountAccess::ReadWrite);
    mount.within = Some(storage);
    Ok(Some(mount))
}

/// What LangBot's runtime tells of its mounts; as many as metadata may hold, for people alone.
fn host_mounts(mounts: &[Mount]) -> String {
    let mut told: Vec<serde_json::Value> = Vec::new();
    let mut bytes = 2;
    for mount in mounts {
        let target = check_target(&mount.target).unwrap_or_else(|_| mount.target.clone());
        let below = target.strip_prefix(WORKSPACE).filter(|rest| rest.is_empty() || rest.starts_with('/'));
        let mapped = below.map_or(target.clone(), |rest| format!("{REMOTE_WORKSPACE}{rest}"));
        let entry = serde_json::json!({
            "hostPath": mount.source.to_string_lossy(),
            "mountPath": mapped,
            "readOnly": mount.access == MountAccess::ReadOnly,
        });
        bytes += entry.to_string().len() + 1;
        if bytes > METADATA_BYTES {
            break;
        }
        told.push(entry);
    }
    serde_json::Value::Array(told).to_string()
}

fn create_error(template: &str, error: EndpointError) -> BackendError {
    match &error {
        EndpointError::Refused { status: 400 | 404, message, .. } if message.contains("template") => {
            BackendError::ImageUnavailable {
                backend: NAME,
                image: template.to_owned(),
                why: format!("the endpoint has no such template: {message}"),
            }
        }
        _ => error.unavailable(),
    }
}
