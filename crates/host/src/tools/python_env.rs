//! The Python environment of a skill: a script that makes it when it is missing or stale, then runs the command.
//!
//! The script is text with the values in front, and the command is one quoted word for a shell of its own: its
//! lines and here-documents stay as they are, and no option of the script reaches it. Whether there is anything to
//! build is decided in the box, by the script and by a look through the client.
//!
//! Boxes of several sessions share a package, so the lock cannot rely on process ids. Its owner is a directory in
//! the lock, and a counter beside it is alive as long as the owner is; who sees the counter stand still removes that
//! one owner, which can succeed only once.

use std::time::Duration;

use sandcrate_protocol::{ErrorKind, NetworkMode, shell_word};

use super::files::BoxFiles;
use crate::workspace::{MANIFESTS, VENV_DIRECTORY};
use crate::{FileKind, Result};

/// How a command gets the environment of its package.
///
/// ```
/// use sandcrate_host::tools::PythonEnvironment;
/// use sandcrate_protocol::{ErrorKind, NetworkMode};
///
/// let environment = PythonEnvironment::new("/workspace/.skills/pdf", NetworkMode::On);
/// assert!(environment.wrap("python main.py").ends_with("exec sh -c 'python main.py'\n"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PythonEnvironment {
    /// The package's directory in the box.
    pub directory: String,
    /// Without a network nothing is built: pip would only wait for it.
    pub network: NetworkMode,
    /// How long to wait for another build.
    pub lock_wait: Duration,
    /// How long a lock counts whose owner shows no sign of life.
    pub lock_expiry: Duration,
}

impl PythonEnvironment {
    pub fn new(directory: impl Into<String>, network: NetworkMode) -> Self {
        Self {
            directory: directory.into(),
            network,
            lock_wait: Duration::from_secs(120),
            // An owner shows itself every second; a loaded machine may be late.
            lock_expiry: Duration::from_secs(15),
        }
    }

    /// A script that does what `command` does, in the environment.
    pub fn wrap(&self, command: &str) -> String {
        let mut script = format!(
            "sc_dir={}\nsc_network={}\nsc_lock_wait={}\nsc_lock_expiry={}\n",
            shell_word(&self.directory),
            self.network,
            self.lock_wait.as_secs(),
            self.lock_expiry.as_secs().max(1),
        );
        script.push_str(SCRIPT);
        script.push_str("exec sh -c ");
        script.push_str(&shell_word(command));
        script.push('\n');
        script
    }
}

/// Whether a package has something that an environment is made from, as seen in the box.
pub(crate) async fn is_needed(files: &BoxFiles, directory: &str) -> Result<bool> {
    let entries = match files.list(directory).await {
        Ok(entries) => entries,
        // The command will say so itself, in words that fit what it does.
        Err(error) if matches!(error.kind, ErrorKind::FileNotFound | ErrorKind::FileFailed) => {
            return Ok(false);
        }
        Err(error) => return Err(error),
    };
    Ok(entries.iter().any(|entry| match entry.kind {
        FileKind::Directory => entry.name == VENV_DIRECTORY,
        FileKind::File => MANIFESTS.contains(&entry.name.as_str()),
        FileKind::Symlink | FileKind::Other => false,
    }))
}

/// Portable shell. What a build prints goes to standard error: standard output is the command's.
///
/// The process that shows its owner alive is started before there are traps, ends by itself once the lock is gone,
/// and is never waited for: a shell that is still setting out may lose a signal, and would then wait for the lock
/// that it keeps.
const SCRIPT: &str = r#"sc_venv=$sc_dir/.venv
sc_state=$sc_dir/.langbot
sc_meta=$sc_state/python-env.json
sc_lock=$sc_state/python-env.lock
sc_beat=$sc_state/python-env.beat
sc_say() {
    printf '%s\n' "$1" >&2
}
sc_manifests() {
    for sc_name in requirements.txt pyproject.toml setup.py setup.cfg; do
        if [ -f "$sc_dir/$sc_name" ]; then printf '%s ' "$sc_name"; fi
    done
}
sc_hash() {
    if command -v sha256sum >/dev/null 2>&1; then
        sha256sum
    else
        "$sc_python" -c 'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())'
    fi
}
sc_fingerprint() {
    sc_names=$(sc_manifests)
    sc_sum=$(
        for sc_name in $sc_names; do
            printf '%s\0' "$sc_name"
            cat "$sc_dir/$sc_name"
            printf '\0'
        done | sc_hash
    )
    printf '{"files": "%s", "python": "%s", "sha256": "%s", "version": "%s"}' \
        "${sc_names% }" "$sc_python" "${sc_sum%% *}" "$("$sc_python" -V 2>&1)"
}
sc_is_fresh() {
    [ -x "$sc_venv/bin/python" ] && [ -f "$sc_meta" ] && [ "$(cat "$sc_meta")" = "$sc_want" ]
}
sc_take() {
    mkdir "$sc_lock" 2>/dev/null || return 1
    mkdir "$sc_lock/$sc_token" 2>/dev/null || return 1
    if [ "$(ls "$sc_lock")" = "$sc_token" ]; then return 0; fi
    sc_release
    return 1
}
sc_release() {
    if rmdir "$sc_lock/$sc_token" 2>/dev/null; then rmdir "$sc_lock" 2>/dev/null; fi
    return 0
}
sc_beats() {
    sc_count=0
    while kill -0 "$1" 2>/dev/null && [ -d "$sc_lock/$sc_token" ]; do
        sc_count=$((sc_count + 1))
        printf '%s\n' "$sc_token $sc_count" >"$sc_beat"
        sleep 1
    done
}
sc_acquire() {
    sc_waited=0
    sc_still=0
    sc_last=
    until sc_take; do
        sc_owner=$(ls "$sc_lock" 2>/dev/null)
        sc_seen="$sc_owner: $(cat "$sc_beat" 2>/dev/null)"
        if [ "$sc_seen" = "$sc_last" ]; then sc_still=$((sc_still + 1)); else sc_still=0; fi
        sc_last=$sc_seen
        if [ "$sc_still" -ge "$sc_lock_expiry" ]; then
            sc_say "Removing the Python environment lock of a build that is gone: $sc_lock"
            for sc_name in $sc_owner; do rmdir "$sc_lock/$sc_name" 2>/dev/null; done
            rmdir "$sc_lock" 2>/dev/null
            sc_still=0
        fi
        if [ "$sc_waited" -ge "$sc_lock_wait" ]; then
            sc_say "Timed out waiting for Python environment lock: $sc_lock"
            return 1
        fi
        sleep 1
        sc_waited=$((sc_waited + 1))
    done
}
sc_install() {
    if [ -f "$sc_dir/requirements.txt" ]; then
        "$sc_venv/bin/python" -m pip install -r "$sc_dir/requirements.txt"
    else
        "$sc_venv/bin/python" -m pip install "$sc_dir"
    fi
}
sc_build() {
    rm -rf "$sc_meta" "$sc_venv" &&
        "$sc_python" -m venv "$sc_venv" >&2 &&
        "$sc_venv/bin/python" -m pip install --upgrade pip setuptools wheel >&2 &&
        sc_install >&2 &&
        [ -d "$sc_lock/$sc_token" ] &&
        printf '%s' "$sc_want" >"$sc_meta.$sc_token" &&
        mv "$sc_meta.$sc_token" "$sc_meta"
}
sc_build_alone() {
    sc_token=owner-$$-$(date +%s)-$(od -An -N4 -tx4 /dev/urandom | tr -d ' ')
    sc_acquire || return 1
    sc_beats $$ </dev/null >/dev/null 2>&1 &
    sc_beats_pid=$!
    trap sc_release EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    sc_is_fresh || sc_build
    sc_status=$?
    trap - EXIT INT TERM
    sc_release
    kill "$sc_beats_pid" 2>/dev/null
    return "$sc_status"
}
sc_prepare() {
    if ! mkdir -p "$sc_state" "$sc_dir/.tmp" "$sc_dir/.cache/pip" 2>/dev/null; then
        sc_say "No Python environment is prepared: $sc_dir cannot be written."
        return 0
    fi
    TMPDIR=$sc_dir/.tmp
    TEMP=$TMPDIR
    TMP=$TMPDIR
    PIP_CACHE_DIR=$sc_dir/.cache/pip
    export TMPDIR TEMP TMP PIP_CACHE_DIR
    if [ -z "$(sc_manifests)" ]; then return 0; fi
    if ! sc_python=$(command -v python3 || command -v python); then
        sc_say "No Python environment is prepared: this box has no python3."
        return 0
    fi
    sc_want=$(sc_fingerprint)
    if sc_is_fresh; then return 0; fi
    if [ "$sc_network" = off ]; then
        sc_say "The Python environment of $sc_dir is missing or stale, and cannot be built: this box has no network."
        sc_say "The command runs without it. A profile with network builds it once, for boxes without network too."
        return 0
    fi
    if sc_build_alone; then return 0; fi
    sc_say "The Python environment of $sc_dir could not be built; the command was not run."
    return 1
}
sc_prepare || exit 1
if [ -x "$sc_venv/bin/python" ]; then
    VIRTUAL_ENV=$sc_venv
    PATH=$sc_venv/bin:$PATH
    export VIRTUAL_ENV PATH
fi
"#;

#[cfg(test)]
#[path = "python_env_tests.rs"]
mod tests;
