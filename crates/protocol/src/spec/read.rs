//! Turning JSON into a spec: every field is looked at, in the order of the model, so that a caller learns of
//! all mistakes at once. Rules that need several fields are tested only when each field is right.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use super::bounds;
use super::invalid::{InvalidSpec, Issue};
use super::{ARTIFACTS, BoxSpec, MountMode, MountSpec, NetworkMode, ProcessSpec, coerce};
use crate::python;

impl BoxSpec {
    /// Reads what a caller sent. Unknown fields are ignored, absent ones have their defaults.
    ///
    /// # Errors
    /// Names every field that cannot be accepted.
    pub fn from_json(value: &Value) -> Result<Self, InvalidSpec> {
        const MODEL: &str = "BoxSpec";
        let mut fields = Fields::of(MODEL, value).map_err(|issue| InvalidSpec::new(MODEL, vec![issue]))?;
        let default = Self::new("");
        let spec = Self {
            cmd: fields.read("cmd", default.cmd, |value| Ok(python::trim(text(value, "cmd")?).to_owned())),
            workdir: read_workdir(&mut fields, default.workdir),
            timeout_sec: fields.read("timeout_sec", default.timeout_sec, |value| {
                integer_in(value, bounds::TIMEOUT_SEC, "timeout_sec must be greater than 0", "timeout_sec")
            }),
            network: fields.read("network", default.network, network_mode),
            session_id: fields.read_required("session_id", session_id),
            env: fields.read_env(),
            image: fields.read("image", default.image, |value| text(value, "image").map(str::to_owned)),
            host_path: fields.read("host_path", default.host_path, |value| match value {
                Value::Null => Ok(None),
                value => host_path(value).map(Some),
            }),
            host_path_mode: fields.read("host_path_mode", default.host_path_mode, mount_mode),
            mount_path: fields
                .read("mount_path", default.mount_path, |value| sandbox_path(value, "mount_path")),
            extra_mounts: fields.read_all("extra_mounts", mounts),
            persistent: fields.read("persistent", default.persistent, coerce::boolean),
            cpus: fields.read("cpus", default.cpus, cpus),
            memory_mb: fields.read("memory_mb", default.memory_mb, |value| {
                integer_in(value, bounds::MEMORY_MB, "memory_mb must be at least 32", "memory_mb")
            }),
            pids_limit: fields.read("pids_limit", default.pids_limit, |value| {
                integer_in(value, bounds::PIDS_LIMIT, "pids_limit must be at least 1", "pids_limit")
            }),
            read_only_rootfs: fields.read("read_only_rootfs", default.read_only_rootfs, coerce::boolean),
            workspace_quota_mb: fields.read("workspace_quota_mb", default.workspace_quota_mb, |value| {
                let too_small = "workspace_quota_mb must be greater than or equal to 0";
                integer_in(value, bounds::WORKSPACE_QUOTA_MB, too_small, "workspace_quota_mb")
            }),
        };
        if fields.issues.is_empty() && !spec.workdir_is_mounted() {
            let message = "workdir must stay under mount_path when host_path is provided";
            fields.issues.push(Issue::value(message, value));
        }
        fields.finish(MODEL, spec)
    }

    /// Textual on purpose: what `..` and links lead to is known only inside the box.
    fn workdir_is_mounted(&self) -> bool {
        if self.host_path.is_none() || self.host_path_mode == MountMode::None {
            return true;
        }
        let below = self.workdir.strip_prefix(&self.mount_path);
        below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

impl ProcessSpec {
    /// Reads what a caller sent. Unknown fields are ignored, absent ones have their defaults.
    ///
    /// # Errors
    /// Names every field that cannot be accepted.
    pub fn from_json(value: &Value) -> Result<Self, InvalidSpec> {
        const MODEL: &str = "BoxManagedProcessSpec";
        let mut fields = Fields::of(MODEL, value).map_err(|issue| InvalidSpec::new(MODEL, vec![issue]))?;
        let default = Self::new("");
        let spec = Self {
            process_id: fields.read("process_id", default.process_id, |value| {
                identifier(value, text(value, "process_id")?, "process_id")
            }),
            command: fields.read_required("command", |value| match python::trim(text(value, "command")?) {
                "" => Err(Issue::value("command must not be empty", value)),
                command => Ok(command.to_owned()),
            }),
            args: fields.read_all("args", arguments),
            env: fields.read_env(),
            cwd: fields.read("cwd", default.cwd, |value| sandbox_path(value, "cwd")),
            memory_mb: fields.read("memory_mb", default.memory_mb, |value| {
                let too_small = "memory_mb must be greater than or equal to 0";
                integer_in(value, bounds::PROCESS_MEMORY_MB, too_small, "memory_mb")
            }),
        };
        fields.finish(MODEL, spec)
    }
}

/// The fields of one object, and what was found wrong so far.
pub(super) struct Fields<'a> {
    object: &'a Value,
    map: &'a Map<String, Value>,
    issues: Vec<Issue>,
}

impl<'a> Fields<'a> {
    pub(super) fn of(model: &str, value: &'a Value) -> Result<Self, Issue> {
        let map = value.as_object().ok_or_else(|| {
            let message = format!("Input should be a valid dictionary or instance of {model}");
            Issue::new("model_type", message, value)
        })?;
        Ok(Self { object: value, map, issues: Vec::new() })
    }

    /// The field, or `default` when it is absent. After an issue the value does not matter any more.
    pub(super) fn read<T>(
        &mut self,
        name: &str,
        default: T,
        read: impl FnOnce(&Value) -> Result<T, Issue>,
    ) -> T {
        match self.map.get(name).map(read) {
            None => default,
            Some(Ok(value)) => value,
            Some(Err(issue)) => {
                self.issues.push(issue.within(name));
                default
            }
        }
    }

    pub(super) fn read_required<T: Default>(
        &mut self,
        name: &str,
        read: impl FnOnce(&Value) -> Result<T, Issue>,
    ) -> T {
        if !self.map.contains_key(name) {
            self.issues.push(Issue::new("missing", "Field required", self.object).within(name));
        }
        self.read(name, T::default(), read)
    }

    /// Refuses every field but these.
    pub(super) fn refuse_others(&mut self, known: &[&str]) {
        for (name, value) in self.map.iter().filter(|(name, _)| !known.contains(&name.as_str())) {
            let issue = Issue::new("extra_forbidden", "Extra inputs are not permitted", value);
            self.issues.push(issue.within(name));
        }
    }

    /// For lists, where several items can be wrong.
    fn read_all<T>(&mut self, name: &str, read: fn(&[Value], &mut Vec<Issue>) -> Vec<T>) -> Vec<T> {
        let Some(value) = self.map.get(name) else { return Vec::new() };
        let Some(items) = value.as_array() else {
            self.issues.push(Issue::new("list_type", "Input should be a valid list", value).within(name));
            return Vec::new();
        };
        if items.len() > bounds::LIST_ITEMS {
            let message = format_args!("{name} must have at most {} items", bounds::LIST_ITEMS);
            self.issues.push(Issue::value(message, value).within(name));
            return Vec::new();
        }
        let mut issues = Vec::new();
        let list = read(items, &mut issues);
        self.issues.extend(issues.into_iter().map(|issue| issue.within(name)));
        list
    }

    fn read_env(&mut self) -> BTreeMap<String, String> {
        let Some(value) = self.map.get("env") else { return BTreeMap::new() };
        let mut issues = Vec::new();
        let env = match value.as_object() {
            Some(map) => environment(map, &mut issues),
            None => {
                issues.push(Issue::new("dict_type", "Input should be a valid dictionary", value).unseen());
                BTreeMap::new()
            }
        };
        self.issues.extend(issues.into_iter().map(|issue| issue.within("env")));
        env
    }

    pub(super) fn finish<T>(self, model: &'static str, spec: T) -> Result<T, InvalidSpec> {
        if self.issues.is_empty() { Ok(spec) } else { Err(InvalidSpec::new(model, self.issues)) }
    }
}

/// A box without a working directory works where its files are mounted.
fn read_workdir(fields: &mut Fields<'_>, default: String) -> String {
    let absent = match fields.map.get("workdir") {
        None | Some(Value::Null) => true,
        Some(value) => value.as_str() == Some(""),
    };
    let mounted = fields
        .map
        .get("mount_path")
        .filter(|value| absent && value.as_str().is_some_and(|path| !python::trim(path).is_empty()));
    match mounted {
        None => fields.read("workdir", default, |value| sandbox_path(value, "workdir")),
        Some(mount_path) => sandbox_path(mount_path, "workdir").unwrap_or_else(|issue| {
            fields.issues.push(issue.within("workdir"));
            default
        }),
    }
}

/// A string that can be handed to a system call: none of those takes a NUL.
fn text<'a>(value: &'a Value, name: &str) -> Result<&'a str, Issue> {
    let text = coerce::string(value)?;
    if text.contains('\0') {
        return Err(Issue::value(format_args!("{name} must not contain NUL characters"), value).unseen());
    }
    Ok(text)
}

fn identifier(value: &Value, id: &str, name: &str) -> Result<String, Issue> {
    if id.chars().nth(bounds::ID_CHARS).is_some() {
        let message = format_args!("{name} must have at most {} characters", bounds::ID_CHARS);
        return Err(Issue::value(message, value));
    }
    if id.chars().any(char::is_control) {
        return Err(Issue::value(format_args!("{name} must not contain control characters"), value));
    }
    Ok(id.to_owned())
}

fn session_id(value: &Value) -> Result<String, Issue> {
    match python::trim(text(value, "session_id")?) {
        "" => Err(Issue::value("session_id must not be empty", value)),
        id => identifier(value, id, "session_id"),
    }
}

fn path<'a>(value: &'a Value, name: &str) -> Result<&'a str, Issue> {
    let path = python::trim(text(value, name)?);
    if path.len() > bounds::PATH_BYTES {
        let message = format_args!("{name} must have at most {} bytes", bounds::PATH_BYTES);
        return Err(Issue::value(message, value));
    }
    Ok(path)
}

fn sandbox_path(value: &Value, name: &str) -> Result<String, Issue> {
    match path(value, name)? {
        path if path.starts_with('/') => Ok(path.to_owned()),
        _ => Err(Issue::value(format_args!("{name} must be an absolute path inside the sandbox"), value)),
    }
}

/// Absolute in the sense of either family of systems: the caller's host need not be ours.
fn host_path(value: &Value) -> Result<String, Issue> {
    let path = path(value, "host_path")?;
    let is_slash = |c: char| c == '/' || c == '\\';
    let mut chars = path.chars();
    let has_drive = chars.next().is_some() && chars.next() == Some(':') && chars.next().is_some_and(is_slash);
    if path.starts_with(is_slash) || has_drive {
        Ok(path.to_owned())
    } else {
        Err(Issue::value("host_path must be an absolute host path", value))
    }
}

fn network_mode(value: &Value) -> Result<NetworkMode, Issue> {
    match value.as_str() {
        Some("off") => Ok(NetworkMode::Off),
        Some("on") => Ok(NetworkMode::On),
        _ => Err(Issue::new("enum", "Input should be 'off' or 'on'", value)),
    }
}

fn mount_mode(value: &Value) -> Result<MountMode, Issue> {
    match value.as_str() {
        Some("none") => Ok(MountMode::None),
        Some("ro") => Ok(MountMode::Ro),
        Some("rw") => Ok(MountMode::Rw),
        _ => Err(Issue::new("enum", "Input should be 'none', 'ro' or 'rw'", value)),
    }
}

fn integer_in(
    value: &Value,
    bounds: RangeInclusive<u64>,
    too_small: impl Display,
    name: &str,
) -> Result<u64, Issue> {
    let integer = coerce::integer(value)?;
    if integer < i128::from(*bounds.start()) {
        return Err(Issue::value(too_small, value));
    }
    u64::try_from(integer)
        .ok()
        .filter(|integer| bounds.contains(integer))
        .ok_or_else(|| Issue::value(format_args!("{name} must be at most {}", bounds.end()), value))
}

pub(super) fn cpus(value: &Value) -> Result<f64, Issue> {
    let cpus = coerce::float(value)?;
    if cpus <= 0.0 {
        return Err(Issue::value("cpus must be greater than 0", value));
    }
    if cpus > bounds::CPUS {
        return Err(Issue::value(format_args!("cpus must be at most {}", bounds::CPUS), value));
    }
    Ok(cpus)
}

fn environment(map: &Map<String, Value>, issues: &mut Vec<Issue>) -> BTreeMap<String, String> {
    let mut env = BTreeMap::new();
    for (name, value) in map {
        let read = if name.is_empty() || name.contains(['=', '\0']) {
            Err(Issue::value("env names must not be empty or contain '=' or NUL characters", value))
        } else {
            text(value, "env values")
        };
        match read {
            Ok(value) => drop(env.insert(name.clone(), value.to_owned())),
            Err(issue) => issues.push(issue.unseen().within(name)),
        }
    }
    env
}

fn arguments(items: &[Value], issues: &mut Vec<Issue>) -> Vec<String> {
    let mut args = Vec::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        match text(item, "args") {
            Ok(arg) => args.push(arg.to_owned()),
            Err(issue) => issues.push(issue.unseen().within(&index.to_string())),
        }
    }
    args
}

fn mounts(items: &[Value], issues: &mut Vec<Issue>) -> Vec<MountSpec> {
    let mut mounts = Vec::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        let found = match Fields::of("BoxMountSpec", item) {
            Err(issue) => vec![issue],
            Ok(mut fields) => {
                let mount = mount(&mut fields);
                if fields.issues.is_empty() && !artifact_rules_hold(&mount) {
                    let message = "Artifact paths require a read-only digest-addressed mount and manifest";
                    fields.issues.push(Issue::value(message, item));
                }
                mounts.push(mount);
                fields.issues
            }
        };
        issues.extend(found.into_iter().map(|issue| issue.within(&index.to_string())));
    }
    mounts
}

fn mount(fields: &mut Fields<'_>) -> MountSpec {
    // Models that know of artifacts want normal paths; older ones did not ask.
    let newer = fields.map.contains_key("content_digest");
    let optional = |value: &Value, name| match value {
        Value::Null => Ok(None),
        value => text(value, name).map(|text| Some(text.to_owned())),
    };
    MountSpec {
        host_path: fields.read_required("host_path", host_path),
        mount_path: fields.read_required("mount_path", |value| match sandbox_path(value, "mount_path")? {
            path if newer && !is_normal(&path) => Err(Issue::value("mount_path must be normalized", value)),
            path => Ok(path),
        }),
        mode: fields.read("mode", MountMode::Rw, mount_mode),
        content_digest: fields.read("content_digest", None, |value| optional(value, "content_digest")),
        manifest_path: fields.read("manifest_path", None, |value| match optional(value, "manifest_path")? {
            Some(path) if !path.starts_with('/') => {
                Err(Issue::value("manifest_path must be an absolute host path", value))
            }
            path => Ok(path),
        }),
    }
}

/// As Python's `posixpath.normpath` leaves it.
fn is_normal(path: &str) -> bool {
    let parts = path.strip_prefix('/').unwrap_or(path);
    parts.is_empty() || parts.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

/// Nothing but directories that are named by their content goes where those go.
fn artifact_rules_hold(mount: &MountSpec) -> bool {
    let below =
        mount.mount_path.strip_prefix(ARTIFACTS).filter(|rest| rest.is_empty() || rest.starts_with('/'));
    let (digest, manifest) = (mount.content_digest.as_deref(), mount.manifest_path.as_deref());
    if below.is_none() && digest.is_none() && manifest.is_none() {
        return true;
    }
    let digits = digest.and_then(|digest| digest.strip_prefix("sha256:"));
    let digits = digits.filter(|digits| {
        digits.len() == 64 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    });
    let named = digits.zip(below).is_some_and(|(digits, below)| below.strip_prefix('/') == Some(digits));
    named && manifest.is_some() && mount.mode == MountMode::Ro
}
