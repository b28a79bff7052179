//! What a query sees of the skills, and what it may activate.

use sandcrate_protocol::MountSpec;

use super::*;
use crate::tools::fake::{FakeClient, lock};

async fn view(client: &FakeClient, filesystem: Filesystem) -> SkillsView {
    let view = SkillsView::new(filesystem);
    view.reload(client).await;
    view
}

fn names(skills: &[Skill]) -> Vec<&str> {
    skills.iter().map(|skill| skill.name.as_str()).collect()
}

fn bound(names: &[&str]) -> Query {
    Query { bound_skills: Some(names.iter().map(|&name| name.to_owned()).collect()), ..Query::default() }
}

// S9: a name becomes a directory in a box, so one that is a path is not taken from the runtime either.
#[tokio::test]
async fn skills_whose_names_are_no_directory_names_are_left_out() {
    let client = FakeClient::new();
    client.skill("good", "");
    client.skill("技能_1", "");
    for bad in ["../../etc", "a/b", "..", "a b", "", "---", &"x".repeat(65), "a\0"] {
        lock(&client.skills).push(json!({"name": bad, "package_root": "/srv/x"}));
    }
    lock(&client.skills).push(json!({"package_root": "/srv/nameless"}));
    let view = view(&client, Filesystem::Separate).await;
    assert_eq!(names(&view.all()), ["good", "技能_1"]);
}

#[tokio::test]
async fn a_missing_package_counts_only_where_it_can_be_looked_at() {
    let place = tempfile::tempdir().unwrap();
    let client = FakeClient::new();
    for (name, root) in [("here", place.path().to_str().unwrap()), ("gone", "/not/there"), ("none", "")] {
        lock(&client.skills).push(json!({"name": name, "package_root": root}));
    }
    assert_eq!(names(&view(&client, Filesystem::Shared).await.all()), ["here", "none"]);
    assert_eq!(names(&view(&client, Filesystem::Separate).await.all()), ["here", "gone", "none"]);
}

#[tokio::test]
async fn a_query_sees_the_skills_it_is_bound_to() {
    let client = FakeClient::new();
    for name in ["a", "b", "c"] {
        client.skill(name, "");
    }
    let view = view(&client, Filesystem::Separate).await;
    assert_eq!(names(&view.visible(&Query::default())), ["a", "b", "c"]);
    assert_eq!(names(&view.visible(&bound(&["c", "a", "x"]))), ["a", "c"]);
    assert_eq!(names(&view.visible(&bound(&[]))), [""; 0]);
    let mut query = Query::default();
    query.variables.insert(BOUND.to_owned(), json!(["b", 1]));
    assert_eq!(names(&view.visible(&query)), ["b"]);
    query.variables.insert(BOUND.to_owned(), Value::Null);
    assert_eq!(names(&view.visible(&query)), ["a", "b", "c"]);
}

#[tokio::test]
async fn activation_is_for_one_query_and_the_first_counts() {
    let client = FakeClient::new();
    client.skill("pdf", "Reads PDF.");
    let view = view(&client, Filesystem::Separate).await;
    let mut query = Query::default();
    let result = view.activate(&mut query, " pdf ").unwrap();
    assert_eq!(result["activated"], true);
    assert_eq!(result["skill_name"], "pdf");
    assert_eq!(result["mount_path"], "/workspace/.skills/pdf");
    let content = result["content"].as_str().unwrap();
    for part in [
        "<command-message>",
        "<skill-activation>",
        "<skill-name>pdf</skill-name>",
        "<mount-path>/workspace/.skills/pdf</mount-path>",
        "<package-root>/srv/skills/pdf</package-root>",
        "## Instructions\n\nHow to use pdf.",
        "## Runtime Context",
    ] {
        assert!(content.contains(part), "{part}: {content}");
    }
    assert_eq!(names(&activated(&query)), ["pdf"]);
    assert_eq!(activated(&Query::default()), []);
    lock(&client.skills)[0]["package_root"] = json!("/srv/elsewhere");
    view.reload(&client).await;
    view.activate(&mut query, "pdf").unwrap();
    assert_eq!(activated_skill(&query, "pdf").unwrap().package_root, "/srv/skills/pdf");
}

// S11: what the pipeline is not bound to cannot be activated, and is not named.
#[tokio::test]
async fn a_skill_that_the_query_is_not_bound_to_cannot_be_activated() {
    let client = FakeClient::new();
    for name in ["b", "a", "secret"] {
        client.skill(name, "");
    }
    let view = view(&client, Filesystem::Separate).await;
    let mut query = bound(&["b", "a"]);
    let error = view.activate(&mut query, "secret").unwrap_err();
    assert_eq!(error.message, "Skill \"secret\" not found. Available skills: a, b");
    assert_eq!(activated(&query), []);
    assert_eq!(view.activate(&mut query, " ").unwrap_err().message, "skill_name is required");
    let error = view.activate(&mut bound(&[]), "a").unwrap_err();
    assert_eq!(error.message, "Skill \"a\" not found. Available skills: none");
}

// F8: the description is made from what is there when it is asked for.
#[tokio::test]
async fn texts_are_rendered_for_each_request() {
    let client = FakeClient::new();
    let view = view(&client, Filesystem::Separate).await;
    let query = Query::default();
    assert!(view.activate_description(&query).ends_with("No skills are currently available."));
    assert_eq!(view.prompt(&query), None);
    client.skill("pdf", "Reads\n  PDF files. ");
    view.reload(&client).await;
    let text = view.activate_description(&query);
    assert!(text.contains("<available_skills>\n- pdf: Reads PDF files.\n</available_skills>"), "{text}");
    let text = view.prompt(&query).unwrap();
    assert!(text.starts_with("Available Skills:\n- pdf (pdf): Reads PDF files.\n"), "{text}");
    assert!(text.contains("`activate`"));
    assert_eq!(view.prompt(&bound(&[])), None);
}

#[tokio::test]
async fn nothing_is_known_when_the_runtime_does_not_answer() {
    let client = FakeClient::new();
    client.skill("pdf", "");
    let view = view(&client, Filesystem::Separate).await;
    assert_eq!(view.all().len(), 1);
    client.answers.store(false, std::sync::atomic::Ordering::Relaxed);
    view.reload(&client).await;
    assert_eq!(view.all().len(), 0);
    client.answers.store(true, std::sync::atomic::Ordering::Relaxed);
    view.reload(&client).await;
    assert_eq!(view.all().len(), 1);
}

// S5: until it is activated a package is read-only by its mount, whatever the text of a command looks like.
#[tokio::test]
async fn packages_are_read_only_until_they_are_activated() {
    let client = FakeClient::new();
    client.skill("one", "");
    client.skill("two", "");
    let view = view(&client, Filesystem::Separate).await;
    let mut query = Query::default();
    view.activate(&mut query, "one").unwrap();
    let mut spec = BoxSpec::new("s");
    for path in ["/workspace/.skills/one", "/workspace/.skills/two", "/workspace/.skillsX", "/data"] {
        spec.extra_mounts.push(MountSpec::new("/srv", path, MountMode::Rw));
    }
    restrict_mounts(&mut spec, &query);
    let modes: Vec<_> = spec.extra_mounts.iter().map(|mount| mount.mode).collect();
    assert_eq!(modes, [MountMode::Rw, MountMode::Ro, MountMode::Rw, MountMode::Rw]);
}
