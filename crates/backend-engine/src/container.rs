//! The container of a session: everything that an engine is told about it.

use std::collections::HashMap;

use bollard::models::{
    ContainerCreateBody, HealthConfig, HostConfig, HostConfigCgroupnsModeEnum, HostConfigLogConfig, Mount,
    MountBindOptions, MountBindOptionsPropagationEnum, MountType, ResourcesUlimits,
};
use sandcrate_backend::{Network, RootAccess, SessionSpec};
use sandcrate_jail::guest;

use crate::sources::Source;
use crate::storage::Storage;

/// LangBot's labels: what its users and tools look for.
const LANGBOT: &str = "langbot.box";
const LANGBOT_SESSION: &str = "langbot.session_id";
const LANGBOT_INSTANCE: &str = "langbot.box.instance_id";
/// The state directory a container belongs to; only what carries its own is ever swept by an instance.
pub(crate) const STATE: &str = "sandcrate.instance";
/// The instance that made it.
pub(crate) const OWNER: &str = "sandcrate.owner";

/// The guest and the keeper of one command are not the session's; further commands pay for their own keepers.
pub(crate) const OWN_PROCESSES: u32 = 2;
/// /dev/shm, charged to the box's memory like /tmp.
const SHM_BYTES: u64 = 64 << 20;
/// The guest writes a line when it fails, and nothing else.
const LOG_BYTES: &str = "256k";

/// Who makes the container.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Maker<'a> {
    pub(crate) state: &'a str,
    pub(crate) owner: &'a str,
    pub(crate) guest: &'a str,
    /// The resolver's configuration of boxes with an isolated network.
    pub(crate) resolver: &'a str,
    pub(crate) home: &'a str,
}

pub(crate) fn body(
    spec: &SessionSpec,
    image: &str,
    maker: Maker<'_>,
    storage: &Storage,
    sources: &[Source],
) -> ContainerCreateBody {
    let limits = &spec.limits;
    let labels = [
        (LANGBOT, "true"),
        (LANGBOT_SESSION, spec.id.as_str()),
        (LANGBOT_INSTANCE, maker.owner),
        (STATE, maker.state),
        (OWNER, maker.owner),
    ];
    let own = |map: &[(&str, &str)]| -> HashMap<String, String> {
        map.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    };
    let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let memory = signed(limits.memory_bytes);
    let shm = SHM_BYTES.min(limits.memory_bytes);
    ContainerCreateBody {
        image: Some(image.to_owned()),
        hostname: Some("box".to_owned()),
        user: Some("0:0".to_owned()),
        entrypoint: Some(vec![guest::PROGRAM.to_owned()]),
        cmd: Some(Vec::new()),
        // The image's own would run beside the commands, and outside every bound of theirs.
        healthcheck: Some(HealthConfig { test: Some(vec!["NONE".to_owned()]), ..Default::default() }),
        env: Some(Vec::new()),
        working_dir: Some("/".to_owned()),
        labels: Some(own(&labels)),
        host_config: Some(HostConfig {
            auto_remove: Some(true),
            network_mode: Some(
                match spec.network {
                    Network::Host => "host",
                    _ => "none",
                }
                .to_owned(),
            ),
            cap_drop: Some(vec!["ALL".to_owned()]),
            security_opt: Some(vec!["no-new-privileges".to_owned()]),
            memory: Some(memory),
            memory_swap: Some(memory),
            pids_limit: Some(i64::from(limits.pids) + i64::from(OWN_PROCESSES)),
            nano_cpus: Some(i64::from(limits.cpu_millis) * 1_000_000),
            readonly_rootfs: Some(spec.root == RootAccess::ReadOnly),
            // The guest reaps; another init would stand between it and its protection as PID 1.
            init: Some(false),
            tmpfs: Some(HashMap::from([(
                "/tmp".to_owned(),
                format!("rw,exec,nosuid,nodev,mode=1777,size={}", limits.tmp_bytes),
            )])),
            shm_size: Some(signed(shm)),
            ulimits: Some(vec![
                ulimit("nofile", limits.open_files),
                // Processes are bounded by the cgroup; this counts those of all boxes together, so it is wide.
                ulimit("nproc", nproc()),
                ulimit("core", 0),
            ]),
            log_config: Some(HostConfigLogConfig {
                typ: Some("json-file".to_owned()),
                config: Some(own(&[("max-size", LOG_BYTES)])),
            }),
            cgroupns_mode: Some(HostConfigCgroupnsModeEnum::PRIVATE),
            ipc_mode: Some("private".to_owned()),
            mounts: Some(mounts(spec, maker, storage, sources)),
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn ulimit(name: &str, value: u64) -> ResourcesUlimits {
    let value = i64::try_from(value).ok();
    ResourcesUlimits { name: Some(name.to_owned()), soft: value, hard: value }
}

/// No more than an engine without CAP_SYS_RESOURCE can set: what we have ourselves, and half of the 32768 that
/// Podman lowers itself to.
fn nproc() -> u64 {
    const ENOUGH: u64 = 16_384;
    rustix::process::getrlimit(rustix::process::Resource::Nproc)
        .maximum
        .map_or(ENOUGH, |most| most.min(ENOUGH))
}

/// Structured, so that no colon or option in a path means anything.
fn mounts(spec: &SessionSpec, maker: Maker<'_>, storage: &Storage, sources: &[Source]) -> Vec<Mount> {
    let bind = |source: &str, target: &str, read_only: bool| Mount {
        typ: Some(MountType::BIND),
        source: Some(source.to_owned()),
        target: Some(target.to_owned()),
        read_only: Some(read_only),
        bind_options: Some(MountBindOptions {
            propagation: Some(MountBindOptionsPropagationEnum::RPRIVATE),
            // An engine makes only the top of a bind read-only; what is mounted below it would be writable.
            non_recursive: Some(read_only),
            ..Default::default()
        }),
        ..Default::default()
    };
    let mut all =
        vec![bind(maker.guest, guest::PROGRAM, true), bind(&storage.link_directory(), guest::LINK, true)];
    // What the session mounts itself wins, and an engine takes no place twice.
    let is_free = |target: &str| !sources.iter().any(|source| source.target == target);
    let workspace = spec.workspace.trim_end_matches('/');
    if is_free(workspace) {
        all.push(bind(&storage.workspace_directory(), workspace, false));
    }
    if is_free(maker.home) && workspace != maker.home {
        all.push(bind(&storage.home_directory(), maker.home, false));
    }
    if matches!(spec.network, Network::Isolated(_)) {
        all.push(bind(maker.resolver, "/etc/resolv.conf", true));
    }
    for source in sources {
        all.push(bind(&source.path_text, &source.target, source.read_only));
    }
    // Outer mounts first, whatever order the engine keeps.
    all.sort_by_key(|mount| mount.target.as_deref().map_or(0, |target| target.matches('/').count()));
    all
}
