//! What is sent for a workspace: a session, a command in it, a process in it.

use std::collections::BTreeMap;

use sandcrate_protocol::{MountMode, NetworkMode};
use serde_json::{Value, json};

use super::{DEFAULT_MOUNT, rewrite_argument, rewrite_mounted_path, rewrite_venv_command};

/// A session around a directory of the host. What is absent is left to the service.
#[derive(Debug, Clone, PartialEq)]
pub struct Workspace {
    pub session_id: String,
    pub workdir: String,
    pub env: BTreeMap<String, String>,
    pub persistent: bool,
    pub network: Option<NetworkMode>,
    pub read_only_rootfs: Option<bool>,
    pub host_path: Option<String>,
    pub host_path_mode: MountMode,
    /// Where `host_path` is in the box.
    pub mount_path: String,
    pub image: Option<String>,
    pub cpus: Option<f64>,
    pub memory_mb: Option<u64>,
    pub pids_limit: Option<u64>,
}

/// One command in a workspace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExecRequest {
    pub cmd: String,
    pub workdir: Option<String>,
    pub timeout_sec: Option<u64>,
    /// In place of the workspace's own.
    pub env: Option<BTreeMap<String, String>>,
}

impl Workspace {
    /// ```
    /// use sandcrate_host::workspace::Workspace;
    ///
    /// let payload = Workspace::new("mcp-shared").session_payload();
    /// assert_eq!(payload["session_id"], "mcp-shared");
    /// assert_eq!(payload.get("image"), None);
    /// ```
    pub fn new(session_id: impl Into<String>) -> Self {
        Self {
            session_id: session_id.into(),
            workdir: DEFAULT_MOUNT.to_owned(),
            env: BTreeMap::new(),
            persistent: false,
            network: None,
            read_only_rootfs: None,
            host_path: None,
            host_path_mode: MountMode::Rw,
            mount_path: DEFAULT_MOUNT.to_owned(),
            image: None,
            cpus: None,
            memory_mb: None,
            pids_limit: None,
        }
    }

    fn host(&self) -> Option<&str> {
        self.host_path.as_deref().filter(|path| !path.is_empty())
    }

    /// To make the session.
    pub fn session_payload(&self) -> Value {
        let mut payload = json!({
            "session_id": self.session_id,
            "workdir": self.workdir,
            "env": self.env,
            "persistent": self.persistent,
        });
        let mut put = |key: &str, value: Option<Value>| {
            if let Some(value) = value {
                payload[key] = value;
            }
        };
        put("network", self.network.map(|network| network.as_str().into()));
        put("read_only_rootfs", self.read_only_rootfs.map(Value::from));
        put("host_path", self.host().map(Value::from));
        put("host_path_mode", self.host().map(|_| self.host_path_mode.as_str().into()));
        put("image", self.image.clone().map(Value::from));
        put("cpus", self.cpus.map(Value::from));
        put("memory_mb", self.memory_mb.map(Value::from));
        put("pids_limit", self.pids_limit.map(Value::from));
        payload
    }

    /// To run a command in the session.
    pub fn exec_payload(&self, request: &ExecRequest) -> Value {
        let mut payload = self.session_payload();
        payload["cmd"] = request.cmd.as_str().into();
        if let Some(workdir) = &request.workdir {
            payload["workdir"] = workdir.as_str().into();
        }
        if let Some(timeout) = request.timeout_sec {
            payload["timeout_sec"] = timeout.into();
        }
        let env = request.env.as_ref().unwrap_or(&self.env);
        payload["env"] = json!(env);
        if env.is_empty()
            && let Some(fields) = payload.as_object_mut()
        {
            fields.remove("env");
        }
        payload
    }

    /// To start a process in the session, with the paths of the host called what they are called there.
    pub fn process_payload(
        &self,
        command: &str,
        args: &[String],
        env: &BTreeMap<String, String>,
        cwd: &str,
    ) -> Value {
        let Some(host) = self.host() else {
            return json!({"command": command, "args": args, "env": env, "cwd": cwd});
        };
        let mount = &self.mount_path;
        let args: Vec<_> = args.iter().map(|argument| rewrite_argument(argument, host, mount)).collect();
        json!({
            "command": rewrite_venv_command(command, host, mount),
            "args": args,
            "env": env,
            "cwd": rewrite_mounted_path(cwd, host, mount),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_says_only_what_was_chosen() {
        let mut workspace = Workspace::new("s");
        assert_eq!(
            workspace.session_payload(),
            json!({"session_id": "s", "workdir": "/workspace", "env": {}, "persistent": false})
        );
        workspace.network = Some(NetworkMode::On);
        workspace.read_only_rootfs = Some(false);
        workspace.host_path = Some("/srv/p".to_owned());
        workspace.host_path_mode = MountMode::Ro;
        workspace.image = Some("img".to_owned());
        (workspace.cpus, workspace.memory_mb, workspace.pids_limit) = (Some(0.5), Some(64), Some(9));
        assert_eq!(
            workspace.session_payload(),
            json!({
                "session_id": "s", "workdir": "/workspace", "env": {}, "persistent": false, "network": "on",
                "read_only_rootfs": false, "host_path": "/srv/p", "host_path_mode": "ro", "image": "img",
                "cpus": 0.5, "memory_mb": 64, "pids_limit": 9,
            })
        );
        workspace.host_path = Some(String::new());
        assert_eq!(workspace.session_payload().get("host_path_mode"), None);
    }

    #[test]
    fn a_command_adds_itself_and_leaves_out_an_empty_environment() {
        let mut workspace = Workspace::new("s");
        let request = ExecRequest { cmd: "ls".to_owned(), ..ExecRequest::default() };
        let payload = workspace.exec_payload(&request);
        assert_eq!(
            payload,
            json!({"session_id": "s", "workdir": "/workspace", "persistent": false, "cmd": "ls"})
        );
        workspace.env.insert("A".to_owned(), "1".to_owned());
        let request = ExecRequest { workdir: Some("/tmp".to_owned()), timeout_sec: Some(7), ..request };
        let payload = workspace.exec_payload(&request);
        assert_eq!(
            (&payload["workdir"], &payload["timeout_sec"], &payload["env"]),
            (&json!("/tmp"), &json!(7), &json!({"A": "1"}))
        );
    }

    #[test]
    fn a_process_has_its_paths_rewritten_only_with_a_directory_of_the_host() {
        let place = tempfile::tempdir().unwrap();
        let host = place.path().canonicalize().unwrap().to_str().unwrap().to_owned();
        std::fs::create_dir_all(place.path().join(".venv/bin")).unwrap();
        let args = [format!("{host}/main.py"), format!("--config={host}/c.toml"), "--flag".to_owned()];
        let command = format!("{host}/.venv/bin/python");
        let env = BTreeMap::from([("K".to_owned(), host.clone())]);
        let mut workspace = Workspace::new("s");
        let plain = workspace.process_payload(&command, &args, &env, "/workspace");
        assert_eq!(plain, json!({"command": command, "args": args, "env": env, "cwd": "/workspace"}));
        workspace.host_path = Some(host.clone());
        workspace.mount_path = "/workspace/.mcp/u/workspace".to_owned();
        assert_eq!(
            workspace.process_payload(&command, &args, &env, &host),
            json!({
                "command": "python",
                "args": [
                    "/workspace/.mcp/u/workspace/main.py",
                    "--config=/workspace/.mcp/u/workspace/c.toml",
                    "--flag",
                ],
                "env": env,
                "cwd": "/workspace/.mcp/u/workspace",
            })
        );
    }
}
