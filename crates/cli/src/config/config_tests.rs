use std::path::Path;

use serde_json::json;

use super::layers::leaves;
use super::model::KEYS;
use super::*;
use crate::failure::Shown;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

struct Case {
    dir: tempfile::TempDir,
    outside: Outside,
    asked: Asked,
}

/// A configuration with this file and these variables, loaded in a directory of its own.
fn case(file: &str, vars: &[(&str, &str)]) -> Case {
    let dir = tempfile::tempdir().unwrap();
    if !file.is_empty() {
        std::fs::write(dir.path().join("sandcrate.toml"), file).unwrap();
    }
    let mut vars: Vec<(OsString, OsString)> = vars.iter().map(|(k, v)| (k.into(), v.into())).collect();
    vars.push(("SANDCRATE_STATE_DIR".into(), dir.path().join("state").into()));
    let outside = Outside { vars, cwd: dir.path().to_owned() };
    Case { dir, outside, asked: Asked { config: None, flags: Vec::new(), role: Role::Serve } }
}

impl Case {
    fn flag(mut self, flag: &'static str, key: &'static str, value: Value) -> Self {
        self.asked.flags.push((flag, key, value));
        self
    }

    fn boxed(mut self, host: Option<&str>, stdio: bool) -> Self {
        self.asked.role = Role::Box { host: host.map(|host| host.parse().unwrap()), port: None, stdio };
        self
    }

    fn load(self) -> anyhow::Result<Config> {
        load(self.asked, &self.outside)
    }

    /// The whole of what a person would see.
    fn refusal(self) -> String {
        let shown = Shown::of(&self.load().expect_err("must be refused"));
        format!("{} | {}", shown.message, shown.hint.unwrap_or_default())
    }
}

#[test]
fn later_sources_win_and_origins_are_kept() {
    let file = "[native]\npool = 1\n[runtime]\nsession_ttl_sec = 60\n[server]\nshutdown_grace_ms = 5\n";
    let vars = [("SANDCRATE__NATIVE__POOL", "2"), ("SANDCRATE__RUNTIME__SESSION_TTL_SEC", "70")];
    let case = case(file, &vars).flag("--x", "native.pool", json!(3));
    let path = case.dir.path().join("sandcrate.toml");
    let config = case.load().unwrap();
    assert_eq!((config.settings.native.pool, config.settings.runtime.session_ttl_sec), (3, 70));
    assert_eq!(config.server().shutdown_grace, Duration::from_millis(5));
    assert_eq!(config.origin("native.pool"), Origin::Flag("--x".to_owned()));
    assert_eq!(config.origin("runtime.session_ttl_sec"), Origin::Env(vars[1].0.to_owned()));
    assert_eq!(config.origin("server.shutdown_grace_ms"), Origin::File(path));
    assert_eq!(config.origin("log.format"), Origin::Default);
}

#[test]
fn every_refusal_names_the_place_the_key_the_value_and_the_fix() {
    let cases: [(&str, &[&str]); 15] = [
        ("[server]\nlisen = [1]", &["sandcrate.toml:2", "lisen = [1]", "server.lisen", "`listen`"]),
        ("[server]\nlisten = \"x\"", &["sandcrate.toml:2", "server.listen", "\"x\"", "a list such as"]),
        ("[server]\nlisten = [\"foo\"]", &["server.listen", "foo", "ADDRESS:PORT", "a list such as"]),
        ("[server]\nlisten = []", &["server.listen = []", "names no address", "a list such as"]),
        ("\n[native]\npool = \"many\"", &["sandcrate.toml:3", "native.pool", "many", "0 to 64"]),
        ("[native]\npool = 100", &["native.pool = 100", "sandcrate.toml", "0 to 64"]),
        ("[serve]\nx = 1", &["sandcrate.toml:1", "[serve]", "`server`"]),
        ("[server", &["sandcrate.toml:1", "TOML"]),
        ("[server.limits]\nmax_connections = 0", &["server.limits.max_connections = 0", "at least 1"]),
        ("[server]\nlegacy = \"on\"", &["server.legacy", "on", "loopback"]),
        ("[network]\nhost = \"allow\"", &["network.host = allow", "token", "deny"]),
        ("[mounts]\nroots = [\"/etc\"]", &["mounts.roots = /etc", "system", "absolute paths"]),
        ("[mounts]\nroots = [\"data\"]", &["mounts.roots = data", "absolute"]),
        ("[runtime]\nbackend = \"vm\"", &["runtime.backend = vm", "native"]),
        ("[log]\nfilter = \"a=b=c\"", &["log.filter = a=b=c", "info"]),
    ];
    for (file, words) in cases {
        let refusal = case(file, &[]).refusal();
        for word in words {
            assert!(refusal.contains(word), "{file:?}: `{word}` is not in: {refusal}");
        }
    }
    for (name, value, words) in [
        ("SANDCRATE__NATIVE__POOL", "abc", ["native.pool", "abc"]),
        ("SANDCRATE__SERVER__LISTEN", "foo", ["foo", "ADDRESS:PORT"]),
        ("SANDCRATE__SERVR__X", "1", ["servr.x", "`server`"]),
        ("SANDCRATE_CONFIG", "/no/such/file", ["/no/such/file", "no such file"]),
        ("SANDCRATE_CONFIG", "/", ["SANDCRATE_CONFIG /", "is a directory"]),
    ] {
        let refusal = case("", &[(name, value)]).refusal();
        for word in words.iter().chain([&name]) {
            assert!(refusal.contains(word), "{name}: `{word}` is not in: {refusal}");
        }
    }
}

#[test]
fn a_secret_is_never_repeated() {
    let secret = "correct horse battery staple";
    for refusal in [
        case(&format!("[server]\ntoken = \"{secret}\""), &[]).refusal(),
        case("", &[("SANDCRATE__SERVER__TOKEN", secret)]).refusal(),
        case("", &[("SANDCRATE_TOKEN", secret)]).refusal(),
        case("", &[("LANGBOT_BOX_CONTROL_TOKEN", "short")]).refusal(),
    ] {
        assert!(refusal.contains("token") || refusal.contains("TOKEN"), "{refusal}");
        assert!(!refusal.contains("horse") && !refusal.contains("short"), "{refusal}");
    }
}

#[test]
fn variables_are_read_as_the_key_needs_them() {
    let config = case(
        "",
        &[
            ("SANDCRATE__SERVER__LISTEN", "127.0.0.1:1, unix:/run/x.sock"),
            ("SANDCRATE__SERVER__LEGACY", "10.0.0.0/8"),
            ("SANDCRATE__SERVER__ALLOW_UIDS", "1000"),
            ("SANDCRATE__MOUNTS__ROOTS", "[\"/srv/a\"]"),
            ("SANDCRATE__NATIVE__CGROUP_PARENT", "5"),
            ("SANDCRATE__SERVER__LIMITS__MAX_CONNECTIONS", "7"),
            ("SANDCRATE__LOG__FORMAT", "json"),
        ],
    );
    let settings = config.load().unwrap().settings;
    assert_eq!(settings.server.listen.unwrap().len(), 2);
    assert!(matches!(settings.server.legacy, Some(Legacy::Cidrs(cidrs)) if cidrs.len() == 1));
    assert_eq!(settings.server.allow_uids, [1000]);
    assert_eq!(settings.mounts.roots.unwrap(), [Path::new("/srv/a")]);
    assert_eq!(settings.native.cgroup_parent.as_deref(), Some("5"));
    assert_eq!((settings.server.limits.max_connections, settings.log.format), (7, LogFormat::Json));
}

#[test]
fn an_open_address_needs_a_token_networks_or_the_word_insecure() {
    let open = |vars: &[(&str, &str)]| {
        case("", vars).flag("--listen", "server.listen", json!(["0.0.0.0:0", "127.0.0.1:0"]))
    };
    let refusal = open(&[]).refusal();
    for word in ["server.listen = 0.0.0.0:0", "--listen", "SANDCRATE_TOKEN", "--insecure-no-auth"] {
        assert!(refusal.contains(word), "{refusal}");
    }
    open(&[("SANDCRATE_TOKEN", TOKEN)]).load().unwrap();
    open(&[("SANDCRATE__SERVER__LEGACY", "10.0.0.0/8")]).load().unwrap();
    open(&[("SANDCRATE__SERVER__INSECURE_NO_AUTH", "true")]).load().unwrap();
    let both = [("SANDCRATE__SERVER__INSECURE_NO_AUTH", "true"), ("SANDCRATE_TOKEN", TOKEN)];
    assert!(open(&both).refusal().contains("contradicts the token (env SANDCRATE_TOKEN)"));
}

#[test]
fn the_token_is_found_in_order_and_its_file_must_hold_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("token");
    std::fs::write(&path, format!("{TOKEN}\n")).unwrap();
    let file = format!("[server]\ntoken_file = {path:?}\n");
    let by_file = case(&file, &[]).load().unwrap();
    assert!(by_file.token.is_some() && matches!(by_file.token_origin, Origin::File(_)));
    assert!(by_file.warnings.iter().any(|warning| warning.contains("chmod 600")), "{:?}", by_file.warnings);
    let vars = [("LANGBOT_BOX_CONTROL_TOKEN", TOKEN), ("SANDCRATE_TOKEN", TOKEN)];
    assert_eq!(case(&file, &vars).load().unwrap().token_origin, Origin::Env("SANDCRATE_TOKEN".to_owned()));
    let by_flag = case("", &vars).flag("--token-file", "server.token_file", json!(path)).load().unwrap();
    assert_eq!(by_flag.token_origin, Origin::Flag("--token-file".to_owned()));
    std::fs::write(&path, "hunter2").unwrap();
    let refusal = case(&file, &[]).refusal();
    assert!(refusal.contains("server.token_file") && !refusal.contains("hunter2"), "{refusal}");
    std::fs::remove_file(&path).unwrap();
    assert!(case(&file, &[]).refusal().contains("cannot be read"));
}

#[test]
fn box_binds_loopback_until_somebody_can_be_told_apart() {
    let shown = |config: &Config| config.listen().iter().map(ToString::to_string).collect::<Vec<_>>();
    let narrowed = case("", &[]).boxed(Some("0.0.0.0"), false).load().unwrap();
    assert_eq!(shown(&narrowed)[0], "127.0.0.1:5410");
    assert!(narrowed.warnings[0].contains("SANDCRATE__SERVER__LEGACY"), "{:?}", narrowed.warnings);
    assert_eq!(shown(&case("", &[]).boxed(Some("::"), false).load().unwrap())[0], "[::1]:5410");
    for var in [("LANGBOT_BOX_CONTROL_TOKEN", TOKEN), ("SANDCRATE__SERVER__LEGACY", "172.16.0.0/12")] {
        let open = case("", &[var]).boxed(None, false).load().unwrap();
        assert_eq!(shown(&open)[0], "0.0.0.0:5410");
        assert!(open.warnings.is_empty(), "{:?}", open.warnings);
    }
    // What LangBot starts its child with: nobody asked for more than loopback.
    let child = case("", &[]).boxed(None, true).load().unwrap();
    assert_eq!((shown(&child), child.warnings.len()), (vec!["127.0.0.1:5410".to_owned()], 0));
    assert!(child.server().stdio);
    let filed = case("[server]\nlisten = [\"127.0.0.1:77\"]", &[]).boxed(None, false).load().unwrap();
    assert_eq!(shown(&filed), ["127.0.0.1:77"]);
}

#[test]
fn every_key_has_a_form_and_stands_in_the_reference() {
    let mut keys: Vec<_> =
        leaves(&serde_json::to_value(Settings::default()).unwrap()).into_iter().map(|(key, _)| key).collect();
    let mut known: Vec<_> = KEYS.iter().map(|(key, _)| (*key).to_owned()).collect();
    keys.sort();
    known.sort();
    assert_eq!(keys, known);
    let reference = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/config.md");
    let reference = std::fs::read_to_string(reference).unwrap();
    for key in keys {
        assert!(reference.contains(&format!("`{key}`")), "{key} is not in docs/reference/config.md");
    }
}

#[test]
fn the_network_is_read_from_text_and_lists_and_checked_as_a_whole() {
    let file = "[network]\npolicy = \"allow 10.1.2.3:443, allow a.example\"\nallow = [\"10.1.0.0/16\"]\nlocked = true\n\
        [network.limits]\nbytes_per_second = 4096\ntcp_idle_sec = 7";
    let config = case(file, &[("SANDCRATE__NETWORK__DENY", "x.example,*.y.example")]).load().unwrap();
    let network = config.runtime().network;
    assert_eq!(String::from(network.policy), "allow 10.1.2.3:443, allow a.example");
    assert_eq!((network.grants.allow.len(), network.grants.deny.len(), network.locked), (1, 2, true));
    assert_eq!(network.limits.bytes_per_second, Some(4096));
    assert_eq!(network.limits.tcp_idle, Duration::from_secs(7));
    let texted = case("", &[("SANDCRATE__NETWORK__POLICY", "public, deny x.example")]).load().unwrap();
    assert_eq!(String::from(texted.runtime().network.policy), "public, deny x.example");
    assert_eq!(case("", &[]).load().unwrap().runtime().network, NetworkConfig::default());

    for (file, words) in [
        ("[network]\npolicy = \"host\"", &["network.policy = host", "network.host = \"allow\""][..]),
        ("[network]\npolicy = \"allow 10.0.0.1\"", &["network.policy", "10.0.0.1", "network.allow"]),
        ("[network]\npolicy = \"allow *\"", &["sandcrate.toml:2", "network.policy", "`public`"]),
        ("[network]\nallow = [\"10.1.2.3/8\"]", &["network.allow", "write `10.0.0.0/8`"]),
        ("[network]\npublish = \"all\"", &["network.publish", "loopback"]),
        ("[network.limits]\nconnections = 0", &["network.limits.connections = 0", "at least 1"]),
        ("[network.limits]\nbytes_per_second = 1", &["network.limits.bytes_per_second = 1", "1024"]),
    ] {
        let said = case(file, &[]).refusal();
        for word in words {
            assert!(said.contains(word), "{file}: `{word}` is not in: {said}");
        }
    }
    let shared = "[network]\nhost = \"allow\"\npolicy = \"host\"";
    let config = case(shared, &[("SANDCRATE_TOKEN", TOKEN)]).load().unwrap();
    assert_eq!(config.runtime().network.policy, sandcrate_runtime::OnNetwork::Host);
}

#[test]
fn tools_and_profiles_are_read_and_checked() {
    let file = "[tools]\nprofile = \"big\"\ndeny = [\"write\"]\n[profiles.big]\nmemory_mb = 4096\nlocked = [\"network\"]";
    let tools = case(file, &[("SANDCRATE__TOOLS__OUTPUT_LIMIT_CHARS", "500")]).load().unwrap().server().tools;
    assert_eq!((tools.profile.as_str(), tools.output_limit_chars, tools.deny.len()), ("big", 500, 1));
    assert_eq!(tools.profiles["big"].memory_mb, 4096);
    for (file, words) in [
        ("[tools]\nprofile = \"none\"", &["tools.profile = none", "available profiles: default"][..]),
        ("[tools]\nsession_template = \"{a!r}\"", &["tools.session_template"]),
        ("[tools]\nallow = [\"shell\"]", &["tools.allow = shell", "exec, read"]),
        ("[tools]\noutput_limit_chars = 5", &["tools.output_limit_chars = 5", "at least 100"]),
        ("[profiles.default]\ncpus = 2.0", &["profiles = default", "built in"]),
        ("[profiles.x]\nmemory_mb = 1", &["profiles.x.memory_mb", "at least 32"]),
        ("[profiles.x]\nmemroy_mb = 1", &["memroy_mb"]),
    ] {
        let said = case(file, &[]).refusal();
        for word in words {
            assert!(said.contains(word), "{file}: `{word}` is not in: {said}");
        }
    }
}

#[test]
fn e2bs_templates_are_read_and_checked() {
    let file = "[e2b]\ndomain = \"box.example\"\n[e2b.templates.data]\nimage = \"data\"\nprofile = \"big\"\n\
                [profiles.big]\nmemory_mb = 4096";
    let e2b = case(file, &[("SANDCRATE__E2B__NETWORK", "off")]).load().unwrap().server().e2b;
    assert_eq!((e2b.domain.as_deref(), e2b.network.to_string().as_str()), (Some("box.example"), "off"));
    assert_eq!(e2b.templates["data"].image.as_deref(), Some("data"));
    assert_eq!(e2b.profiles["big"].memory_mb, 4096, "templates may name the operator's profiles");
    for (file, words) in [
        ("[e2b]\ndomain = \"https://x\"", &["e2b.domain = https://x", "host name"][..]),
        ("[e2b]\nmax_timeout_sec = 0", &["e2b.max_timeout_sec = 0", "at least 1"]),
        ("[e2b.templates.t]\nprofile = \"none\"", &["t.profile", "none"]),
        ("[e2b.templates.t]\nmemory_mb = 1", &["t.memory_mb", "at least 32"]),
        ("[e2b.templates.t]\nmemroy_mb = 1", &["memroy_mb"]),
    ] {
        let said = case(file, &[]).refusal();
        for word in words {
            assert!(said.contains(word), "{file}: `{word}` is not in: {said}");
        }
    }
}
