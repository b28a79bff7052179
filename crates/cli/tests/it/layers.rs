//! Crates depend downwards only, and versions stand in one place.

use std::collections::BTreeMap;

use toml::{Table, Value};

use crate::source_tree::root;

struct Manifest {
    name: String,
    layer: Option<i64>,
    table: Table,
}

fn manifests() -> Vec<Manifest> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(root().join("crates")).unwrap() {
        let path = entry.unwrap().path().join("Cargo.toml");
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        let table: Table = text.parse().unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let package = table["package"].as_table().unwrap();
        let layer =
            package.get("metadata").and_then(|meta| meta.get("sandcrate")?.get("layer")?.as_integer());
        found.push(Manifest { name: package["name"].as_str().unwrap().to_owned(), layer, table });
    }
    assert!(found.len() >= 6, "the crates were not found");
    found
}

/// Tables of dependencies of these kinds, those for single targets included.
fn dependencies<'a>(table: &'a Table, kinds: &[&str]) -> Vec<(&'a String, &'a Value)> {
    let targets = table
        .get("target")
        .and_then(Value::as_table)
        .into_iter()
        .flat_map(Table::values)
        .filter_map(Value::as_table);
    std::iter::once(table)
        .chain(targets)
        .flat_map(|place| kinds.iter().filter_map(|kind| place.get(*kind)?.as_table()))
        .flat_map(Table::iter)
        .collect()
}

#[test]
fn dependencies_point_down_the_layers() {
    let manifests = manifests();
    let layers: BTreeMap<_, _> =
        manifests.iter().map(|manifest| (manifest.name.as_str(), manifest.layer)).collect();
    let mut wrong = Vec::new();
    for manifest in &manifests {
        let Some(layer) = manifest.layer else {
            wrong.push(format!("{} has no [package.metadata.sandcrate] layer", manifest.name));
            continue;
        };
        // A crate's tests may look up: they build nothing that ships.
        for (name, _) in dependencies(&manifest.table, &["dependencies", "build-dependencies"]) {
            if let Some(Some(below)) = layers.get(name.as_str())
                && *below >= layer
            {
                wrong.push(format!(
                    "{} (layer {layer}) must not depend on {name} (layer {below})",
                    manifest.name
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn versions_stand_in_the_root_manifest_only() {
    let mut wrong = Vec::new();
    for manifest in manifests() {
        for (name, value) in
            dependencies(&manifest.table, &["dependencies", "build-dependencies", "dev-dependencies"])
        {
            let inherited = value.get("workspace").and_then(Value::as_bool) == Some(true);
            if !inherited || ["version", "path", "git"].iter().any(|key| value.get(key).is_some()) {
                wrong.push(format!("{}: {name} must be `{name}.workspace = true`", manifest.name));
            }
        }
        for key in ["version", "edition", "rust-version", "license"] {
            let value = manifest.table["package"].get(key);
            let inherited = value.and_then(|value| value.get("workspace")?.as_bool()) == Some(true);
            // What never ships has no version.
            let none = key == "version" && value.and_then(Value::as_str) == Some("0.0.0");
            if !inherited && !none {
                wrong.push(format!("{}: `{key}.workspace = true` is missing", manifest.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn unsafe_code_is_a_matter_of_two_crates() {
    for manifest in manifests() {
        let lints = manifest.table.get("lints").unwrap_or_else(|| panic!("{} has no [lints]", manifest.name));
        let inherits = lints.get("workspace").and_then(Value::as_bool) == Some(true);
        let may_differ = ["sandcrate-sys", "sandcrate-probe"].contains(&manifest.name.as_str());
        assert!(inherits || may_differ, "{} must inherit the workspace's lints", manifest.name);
    }
}
