//! exec, and the tools for skills: what reaches the executor, and what does not.

use sandcrate_protocol::NetworkMode;
use serde_json::{Value, json};

use super::fake::lock;
use super::path_tests::Bench;

/// What the executor was last asked to run.
fn executed(bench: &Bench) -> Value {
    lock(&bench.executor.executed).last().cloned().unwrap_or_default()
}

#[tokio::test]
async fn a_command_is_passed_on_with_what_was_given() {
    let mut bench = Bench::new();
    let result = bench.ok("exec", json!({"command": "ls", "description": "look"})).await;
    assert_eq!(result["ok"], true);
    assert_eq!(executed(&bench), json!({"command": "ls"}));
    let arguments = json!({"command": "ls", "workdir": "/tmp", "timeout_sec": "7", "env": {"A": "b"}});
    bench.ok("exec", arguments).await;
    let passed = json!({"command": "ls", "workdir": "/tmp", "timeout_sec": 7, "env": {"A": "b"}});
    assert_eq!(executed(&bench), passed);
    assert!(lock(&bench.client.calls).is_empty(), "a command without a skill needs no look into the box");
}

#[tokio::test]
async fn a_command_works_with_one_activated_skill() {
    let mut bench = Bench::new();
    for name in ["one", "two", "other"] {
        bench.skill(name).await;
    }
    let (one, two) = ("/workspace/.skills/one", "/workspace/.skills/two");
    assert_eq!(
        bench.refusal("exec", json!({"command": format!("cat {one}/x")})).await,
        "Skill \"one\" must be activated before exec can run in its package."
    );
    assert_eq!(
        bench.refusal("exec", json!({"command": "ls", "workdir": one})).await,
        "Skill \"one\" is not available at this path. Activated skills: none. Visible skills: one, other, two."
    );
    for name in ["one", "two"] {
        bench.ok("activate", json!({"skill_name": name})).await;
    }
    assert_eq!(
        bench.refusal("exec", json!({"command": format!("cp {one}/x {two}/y")})).await,
        "exec can target at most one activated skill package per call."
    );
    assert_eq!(
        bench.refusal("exec", json!({"command": format!("cp x {two}/y"), "workdir": one})).await,
        "exec can reference files from only one activated skill package per call."
    );
    assert_eq!(
        bench.refusal("exec", json!({"command": "ls", "workdir": "/workspace/.skills"})).await,
        "Path must include a skill name under /workspace/.skills/<skill-name>."
    );
    assert!(lock(&bench.executor.executed).is_empty());
    let command = format!("cp {one}/x {one}/y");
    bench.ok("exec", json!({"command": command, "workdir": format!("{one}/sub")})).await;
    assert_eq!(executed(&bench), json!({"command": command, "workdir": format!("{one}/sub")}));
}

#[tokio::test]
async fn a_skill_without_a_package_runs_nothing() {
    let mut bench = Bench::new();
    lock(&bench.client.skills).push(json!({"name": "bare"}));
    bench.toolbox.skills.reload(&*bench.client).await;
    bench.ok("activate", json!({"skill_name": "bare"})).await;
    let message = bench.refusal("exec", json!({"command": "ls /workspace/.skills/bare"})).await;
    assert_eq!(message, "Activated skill \"bare\" has no package_root.");
}

// F7: whether an environment is needed is seen in the box, and a build gets the time it takes.
#[tokio::test]
async fn a_python_package_gets_its_environment() {
    let mut bench = Bench::new();
    bench.skill("py").await;
    bench.ok("activate", json!({"skill_name": "py"})).await;
    let arguments = json!({"command": "python run.py", "workdir": "/workspace/.skills/py"});
    bench.ok("exec", arguments.clone()).await;
    assert_eq!(executed(&bench)["command"], "python run.py");
    bench.client.put("/workspace/.skills/py/requirements.txt", "x");
    bench.ok("exec", arguments.clone()).await;
    let offline = executed(&bench);
    let command = offline["command"].as_str().unwrap();
    assert!(command.starts_with("sc_dir=/workspace/.skills/py\nsc_network=off\n"), "{command}");
    assert!(command.ends_with("exec sh -c 'python run.py'\n"), "{command}");
    assert_eq!(offline.get("timeout_sec"), None, "without a network nothing is built");
    lock(&bench.executor.spec).network = NetworkMode::On;
    bench.ok("exec", arguments.clone()).await;
    assert_eq!(executed(&bench)["timeout_sec"], 120);
    let mut arguments = arguments;
    arguments["timeout_sec"] = 5.into();
    bench.ok("exec", arguments).await;
    assert_eq!(executed(&bench)["timeout_sec"], 5);
}

#[tokio::test]
async fn a_directory_becomes_a_skill() {
    let mut bench = Bench::new();
    bench.client.put("/workspace/mine/SKILL.md", "");
    let arguments = json!({"path": "/workspace/mine", "name": "mine", "description": "said"});
    let result = bench.ok("register_skill", arguments).await;
    let skill = json!({
        "name": "mine", "display_name": "", "description": "said", "instructions": "text",
        "package_root": "/srv/box/default/mine",
    });
    let expected = json!({
        "registered": true, "skill_name": "mine", "source_path": "/workspace/mine", "skill": skill,
    });
    assert_eq!(result, expected);
    assert!(bench.toolbox.skills().visible_skill(&bench.query, "mine").is_some());
    let result = bench.ok("register_skill", json!({"path": "/workspace/mine"})).await;
    assert_eq!(result["skill_name"], "scanned");
}

#[tokio::test]
async fn a_directory_that_cannot_be_a_skill_is_refused_in_the_known_words() {
    let mut bench = Bench::new();
    bench.client.put("/workspace/file", "");
    bench.client.put("/workspace/mine/SKILL.md", "");
    bench.client.link("/workspace/link", "/etc");
    for (arguments, message) in [
        (json!({}), "path is required"),
        (json!({"path": " "}), "path is required"),
        (json!({"path": "/etc"}), "path must be under /workspace"),
        (json!({"path": "/workspace/../etc"}), "path escapes the workspace boundary"),
        (json!({"path": "/workspace/link"}), "path escapes the workspace boundary"),
        (json!({"path": "/workspace/none"}), "Directory does not exist: /workspace/none"),
        (json!({"path": "/workspace/file"}), "Directory does not exist: /workspace/file"),
        // S9: also when it is made.
        (
            json!({"path": "/workspace/mine", "name": "../../etc"}),
            "`../../etc` cannot be the name of a skill: letters, digits, - and _ only, at most 64",
        ),
    ] {
        assert_eq!(bench.refusal("register_skill", arguments).await, message);
    }
    lock(&bench.executor.spec).host_path = None;
    let message = bench.refusal("register_skill", json!({"path": "/workspace/mine"})).await;
    assert_eq!(message, "No default workspace configured");
}
