//! Workspaces that are held to grants. The backend is the fake, which pretends to hold what a machine would have to;
//! what real boxes hold is looked at in `tests/vm`.

use std::time::Duration;

use sandcrate_backend::{DiskLimit, Examined, Promise, Strictness};
use sandcrate_protocol::Timestamp;
use sandcrate_runtime::{Placement, ReportedBackend};
use sandcrate_server::ServerConfig;
use serde_json::{Value, json};

use crate::support::{Rpc, Server, connect, request, until};

const GRANT: &str = "box_upsert_sandbox_admission_grant";
const REVOKE: &str = "box_revoke_sandbox_admission_grant";
/// As the golden vectors have them, in the order of the wire.
const CHECKS: [&str; 14] = [
    "configuration",
    "required_backend",
    "workspace_mount",
    "backend_available",
    "cgroup_v2",
    "namespace_isolation",
    "mount_isolation",
    "network_isolation",
    "hard_workspace_quota",
    "hard_read_only_mount_quota",
    "bounded_ephemeral_storage",
    "inode_quota",
    "session_cap",
    "managed_process_cap",
];

struct Host {
    server: Server,
    rpc: Rpc,
    root: tempfile::TempDir,
}

impl Host {
    /// A server that requires grants.
    async fn new(reported: Option<ReportedBackend>, examined: Option<Examined>) -> Self {
        let server =
            Server::with_runtime(ServerConfig::default(), |runtime| runtime.report_backend_as = reported)
                .await;
        if let Some(examined) = examined {
            server.backend.pretend(examined);
        }
        let headers = [("x-langbot-instance-id", "i1")];
        let rpc = Rpc(connect(request(server.url("/rpc/ws"), &headers)).await.unwrap());
        let root = tempfile::tempdir().unwrap();
        let mut host = Self { server, rpc, root };
        host.init(json!({"required": true, "workspace_quota_mb": 64})).await;
        host
    }

    async fn ready() -> Self {
        Self::new(Some(ReportedBackend::Nsjail), Some(Examined::everything())).await
    }

    async fn init(&mut self, admission: Value) {
        let config = json!({"local": {"host_root": self.root.path()}, "admission": admission});
        self.rpc.ok("box_init", config).await;
    }

    async fn send(&mut self, seq_id: i64, generation: u64, action: &str, data: Value) {
        let context =
            json!({"instance_uuid": "i1", "workspace_uuid": "w", "placement_generation": generation});
        let request = json!({"seq_id": seq_id, "action": action, "data": data, "context": context});
        self.rpc.send(request.to_string()).await;
    }

    async fn ok(&mut self, generation: u64, action: &str, data: Value) -> Value {
        self.send(1, generation, action, data).await;
        let mut reply = self.rpc.reply().await;
        assert_eq!(reply["code"], 0, "{action}: {reply}");
        reply["data"].take()
    }

    async fn err(&mut self, generation: u64, action: &str, data: Value) -> String {
        self.send(1, generation, action, data).await;
        let reply = self.rpc.reply().await;
        assert_eq!(reply["code"], 1, "{action}: {reply}");
        reply["message"].as_str().unwrap().to_owned()
    }

    async fn grant(&mut self, revision: u64, generation: u64, seconds: u64) -> Value {
        self.rpc.ok(GRANT, grant(revision, generation, seconds)).await
    }

    fn sessions(&self) -> usize {
        self.server.app.runtime.sessions().len()
    }
}

fn grant(revision: u64, generation: u64, seconds: u64) -> Value {
    let expires = Timestamp::from(Timestamp::now().0 + Duration::from_secs(seconds));
    json!({
        "instance_uuid": "i1", "workspace_uuid": "w", "execution_generation": generation,
        "entitlement_revision": revision, "expires_at": expires, "max_sessions": 1, "max_managed_processes": 0,
    })
}

fn exec(cmd: &str) -> Value {
    json!({"session_id": "global", "cmd": cmd, "timeout_sec": 300})
}

fn failed(readiness: &Value) -> Vec<&str> {
    let checks = readiness["checks"].as_object().unwrap();
    CHECKS.into_iter().filter(|name| checks[*name] == false).collect()
}

#[tokio::test]
async fn a_backend_of_another_name_is_not_ready_unless_the_operator_reports_it_so() {
    let mut host = Host::new(None, Some(Examined::everything())).await;
    let unready = host.rpc.err("box_health", json!({})).await;
    assert_eq!(unready, "BoxReadinessError: managed sandbox isolation is not ready");
    let info = host.rpc.ok("box_get_backend_info", json!({})).await;
    assert_eq!((&info["name"], &info["available"]), (&json!("fake"), &json!(false)));
    let readiness = &info["readiness"];
    assert_eq!(readiness["mode"], "grant_enforced");
    let names: Vec<&String> = readiness["checks"].as_object().unwrap().keys().collect();
    assert_eq!(names.len(), CHECKS.len(), "{readiness}");
    // What is not the backend that is asked for is not looked at.
    assert_eq!(failed(readiness), [&CHECKS[1..2], &CHECKS[3..12]].concat());
    assert!(readiness["error"].as_str().unwrap().contains("langbot.report_backend_as"), "{readiness}");
    assert_eq!(host.server.backend.calls().examine, 0);
    let refused = host.err(1, "box_get_sessions", json!({})).await;
    let said = "BoxReadinessError: Managed sandbox isolation is not ready (failed checks: required_backend, ";
    assert!(refused.starts_with(said), "{refused}");
    let (status, body) = host.server.http("GET", "/readyz", &[]).await;
    assert_eq!(status, 503, "{body}");
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((&body["mode"], &body["ready"]), (&json!("grant_enforced"), &json!(false)));
    // Grants can be had before.
    assert_eq!(host.grant(1, 1, 100).await["installed"], true);
    host.server.stop().await;
}

#[tokio::test]
async fn each_check_that_does_not_hold_is_named_and_refuses_sessions() {
    for (promise, name) in [
        (Promise::CgroupV2, "cgroup_v2"),
        (Promise::Namespaces, "namespace_isolation"),
        (Promise::Mounts, "mount_isolation"),
        (Promise::Network, "network_isolation"),
        (Promise::WorkspaceQuota, "hard_workspace_quota"),
        (Promise::ReadOnlyMounts, "hard_read_only_mount_quota"),
        (Promise::EphemeralStorage, "bounded_ephemeral_storage"),
        (Promise::InodeQuota, "inode_quota"),
    ] {
        let mut examined = Examined::everything();
        examined.set(promise, Err("it leaks".to_owned()));
        let mut host = Host::new(Some(ReportedBackend::Nsjail), Some(examined)).await;
        let info = host.rpc.ok("box_get_backend_info", json!({})).await;
        assert_eq!(failed(&info["readiness"]), [name]);
        assert_eq!(info["readiness"]["backend"]["details"], json!({name: "it leaks"}));
        host.grant(1, 1, 100).await;
        let refused = host.err(1, "box_exec", exec("echo")).await;
        assert!(refused.ends_with(&format!("(failed checks: {name})")), "{refused}");
        host.server.stop().await;
    }
    let mut host = Host::ready().await;
    host.init(json!({"required": true})).await;
    let info = host.rpc.ok("box_get_backend_info", json!({})).await;
    assert_eq!(failed(&info["readiness"]), ["hard_workspace_quota", "inode_quota"], "no quota is asked for");
    host.server.stop().await;
}

#[tokio::test]
async fn a_grant_allows_one_session_with_the_figures_of_the_policy() {
    let mut host = Host::ready().await;
    let health = host.rpc.ok("box_health", json!({})).await;
    assert_eq!((&health["ready"], failed(&health).len()), (&json!(true), 0));
    let info = host.rpc.ok("box_get_backend_info", json!({})).await;
    assert_eq!((&info["name"], &info["available"]), (&json!("nsjail"), &json!(true)));
    assert_eq!(host.server.http("GET", "/readyz", &[]).await.0, 200);
    assert_eq!(host.server.backend.calls().examine, 1, "what was found counts for a while");
    for action in ["box_status", "box_get_sessions"] {
        let missing = host.err(2, action, json!({})).await;
        assert_eq!(missing, "BoxAdmissionError: Sandbox admission grant is missing");
    }
    host.grant(1, 2, 100).await;
    let asked = json!({"session_id": "mine", "memory_mb": 4096, "pids_limit": 4000, "cpus": 8});
    let session = host.ok(2, "box_create_session", asked).await;
    assert_eq!((&session["session_id"], &session["backend_name"]), (&json!("global"), &json!("nsjail")));
    assert_eq!((&session["memory_mb"], &session["pids_limit"]), (&json!(512), &json!(128)));
    assert_eq!((&session["workspace_quota_mb"], &session["persistent"]), (&json!(64), &json!(true)));
    let placement = Placement::new("i1", "w", 2);
    let root = host.root.path().canonicalize().unwrap();
    let workspace = root.join("default/tenants").join(placement.workspace());
    assert_eq!(session["host_path"], json!(workspace));

    let [id] = &host.server.backend.sessions()[..] else { panic!("one box") };
    let made = host.server.backend.spec(id).unwrap();
    assert_eq!(id.as_str(), placement.physical("global").unwrap());
    assert!(matches!(made.strictness, Strictness::Require(_)), "nothing weaker is let run");
    assert_eq!(made.mounts[0].quota, Some(DiskLimit::Hard(64 << 20)));
    assert!(matches!(made.limits.disk, DiskLimit::Hard(_)));

    let done = host.ok(2, "box_exec", exec("echo hi")).await;
    assert_eq!((&done["stdout"], &done["backend_name"]), (&json!("hi"), &json!("nsjail")));
    let status = host.ok(2, "box_status", json!({})).await;
    assert_eq!(status["capacity"], json!({"limit": 1, "used": 1, "remaining": 0}));
    assert_eq!(status["backend"]["readiness"]["ready"], true);
    for (action, data, why) in [
        ("box_get_session", json!({"session_id": "mine"}), "Managed sandbox session_id is runtime-owned"),
        (
            "box_start_managed_process",
            json!({"session_id": "global", "spec": {"command": "cat"}}),
            "Sandbox admission grant does not permit managed processes",
        ),
        (
            "box_exec",
            json!({"session_id": "global", "cmd": "echo", "network": "on"}),
            "Managed sandbox network access is disabled",
        ),
        (
            "box_exec",
            json!({"session_id": "global", "cmd": "echo", "host_path": "/tmp"}),
            "Managed sandbox host_path is runtime-owned",
        ),
    ] {
        assert_eq!(host.err(2, action, data).await, format!("BoxAdmissionError: {why}"));
    }
    let other = host.err(3, "box_get_sessions", json!({})).await;
    let said = "BoxAdmissionError: Sandbox admission grant belongs to another execution generation";
    assert_eq!(other, said);
    host.server.stop().await;
}

#[tokio::test]
async fn the_end_of_a_grant_ends_its_calls_and_its_session() {
    let mut host = Host::ready().await;
    let ended = "BoxAdmissionError: Sandbox admission grant ended while the action ran";
    host.grant(1, 1, 100).await;
    host.send(7, 1, "box_exec", exec("hang")).await;
    until("the command runs", || host.server.backend.calls().exec == 1).await;
    host.grant(2, 1, 200).await;
    assert_eq!(host.sessions(), 1, "a renewal disturbs nothing");
    let revocation = json!({"instance_uuid": "i1", "workspace_uuid": "w", "entitlement_revision": 2});
    host.rpc.request(8, REVOKE, revocation).await;
    let mut replies = [host.rpc.reply().await, host.rpc.reply().await];
    replies.sort_by_key(|reply| reply["seq_id"].as_i64());
    assert_eq!(replies[0]["message"], ended);
    let receipt = json!({"revoked": true, "workspace_uuid": "w", "entitlement_revision": 2});
    assert_eq!(replies[1]["data"], receipt);
    assert_eq!((host.sessions(), host.server.backend.sessions().len()), (0, 0));
    let missing = host.err(1, "box_exec", exec("echo")).await;
    assert_eq!(missing, "BoxAdmissionError: Sandbox admission grant is missing");
    let again = host.rpc.err(GRANT, grant(2, 1, 100)).await;
    assert_eq!(again, "BoxAdmissionError: Sandbox admission grant revision was revoked");

    // One that expires, with a command under way.
    host.grant(3, 1, 2).await;
    assert_eq!(host.err(1, "box_exec", exec("hang")).await, ended);
    until("the session is gone", || host.sessions() == 0).await;
    let missing = host.err(1, "box_exec", exec("echo")).await;
    assert_eq!(missing, "BoxAdmissionError: Sandbox admission grant is missing");

    // Another generation ends the one before.
    host.grant(4, 1, 100).await;
    host.ok(1, "box_exec", exec("echo")).await;
    host.grant(4, 2, 100).await;
    assert_eq!(host.sessions(), 0);
    let stale = host.rpc.err(GRANT, grant(5, 1, 100)).await;
    assert_eq!(stale, "BoxAdmissionError: Sandbox admission execution generation is stale");
    host.ok(2, "box_exec", exec("echo")).await;
    host.server.stop().await;
}

#[tokio::test]
async fn what_is_required_stays_required_and_is_for_nobody_else() {
    let mut host = Host::ready().await;
    host.grant(1, 1, 100).await;
    host.ok(1, "box_exec", exec("echo")).await;
    let foreign = host.rpc.err(GRANT, {
        let mut grant = grant(1, 1, 100);
        grant["instance_uuid"] = json!("i2");
        grant
    });
    let said = "PermissionError: Sandbox admission grant does not match the trusted instance";
    assert_eq!(foreign.await, said);
    let unread = host.rpc.err(GRANT, json!({"plan": "pro"})).await;
    assert!(
        unread.starts_with("BoxValidationError: 8 validation errors for SandboxAdmissionGrant"),
        "{unread}"
    );
    // A configuration without the section leaves it as it is.
    host.rpc.ok("box_init", json!({})).await;
    host.ok(1, "box_exec", exec("echo")).await;
    // One that cannot be read has no quota either.
    let unread = ["configuration", "hard_workspace_quota", "inode_quota"];
    for (section, error, checks) in [
        (json!({"required": false}), "cannot be disabled without restarting", &unread[..1]),
        (json!(null), "cannot be disabled without restarting", &unread[..1]),
        (json!({"required": true, "bogus": 1}), "Extra inputs are not permitted", &unread[..]),
    ] {
        host.init(section).await;
        let info = host.rpc.ok("box_get_backend_info", json!({})).await;
        assert_eq!(failed(&info["readiness"]), checks);
        assert!(info["readiness"]["error"].as_str().unwrap().contains(error), "{info}");
        let refused = host.err(1, "box_exec", exec("echo")).await;
        assert!(refused.ends_with(&format!("(failed checks: {})", checks.join(", "))), "{refused}");
        let refused = host.rpc.err(GRANT, grant(2, 1, 100)).await;
        assert!(
            refused.starts_with("BoxReadinessError: Invalid sandbox admission configuration"),
            "{refused}"
        );
    }
    let mut first = host.server.rpc().await;
    let refused = first.err("box_exec", json!({"session_id": "s", "cmd": "echo"})).await;
    assert!(refused.starts_with("BoxAdmissionError: this runtime holds workspaces to"), "{refused}");
    host.server.stop().await;
}

#[tokio::test]
async fn sessions_from_before_are_ended() {
    let server = Server::start().await;
    let headers = [("x-langbot-instance-id", "i1")];
    let rpc = Rpc(connect(request(server.url("/rpc/ws"), &headers)).await.unwrap());
    let mut host = Host { server, rpc, root: tempfile::tempdir().unwrap() };
    host.ok(1, "box_create_session", json!({"session_id": "s", "persistent": true})).await;
    host.init(json!({"required": true})).await;
    until("the session is gone", || host.sessions() == 0).await;
    host.server.stop().await;
}
