//! `sandcrate config show`: what is in force, and why.

use crate::driver::{StateDir, sandcrate};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

#[test]
fn every_value_has_its_origin() {
    let dir = StateDir::new();
    std::fs::write(dir.path().join("sandcrate.toml"), "[native]\npool = 7\n[server]\nallow_uids = [5]\n")
        .unwrap();
    let call = || {
        sandcrate(&["config", "show", "--listen", "127.0.0.1:1", "-o", "json"])
            .dir(dir.path())
            .env("SANDCRATE__SERVER__ALLOW_UIDS", "1000,1001")
            .env("SANDCRATE_TOKEN", TOKEN)
    };
    let shown = call().run();
    assert!(!shown.stdout.contains(TOKEN) && shown.stderr.is_empty(), "{shown:?}");
    let json = shown.json();
    let file = dir.path().join("sandcrate.toml").display().to_string();
    assert_eq!(json["file"], *file);
    assert_eq!(json["token"], serde_json::json!({"set": true, "origin": "env", "source": "SANDCRATE_TOKEN"}));
    for (key, value, origin, source) in [
        ("native.pool", "7", "file", file.as_str()),
        ("server.allow_uids", "[1000,1001]", "env", "SANDCRATE__SERVER__ALLOW_UIDS"),
        ("server.listen", "[\"127.0.0.1:1\"]", "flag", "--listen"),
        ("server.legacy", "\"off\"", "default", ""),
        ("limits.sessions", "2000", "default", ""),
    ] {
        let setting = &json["settings"][key];
        assert_eq!(
            (setting["value"].to_string().as_str(), setting["origin"].as_str()),
            (value, Some(origin)),
            "{key}"
        );
        assert_eq!(setting["source"].as_str().unwrap_or_default(), source, "{key}");
    }
}

#[test]
fn the_text_can_be_pasted_into_a_file() {
    let dir = StateDir::new();
    let first = sandcrate(&["config", "show"]).dir(dir.path()).run().ok();
    assert!(first.contains("# token: unset") && first.contains("# file: none"), "{first}");
    assert!(first.contains("native.pool = 4 "), "{first}");
    let file = dir.path().join("pasted.toml");
    std::fs::write(&file, &first).unwrap();
    let second =
        sandcrate(&["config", "show", "--config", &file.display().to_string()]).dir(dir.path()).run().ok();
    let settings = |text: &str| -> Vec<String> {
        let lines =
            text.lines().filter(|line| !line.starts_with('#') && !line.starts_with("runtime.state_dir"));
        // The socket is in the state directory, of which each call has its own.
        let lines = lines.filter(|line| !line.starts_with("server.listen"));
        lines.map(|line| line.split("  #").next().unwrap().trim_end().to_owned()).collect()
    };
    assert_eq!(settings(&first), settings(&second));
}

#[test]
fn what_is_not_valid_is_refused_as_serve_would() {
    let dir = StateDir::new();
    let file = dir.path().join("bad.toml");
    std::fs::write(&file, "[native]\npool = 1000\n").unwrap();
    let path = file.display().to_string();
    let output = sandcrate(&["config", "show", "--config", &path]).run();
    assert_eq!((output.code, output.stdout.as_str()), (125, ""), "{output:?}");
    for word in ["native.pool = 1000", path.as_str(), "0 to 64"] {
        assert!(output.stderr.contains(word), "`{word}` is not in: {}", output.stderr);
    }
    let output = sandcrate(&["config", "show", "-o", "json", "--config", &path]).run();
    assert_eq!((output.code, &output.json()["ok"]), (125, &false.into()));
}
