//! The rules for paths, with the words they are refused in.

use std::sync::Arc;

use serde_json::{Value, json};

use super::fake::{FakeClient, FakeExecutor, lock};
use super::*;
use crate::policy::SkillMounts;
use crate::skills::Filesystem;

/// A toolbox over a fake runtime.
pub(super) struct Bench {
    pub(super) client: Arc<FakeClient>,
    pub(super) executor: Arc<FakeExecutor>,
    pub(super) toolbox: Toolbox,
    pub(super) query: Query,
}

impl Bench {
    pub(super) fn with_policy(policy: Policy) -> Self {
        Self::with_mounts(policy, SkillMounts::default())
    }

    fn with_mounts(policy: Policy, skill_mounts: SkillMounts) -> Self {
        let client = Arc::new(FakeClient::new());
        let executor = Arc::new(FakeExecutor { skill_mounts, ..FakeExecutor::new(Arc::clone(&client)) });
        let skills = Arc::new(SkillsView::new(Filesystem::Separate));
        let toolbox = Toolbox::new(Arc::clone(&executor) as Arc<dyn Executor>, skills, policy);
        Self { client, executor, toolbox, query: Query::default() }
    }

    pub(super) fn new() -> Self {
        Self::with_policy(Policy::default())
    }

    pub(super) async fn skill(&self, name: &str) {
        self.client.skill(name, "");
        self.toolbox.skills.reload(&*self.client).await;
    }

    pub(super) async fn call(&mut self, tool: &str, arguments: Value) -> Result<Value> {
        self.toolbox.call(tool, &arguments, &mut self.query).await
    }

    pub(super) async fn ok(&mut self, tool: &str, arguments: Value) -> Value {
        self.call(tool, arguments).await.unwrap()
    }

    pub(super) async fn refusal(&mut self, tool: &str, arguments: Value) -> String {
        self.call(tool, arguments).await.unwrap_err().message
    }
}

#[tokio::test]
async fn paths_outside_the_workspace_are_refused_in_the_known_words() {
    let mut bench = Bench::new();
    bench.client.put("/workspace/a.txt", "inside");
    bench.client.put("/etc/passwd", "outside");
    for (path, message) in [
        ("/etc/passwd", "Path must be under /workspace."),
        ("a.txt", "Path must be under /workspace."),
        ("workspace/a.txt", "Path must be under /workspace."),
        ("/", "Path must be under /workspace."),
        ("/workspace/../etc/passwd", "Path escapes the workspace boundary."),
        ("/workspace/a/../../etc/passwd", "Path escapes the workspace boundary."),
        ("/workspace/a/../a.txt", "Path must not contain \"..\"."),
        ("/workspace/.skills", "Path must include a skill name under /workspace/.skills/<skill-name>."),
        ("/workspace/.skills/", "Path must include a skill name under /workspace/.skills/<skill-name>."),
        ("/workspace//.skills/.", "Path must include a skill name under /workspace/.skills/<skill-name>."),
        ("/workspace/a\0b", "Path must not contain a NUL."),
    ] {
        for (tool, mut arguments) in [
            ("read", json!({})),
            ("write", json!({"content": "x"})),
            ("edit", json!({"old_string": "a", "new_string": "b"})),
            ("glob", json!({"pattern": "*"})),
            ("grep", json!({"pattern": "x"})),
        ] {
            arguments["path"] = path.into();
            assert_eq!(bench.refusal(tool, arguments).await, message, "{tool} {path}");
        }
    }
    assert!(lock(&bench.client.calls).is_empty(), "what the text forbids asks the runtime nothing");
}

// F5: a prefix of text is no directory.
#[tokio::test]
async fn a_name_that_only_begins_like_the_workspace_is_outside() {
    let mut bench = Bench::new();
    bench.client.put("/workspace/a.txt", "inside");
    bench.client.put("/workspacea.txt", "outside");
    for path in ["/workspacea.txt", "/workspaceX/a.txt", "/workspace.bak"] {
        assert_eq!(bench.refusal("read", json!({"path": path})).await, "Path must be under /workspace.");
    }
    let spelled = bench.ok("read", json!({"path": " /workspace//./a.txt "})).await;
    assert_eq!(spelled["content"], "inside");
}

#[tokio::test]
async fn an_empty_path_is_the_workspace() {
    let mut bench = Bench::new();
    bench.client.put("/workspace/a.txt", "");
    for path in ["", "  ", "/workspace", "/workspace/"] {
        let listed = bench.ok("read", json!({"path": path})).await;
        assert_eq!(listed, json!({"ok": true, "content": "a.txt", "is_directory": true}), "{path:?}");
    }
}

#[tokio::test]
async fn skills_are_read_when_visible_and_written_when_activated() {
    let mut bench = Bench::new();
    bench.skill("pdf").await;
    bench.skill("csv").await;
    bench.query.bound_skills = Some(vec!["pdf".to_owned()]);
    let path = json!({"path": "/workspace/.skills/pdf/SKILL.md"});
    assert_eq!(bench.ok("read", path.clone()).await["content"], "# pdf");
    let hidden = "Skill \"csv\" is not available at this path. Activated skills: none. Visible skills: pdf.";
    assert_eq!(bench.refusal("read", json!({"path": "/workspace/.skills/csv/SKILL.md"})).await, hidden);
    // A spelling of the same path.
    assert_eq!(bench.refusal("read", json!({"path": "/workspace//.skills/./csv"})).await, hidden);
    let write = json!({"path": "/workspace/.skills/pdf/new.txt", "content": "x"});
    assert_eq!(
        bench.refusal("write", write.clone()).await,
        "Skill \"pdf\" is not available at this path. Activated skills: none. Visible skills: pdf."
    );
    bench.ok("activate", json!({"skill_name": "pdf"})).await;
    bench.ok("write", write).await;
    assert_eq!(bench.client.content("/workspace/.skills/pdf/new.txt").unwrap(), "x");
    let edit = json!({"path": "/workspace/.skills/pdf/new.txt", "old_string": "x", "new_string": "y"});
    bench.ok("edit", edit).await;
    assert_eq!(bench.client.content("/workspace/.skills/pdf/new.txt").unwrap(), "y");
    // The runtime is asked anew after each change in a package.
    let listed = lock(&bench.client.calls).iter().filter(|call| call.starts_with("box_list_skills")).count();
    assert_eq!(listed, 4);
}

// F10: a session that began before a skill was installed has no package of it.
#[tokio::test]
async fn a_package_that_is_not_mounted_is_no_place_to_write() {
    let mut bench = Bench::new();
    bench.skill("old").await;
    lock(&bench.client.skills).push(json!({"name": "late", "package_root": "/srv/skills/late"}));
    bench.toolbox.skills.reload(&*bench.client).await;
    bench.ok("activate", json!({"skill_name": "late"})).await;
    let arguments = json!({"path": "/workspace/.skills/late/a.txt", "content": "x"});
    let message = bench.refusal("write", arguments).await;
    assert!(message.contains("in a new session"), "{message}");
    assert_eq!(bench.client.content("/workspace/.skills/late/a.txt"), None);
}

// S5: until it is activated a package is read-only by its mount, for commands and for files alike.
#[tokio::test]
async fn policy_makes_unactivated_packages_read_only() {
    use sandcrate_protocol::{MountMode, MountSpec};
    for (skill_mounts, before) in
        [(SkillMounts::AsListed, MountMode::Rw), (SkillMounts::ReadOnlyUntilActivated, MountMode::Ro)]
    {
        let mut bench = Bench::with_mounts(Policy::default(), skill_mounts);
        bench.skill("pdf").await;
        let mount = MountSpec::new("/srv/skills/pdf", "/workspace/.skills/pdf", MountMode::Rw);
        lock(&bench.executor.spec).extra_mounts.push(mount);
        for expected in [before, MountMode::Rw] {
            // A spelling that no look at the text finds.
            for (tool, arguments) in
                [("read", json!({"path": ""})), ("exec", json!({"command": "ls /workspace/.skil''ls/pdf"}))]
            {
                bench.ok(tool, arguments).await;
                assert_eq!(
                    lock(&bench.client.specs).last().unwrap().extra_mounts[0].mode,
                    expected,
                    "{tool}"
                );
            }
            bench.ok("activate", json!({"skill_name": "pdf"})).await;
        }
    }
}

#[tokio::test]
async fn without_a_workspace_of_the_host_only_skills_have_files() {
    let mut bench = Bench::new();
    bench.skill("pdf").await;
    bench.client.put("/workspace/a", "x");
    lock(&bench.executor.spec).host_path = None;
    let message = bench.refusal("read", json!({"path": "/workspace/a"})).await;
    assert_eq!(message, "No host workspace configured for file operations.");
    bench.ok("read", json!({"path": "/workspace/.skills/pdf"})).await;
    bench.toolbox = bench.toolbox.with_box_workspace();
    assert_eq!(bench.ok("read", json!({"path": "/workspace/a"})).await["content"], "x");
}

// S1, S3: no step of a path may be a link, wherever it leads.
#[tokio::test]
async fn links_are_followed_by_no_file_tool() {
    let mut bench = Bench::new();
    bench.client.put("/etc/passwd", "secret");
    bench.client.put("/workspace/real/a.txt", "inside");
    bench.client.link("/workspace/file", "/etc/passwd");
    bench.client.link("/workspace/dir", "/etc");
    bench.client.link("/workspace/deep/dir", "/etc");
    for path in ["/workspace/file", "/workspace/dir/passwd", "/workspace/dir", "/workspace/deep/dir/x/new"] {
        for (tool, mut arguments) in [
            ("read", json!({})),
            ("write", json!({"content": "x"})),
            ("edit", json!({"old_string": "secret", "new_string": "b"})),
            ("glob", json!({"pattern": "*"})),
            ("grep", json!({"pattern": "secret"})),
        ] {
            arguments["path"] = path.into();
            let message = bench.refusal(tool, arguments).await;
            assert!(message.starts_with("Path escapes the workspace boundary."), "{tool} {path}: {message}");
        }
    }
    assert_eq!(bench.client.content("/etc/passwd").unwrap(), "secret");
    let opened = |call: &String| ["read ", "write ", "list "].iter().any(|kind| call.starts_with(kind));
    assert!(!lock(&bench.client.calls).iter().any(opened));
}

// S3, F11: the tools ask the runtime for paths in the box, also for skills, and know no path of the host.
#[tokio::test]
async fn everything_is_asked_of_the_runtime_by_paths_in_the_box() {
    let mut bench = Bench::new();
    bench.skill("pdf").await;
    bench.client.put("/workspace/.skills/pdf/src/a.py", "needle");
    let glob = bench.ok("glob", json!({"pattern": "*.py", "path": "/workspace/.skills/pdf"})).await;
    assert_eq!(glob["matches"], json!(["/workspace/.skills/pdf/src/a.py"]));
    let grep = bench.ok("grep", json!({"pattern": "needle", "path": "/workspace/.skills/pdf"})).await;
    assert_eq!(grep["matches"][0]["file"], "/workspace/.skills/pdf/src/a.py");
    for call in lock(&bench.client.calls).iter().filter(|call| !call.starts_with("box_")) {
        assert!(call.contains(" /workspace"), "{call}");
    }
}

#[tokio::test]
async fn tools_are_offered_while_a_backend_serves_and_policy_allows() {
    let bench = Bench::with_policy(Policy { deny: vec!["exec".to_owned()], ..Policy::default() });
    let names = |tools: Vec<ToolDefinition>| tools.iter().map(|tool| tool.name).collect::<Vec<_>>().join(" ");
    let offered = names(bench.toolbox.definitions(&bench.query).await);
    assert_eq!(offered, "read write edit glob grep activate register_skill");
    bench.client.backend.store(false, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(names(bench.toolbox.definitions(&bench.query).await), "");
    bench.client.backend.store(true, std::sync::atomic::Ordering::Relaxed);
    // F8: with the skills of this moment.
    bench.skill("late").await;
    let tools = bench.toolbox.list(&bench.query, ToolFormat::Anthropic).await;
    let activate = tools.iter().find(|tool| tool["name"] == "activate").unwrap();
    assert!(activate["description"].as_str().unwrap().contains("- late: "));
}

#[tokio::test]
async fn policy_is_asked_before_every_call() {
    let mut bench = Bench::with_policy(Policy { deny: vec!["write".to_owned()], ..Policy::default() });
    let error = bench.call("write", json!({"path": "/workspace/a", "content": ""})).await.unwrap_err();
    assert_eq!(error, crate::policy::PolicyError::ToolDenied { tool: "write".to_owned() }.into());
    assert_eq!(
        bench.refusal("exec", json!({"command": "id", "elevated": true})).await,
        "elevated calls are not allowed by policy"
    );
    let mut bench = Bench::with_policy(Policy { mode: SandboxMode::NonDefault, ..Policy::default() });
    let message = bench.refusal("exec", json!({"command": "id"})).await;
    assert_eq!(message, "session `global` has no sandbox by policy, and tools run nowhere else");
    bench.query.launcher_id = Some("person_1".into());
    bench.ok("exec", json!({"command": "id"})).await;
    assert_eq!(bench.refusal("fly", json!({})).await, "unknown tool `fly`");
}

proptest::proptest! {
    // S2, F5: whatever is accepted is below the workspace by its components, and in no skill that is not known.
    #[test]
    fn accepted_paths_stay_in_the_workspace(
        parts in proptest::collection::vec("workspace|workspaceX|\\.skills|\\.\\.|\\.|etc||a b|known", 0..6),
        start in "|/|/workspace/|/workspace/\\.skills/",
    ) {
        let given = format!("{start}{}", parts.join("/"));
        let (skills, mut query) = (SkillsView::new(Filesystem::Separate), Query::default());
        query.variables.insert("_activated_skills".to_owned(), json!({"known": {}}));
        if let Ok(place) = path::resolve(&given, Access::Change, &skills, &query) {
            let names: Vec<&str> = place.path.split('/').collect();
            proptest::prop_assert_eq!(&names[..2], &["", "workspace"]);
            proptest::prop_assert!(names[2..].iter().all(|name| !["", ".", ".."].contains(name)));
            if names.get(2) == Some(&".skills") {
                proptest::prop_assert_eq!(names.get(3), Some(&"known"));
                proptest::prop_assert_eq!(place.skill.as_deref(), Some("known"));
            }
        }
    }
}
