//! The skills that a box is given.

use std::sync::Arc;

use sandcrate_host::policy::SkillMounts;
use sandcrate_host::tools::Executor;
use sandcrate_host::{Client, Query, Service, SkillPackage, SkillZip};
use sandcrate_protocol::{BoxSpec, MountMode, MountSpec};
use serde_json::json;

use crate::mock::MockClient;
use crate::support::{Bench, logged, query, service};

fn over(shared: bool, skills: &[(&str, &str)]) -> Service {
    let builder = Service::builder().client(Arc::new(MockClient::default()));
    let service = builder.shares_filesystem(shared).build().unwrap();
    let skills = skills
        .iter()
        .map(|(name, root)| SkillPackage { name: (*name).to_owned(), package_root: (*root).to_owned() });
    service.set_skills(Some(skills.collect()));
    service
}

fn mount(root: &str, name: &str) -> MountSpec {
    MountSpec::new(root, format!("/workspace/.skills/{name}"), MountMode::Rw)
}

#[test]
fn test_skips_skill_with_missing_package_root() {
    let place = tempfile::tempdir().unwrap();
    let there = place.path().to_str().unwrap();
    let service = over(true, &[("gone", "/no/such/directory"), ("there", there)]);
    let log = logged(|| assert_eq!(service.skill_mounts(&query(1)), [mount(there, "there")]));
    assert!(log.contains("gone") && log.contains("package_root missing"), "{log}");
}

#[test]
fn test_trusts_box_paths_when_filesystem_not_shared() {
    let service = over(false, &[("b", "/box/b"), ("a", "/box/a")]);
    let log = logged(|| {
        assert_eq!(service.skill_mounts(&query(1)), [mount("/box/b", "b"), mount("/box/a", "a")]);
    });
    assert_eq!(log, "");
}

#[test]
fn test_skips_skill_with_empty_package_root() {
    let service = over(true, &[("a", ""), ("b", "   ")]);
    assert!(service.skill_mounts(&query(1)).is_empty());
}

#[test]
fn test_empty_package_root_skipped_even_when_not_shared() {
    let service = over(false, &[("a", ""), ("b", " "), ("c", " /box/c ")]);
    assert_eq!(service.skill_mounts(&query(1)), [mount("/box/c", "c")]);
}

#[test]
fn test_returns_empty_when_no_skill_manager() {
    let service = Service::builder().client(Arc::new(MockClient::default())).build().unwrap();
    assert!(service.skill_mounts(&query(1)).is_empty());
}

#[test]
fn only_bound_skills_are_mounted_and_no_name_leaves_its_directory() {
    let service = over(false, &[("a", "/box/a"), ("../../etc", "/box/x"), ("b", "/box/b")]);
    let bound = |names: &[&str]| Query {
        bound_skills: Some(names.iter().map(|name| (*name).to_owned()).collect()),
        ..query(1)
    };
    assert_eq!(service.skill_mounts(&bound(&["b", "../../etc"])), [mount("/box/b", "b")]);
    assert_eq!(service.skill_mounts(&query(1)).len(), 2);
}

#[tokio::test]
async fn the_first_command_of_a_session_has_the_mounts_already() {
    let client = Arc::new(MockClient::default());
    let service = service(Arc::clone(&client) as _, &json!({})).await;
    service.set_skills(Some(vec![SkillPackage { name: "a".to_owned(), package_root: "/box/a".to_owned() }]));
    service.execute_tool(&json!({"command": "x"}), &query(1)).await.unwrap();
    assert_eq!(client.last_spec().extra_mounts, [mount("/box/a", "a")]);
}

async fn a_skill_lives(service: &Service) {
    let made = json!({"name": "adder", "description": "adds", "instructions": "add"});
    assert_eq!(service.create_skill(made).await.unwrap()["name"], "adder");
    assert_eq!(service.list_skills().await.unwrap().len(), 1);
    let written = service.write_skill_file("adder", "lib/a.py", "print(1)").await.unwrap();
    assert_eq!((&written["bytes_written"], &written["skill"]["name"]), (&json!(8), &json!("adder")));
    assert_eq!(service.read_skill_file("adder", "lib/a.py").await.unwrap()["content"], "print(1)");
    let listed = service.list_skill_files("adder", None).await.unwrap();
    assert!(listed["entries"].as_array().unwrap().len() >= 2, "{listed}");
    let changed = service.update_skill("adder", json!({"description": "adds more"})).await.unwrap();
    assert_eq!(changed["description"], "adds more");
    assert_eq!(service.get_skill("adder").await.unwrap().unwrap()["description"], "adds more");
    let root = changed["package_root"].as_str().unwrap().to_owned();
    assert_eq!(service.scan_skill_directory(&root).await.unwrap()["name"], "adder");
    service.delete_skill("adder").await.unwrap();
    assert_eq!(service.get_skill("adder").await.unwrap(), None);
    let error = service.preview_skill_zip(&SkillZip::new(b"no archive", "x.zip")).await.unwrap_err();
    assert_eq!(error.class(), "BoxValidationError", "{error}");
}

#[tokio::test]
async fn skills_are_reached_in_process_and_over_rpc_alike() {
    let bench = Bench::new().await;
    a_skill_lives(&bench.service(json!({})).await).await;
    let server = crate::support::Server::start().await;
    let remote = Service::builder().config(&server.config()).build().unwrap();
    remote.initialize().await;
    a_skill_lives(&remote).await;
}

/// As many empty files as that, stored.
fn archive(files: u16) -> Vec<u8> {
    let (mut archive, mut directory) = (Vec::new(), Vec::new());
    for number in 0..files {
        let name = format!("s/{number}");
        let length = u8::try_from(name.len()).unwrap();
        let at = u32::try_from(archive.len()).unwrap().to_le_bytes();
        archive.extend_from_slice(b"PK\x03\x04");
        archive.extend_from_slice(&[0; 22]);
        archive.extend_from_slice(&[length, 0, 0, 0]);
        archive.extend_from_slice(name.as_bytes());
        directory.extend_from_slice(b"PK\x01\x02");
        directory.extend_from_slice(&[0; 24]);
        directory.extend_from_slice(&[length, 0]);
        directory.extend_from_slice(&[0; 12]);
        directory.extend_from_slice(&at);
        directory.extend_from_slice(name.as_bytes());
    }
    let at = u32::try_from(archive.len()).unwrap().to_le_bytes();
    let length = u32::try_from(directory.len()).unwrap().to_le_bytes();
    archive.extend_from_slice(&directory);
    archive.extend_from_slice(b"PK\x05\x06\0\0\0\0");
    archive.extend_from_slice(&[files.to_le_bytes(), files.to_le_bytes()].concat());
    archive.extend_from_slice(&[length, at].concat());
    archive.extend_from_slice(&[0; 2]);
    archive
}

/// S12: an archive is held to limits; here to that of its entries.
#[tokio::test]
async fn s12_an_archive_of_too_many_files_is_refused() {
    let bench = Bench::new().await;
    let service = bench.service(json!({})).await;
    let refused = async |files| {
        let archive = archive(files);
        service.preview_skill_zip(&SkillZip::new(&archive, "x.zip")).await.unwrap_err().message
    };
    let error = refused(10_001).await;
    assert!(error.contains("10000"), "{error}");
    let error = refused(10).await;
    assert!(error.contains("SKILL.md"), "otherwise it is read: {error}");
}

/// S5: what is not activated cannot be changed, by a command or by a file tool; the same mounts for both.
#[tokio::test]
async fn skills_can_be_mounted_read_only_until_they_are_activated() {
    let client = Arc::new(MockClient::default());
    let service = Service::builder()
        .client(Arc::clone(&client) as Arc<dyn Client>)
        .skill_mounts(SkillMounts::ReadOnlyUntilActivated)
        .build()
        .unwrap();
    service.initialize().await;
    let package =
        |name: &str| SkillPackage { name: name.to_owned(), package_root: format!("/skills/{name}") };
    service.set_skills(Some(vec![package("one"), package("two")]));
    let mut asked = query(7);
    asked.variables.insert("_activated_skills".to_owned(), json!({"two": {"name": "two"}}));
    service.execute_tool(&json!({"command": "true"}), &asked).await.unwrap();
    let modes = |spec: &BoxSpec| spec.extra_mounts.iter().map(|mount| mount.mode).collect::<Vec<_>>();
    assert_eq!(modes(&client.last_spec()), [MountMode::Ro, MountMode::Rw]);
    let for_files = Executor::spec_for(&service, &asked).await.unwrap();
    assert_eq!(for_files.extra_mounts, client.last_spec().extra_mounts);
}
