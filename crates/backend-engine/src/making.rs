//! From a specification to a live session: storage, container, connection, record.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bollard::models::ContainerInspectResponse;
use sandcrate_backend::{
    BackendError, DiskLimit, Limits, MountAccess, Network, RootAccess, SessionInfo, SessionSpec, check_target,
};
use sandcrate_driver::{AsyncChannel, Bound, check_tun_device, make_device_in};
use sandcrate_jail::message::InitReply;
use sandcrate_protocol::Enforcement;
use tokio::sync::SemaphorePermit;
use tokio::time::timeout;

use crate::backend::Shared;
use crate::config::EngineKind;
use crate::container::{Maker, body};
use crate::engine::{CreateError, Engine};
use crate::link::Listener;
use crate::record;
use crate::session::{Parts, Session};
use crate::slots::Caller;
use crate::sources::{Source, exchanged, open_source};
use crate::storage::Storage;
use crate::usage::Cgroups;
use crate::volumes::Volume;

/// From a started container to its init's first word.
const GUEST_LIMIT: Duration = Duration::from_secs(30);
/// What it takes as a rule.
const GUEST_USUAL: Duration = Duration::from_secs(2);
/// The home of the box's user, which is root without capabilities.
const HOME: &str = "/root";
/// The directory of the root that is the guest's.
const OWN_PLACE: &str = ".sandcrate";
/// Enough for any reference that a registry takes.
const MAX_IMAGE_BYTES: usize = 512;

/// Why a start is given up.
const UNWANTED: &str = "nobody waits for the box any more";

/// An engine that did not answer in time may still do what it was asked for.
const LATE_LOOKS: u32 = 60;
const LATE_PAUSE: Duration = Duration::from_secs(2);

/// A container that goes when nobody takes it over. Until the engine has told its id it is known by its name.
struct Made {
    engine: Engine,
    id: Option<String>,
    /// Whether it is known to be there.
    certain: bool,
}

impl Drop for Made {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            let (engine, certain) = (self.engine.clone(), self.certain);
            // What this misses is swept.
            if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                runtime.spawn(async move {
                    for _ in 0..LATE_LOOKS {
                        match engine.remove(&id).await {
                            Ok(there) if there || certain => return,
                            _ => tokio::time::sleep(LATE_PAUSE).await,
                        }
                    }
                    // It is asked again with the next sweep.
                    engine.leave(id);
                });
            }
        }
    }
}

/// Refuses what no container can be.
pub(crate) fn check(shared: &Shared, spec: &SessionSpec) -> Result<(), BackendError> {
    spec.validate()?;
    let unsupported = |what: &str, hint: &str| {
        let (what, hint) = (what.to_owned(), hint.to_owned());
        Err(BackendError::Unsupported { backend: shared.engine.kind.name(), what, hint })
    };
    if let Network::Isolated(isolation) = &spec.network {
        if !rustix::process::geteuid().is_root() {
            return unsupported(
                "an isolated network without root",
                "the container's network namespace cannot be entered; run Sandcrate as root, choose `off`, or the native backend",
            );
        }
        isolation.policy.check_against(&isolation.grants)?;
        check_tun_device()?;
        shared.networks.wake();
    }
    if matches!(spec.limits.disk, DiskLimit::Hard(_)) {
        return unsupported("a hard disk quota", "ask for an accounted one, or choose the native backend");
    }
    if spec.root == RootAccess::Writable && spec.storage.is_some() {
        return unsupported(
            "keeping a writable root",
            "the container's own layer goes with it; keep files in the workspace, or choose the native backend",
        );
    }
    if let Some(image) = &spec.image
        && (image.is_empty()
            || image.len() > MAX_IMAGE_BYTES
            || image.chars().any(|c| c.is_control() || c == ' '))
    {
        return Err(BackendError::invalid("image", "must be the name of an image, of at most 512 bytes"));
    }
    let mounts = spec.mounts.iter().map(|mount| ("mount target", mount.target.as_str()));
    for (field, path) in mounts.chain([("workspace", spec.workspace.as_str())]) {
        // A path component named like ours, whatever stands around it.
        if check_target(path)?.split('/').nth(1) == Some(OWN_PLACE) {
            let problem = format!(
                "`{}` is reserved: /{OWN_PLACE} and all below belong to the box",
                path.escape_debug()
            );
            return Err(BackendError::invalid(field, problem));
        }
    }
    Ok(())
}

/// Makes a box; on the files of an earlier one of its session, if `held` has them. When it fails, they are there
/// again.
pub(crate) async fn make(
    shared: &Arc<Shared>,
    spec: SessionSpec,
    held: &mut Option<Storage>,
    caller: &mut Caller,
) -> Result<Arc<Session>, BackendError> {
    let started = Instant::now();
    let turn = turn(shared, caller).await?;
    let own = shared.instance.box_directory(shared.next_box.fetch_add(1, Ordering::Relaxed));
    let (spec, sources) = open_sources(shared, spec).await?;
    let storage = prepare(&spec, own, held).await?;
    let listener = Listener::bind(&storage.link_path())
        .map_err(|error| BackendError::failed("making the box's socket", error))?;
    let image = spec.image.clone().unwrap_or_else(|| shared.config.image.clone());
    let (mut made, _turn) = create(shared, turn, &spec, &image, storage, &sources, caller).await?;
    let container = made.id.clone().unwrap_or_default();
    shared.engine.start(&container, &image).await?;
    // Whoever else comes finds nobody.
    let (control, pid, mut enforcement) = greet(shared, listener, &container, &image).await?;
    let inspected = shared.engine.inspect(&container).await?;
    check_peer(shared, &inspected, pid).await?;
    let sources = compare(sources, pid, &mut enforcement).await?;
    let host_user = host_root(pid);
    if let Some(owner) = host_user {
        give_to(storage.counted(), owner).await?;
    }
    let (inspected, volumes) = volumes(shared.engine.kind, inspected).await?;
    let network = match &spec.network {
        Network::Isolated(isolation) => {
            let tun = make_device_in(pid).await?;
            Some(shared.networks.attach_to(tun, pid, isolation, &mut enforcement).await?)
        }
        _ => None,
    };
    record::complete(&mut enforcement, &spec, &inspected, pid, &volumes);
    spec.strictness.check(&enforcement)?;
    let info = SessionInfo {
        id: spec.id.clone(),
        backend: shared.engine.kind.name(),
        backend_id: container.clone(),
        enforcement,
        start_time: started.elapsed(),
    };
    let image_env = shared.engine.environment(inspected.image.as_deref().unwrap_or(&image)).await?;
    let accounted = accounted(&spec, storage, &sources, volumes);
    made.id = None;
    Ok(Session::new(Parts {
        info,
        accounted,
        spec,
        image_env,
        home: HOME.to_owned(),
        cgroups: Cgroups::of_process(pid),
        engine: shared.engine.clone(),
        container,
        control,
        pid,
        storage: held.take(),
        network,
        host_user,
    }))
}

/// Podman joins what it is told of a mount with commas and takes it apart again: one in a path would be an option.
fn refuse_commas(shared: &Shared, spec: &SessionSpec, sources: &[Source]) -> Result<(), BackendError> {
    let sources = sources.iter().flat_map(|source| [source.path_text.as_str(), source.target.as_str()]);
    let storage = spec.storage.as_ref().and_then(|path| path.to_str());
    let state = shared.config.state_dir.to_str();
    let mut paths = sources.chain([spec.workspace.as_str()]).chain(storage).chain(state);
    match paths.find(|path| path.contains(',')) {
        Some(path) if shared.engine.kind == EngineKind::Podman => Err(BackendError::Unsupported {
            backend: shared.engine.kind.name(),
            what: format!("a comma in a path that is mounted (`{}`)", path.escape_debug()),
            hint: "Podman would read it as an option; rename the directory, or use another backend"
                .to_owned(),
        }),
        _ => Ok(()),
    }
}

/// Opens and checks the mounts, off the async threads.
pub(crate) async fn open_sources(
    shared: &Arc<Shared>,
    spec: SessionSpec,
) -> Result<(SessionSpec, Vec<Source>), BackendError> {
    let state = shared.config.state_dir.clone();
    let work = move || {
        let state: Vec<PathBuf> = state.canonicalize().into_iter().collect();
        let sources =
            spec.mounts.iter().map(|mount| open_source(mount, &state)).collect::<Result<Vec<_>, _>>()?;
        Ok::<_, BackendError>((spec, sources))
    };
    let (spec, sources) = blocking("checking the session's mounts", work).await??;
    refuse_commas(shared, &spec, &sources)?;
    Ok((spec, sources))
}

/// Makes the directories of a box, or takes those that are held.
async fn prepare<'a>(
    spec: &SessionSpec,
    own: PathBuf,
    held: &'a mut Option<Storage>,
) -> Result<&'a Storage, BackendError> {
    let (earlier, kept) = (held.take(), spec.storage.clone());
    let work = move || match earlier {
        Some(mut storage) => {
            let again = storage.again(own);
            Ok((storage, again))
        }
        None => Storage::create(own, kept.as_deref()).map(|storage| (storage, Ok(()))),
    };
    let (storage, outcome) = blocking("preparing the session's files", work).await??;
    let storage = held.insert(storage);
    outcome.map(|()| &*storage)
}

/// Does what blocks off the async threads.
async fn blocking<T: Send + 'static>(
    step: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, BackendError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| BackendError::failed(step, std::io::Error::other(error)))
}

/// Waits until the engine may be asked for another container.
async fn turn<'a>(shared: &'a Shared, caller: &mut Caller) -> Result<SemaphorePermit<'a>, BackendError> {
    let unavailable = |why: &str| shared.engine.unavailable(why);
    tokio::select! {
        turn = shared.turns.acquire() => turn.map_err(|_| unavailable("it is being shut down")),
        () = caller.gone() => Err(unavailable(UNWANTED)),
    }
}

/// Makes the container, and its image when that is missing. A pull takes no turn: others go on meanwhile.
async fn create<'a>(
    shared: &'a Shared,
    mut turn: SemaphorePermit<'a>,
    spec: &SessionSpec,
    image: &str,
    storage: &Storage,
    sources: &[Source],
    caller: &mut Caller,
) -> Result<(Made, SemaphorePermit<'a>), BackendError> {
    let guest = shared.instance.guest.to_string_lossy();
    let resolver = shared.instance.resolver.to_string_lossy();
    let maker = Maker {
        state: &shared.instance.state_id,
        owner: shared.instance.name(),
        guest: &guest,
        resolver: &resolver,
        home: HOME,
    };
    let body = body(spec, image, maker, storage, sources);
    let name = container_name(spec, shared.instance.name(), shared.next_box.load(Ordering::Relaxed))?;
    // From here on there may be one.
    let mut made = Made { engine: shared.engine.clone(), id: Some(name.clone()), certain: false };
    let mut created = shared.engine.create(&name, &body).await;
    if matches!(created, Err(CreateError::NoImage)) {
        drop(turn);
        // Nothing was made yet.
        made.id = None;
        tokio::select! {
            pulled = shared.pulls.pull(&shared.engine, image, &spec.notices) => pulled?,
            () = caller.gone() => return Err(shared.engine.unavailable(UNWANTED)),
        }
        turn = self::turn(shared, caller).await?;
        made.id = Some(name.clone());
        created = shared.engine.create(&name, &body).await;
    }
    match created {
        Ok(id) => {
            (made.id, made.certain) = (Some(id), true);
            Ok((made, turn))
        }
        Err(error) => {
            // Only an engine that said nothing may have made one all the same: late, or before it went.
            match error {
                CreateError::Other(BackendError::Timeout { .. }) => {}
                CreateError::Other(BackendError::Unavailable { .. }) => {
                    made.id = None;
                    shared.engine.leave(name);
                }
                _ => made.id = None,
            }
            Err(match error {
                CreateError::Other(error) => error,
                CreateError::NoImage => BackendError::ImageUnavailable {
                    backend: shared.engine.kind.name(),
                    image: image.to_owned(),
                    why: "pulling it did not help".to_owned(),
                },
            })
        }
    }
}

/// As LangBot names them: a readable part of the id, and something that is unique.
fn container_name(spec: &SessionSpec, owner: &str, number: u64) -> Result<String, BackendError> {
    let mut readable: String = spec
        .id
        .as_str()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' })
        .take(32)
        .collect();
    readable.truncate(readable.trim_end_matches('-').len());
    let random = sandcrate_driver::instance::random_name()
        .map_err(|error| BackendError::failed("naming a box", error))?;
    Ok(format!("langbot-box-{}-{}-{number}-{}", readable.trim_start_matches('-'), &owner[..4], &random[..8]))
}

/// Waits for the box's init and its first word.
async fn greet(
    shared: &Arc<Shared>,
    listener: Listener,
    container: &str,
    image: &str,
) -> Result<(AsyncChannel, i32, Enforcement), BackendError> {
    let meet = async {
        let (control, pid) = listener.accept().await?;
        match control.recv::<InitReply>().await? {
            Some((InitReply::Configured { enforcement }, _)) => Ok((control, pid, enforcement)),
            other => Err(std::io::Error::other(format!("instead of its findings it sent {other:?}"))),
        }
    };
    let mut meet = std::pin::pin!(timeout(GUEST_LIMIT, meet));
    // The engine is asked about a container only when its init is slow to come.
    let met = match timeout(GUEST_USUAL, &mut meet).await {
        Ok(met) => met,
        Err(_) => tokio::select! {
            met = meet => met,
            code = shared.engine.ended(container) => return Err(ended_at_once(shared, image, code)),
        },
    };
    match met {
        Ok(Ok(met)) => Ok(met),
        Ok(Err(error)) => Err(BackendError::failed("meeting the box's init", error)),
        Err(_) => Err(shared.engine.unavailable(format!(
            "the box's init did not connect within {} s; the engine must see the state directory {} under the same path",
            GUEST_LIMIT.as_secs(),
            shared.config.state_dir.display()
        ))),
    }
}

/// Who the box's root is on this host, where the engine maps ids: user_namespaces(7).
fn host_root(pid: i32) -> Option<(u32, u32)> {
    let first = |map: &str| -> Option<u32> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/{map}")).ok()?;
        let mut words = text.split_ascii_whitespace().map(str::parse::<u32>);
        match (words.next()?.ok()?, words.next()?.ok()?) {
            (0, outside) => Some(outside),
            _ => None,
        }
    };
    let owner = (first("uid_map")?, first("gid_map")?);
    (owner != (0, 0)).then_some(owner)
}

/// Nothing runs in the box yet.
async fn give_to(directories: Vec<PathBuf>, owner: (u32, u32)) -> Result<(), BackendError> {
    let step = "giving the files to the box's user";
    let given = blocking(step, move || crate::storage::give_to(&directories, owner)).await?;
    given.map_err(|error| BackendError::failed(step, error))
}

/// Whoever connected must be the container's init. Where a rootless engine counts processes in a namespace of its
/// own the numbers differ; one of another namespace has none here.
async fn check_peer(
    shared: &Shared,
    inspected: &ContainerInspectResponse,
    pid: i32,
) -> Result<(), BackendError> {
    let told = inspected.state.as_ref().and_then(|state| state.pid);
    if pid == 0 || told == Some(i64::from(pid)) || shared.engine.is_rootless().await? {
        return Ok(());
    }
    let why = format!(
        "process {pid} connected, where {} tells of {told:?}; both must count processes alike",
        shared.engine.kind
    );
    Err(BackendError::failed("meeting the box's init", std::io::Error::other(why)))
}

/// Looks whether what is mounted is what was checked, and says so where that cannot be seen.
async fn compare(
    sources: Vec<Source>,
    pid: i32,
    record: &mut Enforcement,
) -> Result<Vec<Source>, BackendError> {
    if sources.is_empty() {
        return Ok(sources);
    }
    let look = move || {
        let other = exchanged(&sources, pid).map(|other| other.map(|source| source.path.clone()));
        (sources, other)
    };
    let (sources, other) = blocking("looking at the box's mounts", look).await?;
    match other {
        Ok(None) => {}
        Ok(Some(path)) => {
            let rule = "it was exchanged while the box was made".to_owned();
            return Err(BackendError::MountDenied { path, rule });
        }
        Err(error) => record::uncompared(record, &error),
    }
    Ok(sources)
}

async fn volumes(
    kind: EngineKind,
    inspected: ContainerInspectResponse,
) -> Result<(ContainerInspectResponse, Vec<Volume>), BackendError> {
    blocking("looking at the image's volumes", move || {
        let found = crate::volumes::of(kind, &inspected)?;
        Ok::<_, BackendError>((inspected, found))
    })
    .await?
}

fn ended_at_once(shared: &Shared, image: &str, code: Option<i64>) -> BackendError {
    if shared.instance.guest_needs_loader {
        return shared.engine.without_loader(image);
    }
    let code = code.map_or("an unknown code".to_owned(), |code| format!("code {code}"));
    let why = format!("the box's init ended at once with {code}");
    BackendError::failed(format!("starting a box of image `{image}`"), std::io::Error::other(why))
}

/// What has to be counted while commands run: the private files with the image's volumes, and shared directories
/// with a quota.
fn accounted(spec: &SessionSpec, storage: &Storage, sources: &[Source], volumes: Vec<Volume>) -> Vec<Bound> {
    let (DiskLimit::Hard(bytes) | DiskLimit::Accounted(bytes)) = spec.limits.disk;
    let shared = spec.mounts.iter().zip(sources).filter(|(mount, _)| mount.access == MountAccess::ReadWrite);
    let mut bounds: Vec<Bound> = shared
        .filter_map(|(mount, source)| {
            Some(Bound { directories: vec![source.path.clone()], bytes: mount.quota?.bytes(), asked: true })
        })
        .collect();
    // What somebody asked for is counted before and after a command too.
    let asked = spec.limits.disk != Limits::default().disk;
    let volumes = volumes.into_iter().map(|volume| volume.directory);
    let directories = storage.counted().into_iter().chain(volumes).collect();
    bounds.push(Bound { directories, bytes, asked });
    bounds
}
