use serde_json::json;

use super::*;

/// HOME and TOKEN are set, the input `key` is given.
struct Known;

impl Values for Known {
    fn variable(&self, name: &str) -> Option<String> {
        match name {
            "HOME" => Some("/home/u".to_owned()),
            "TOKEN" => Some("secret".to_owned()),
            _ => None,
        }
    }

    fn input(&self, id: &str) -> Option<String> {
        (id == "key").then(|| "given".to_owned())
    }
}

fn names(import: &Import) -> Vec<&str> {
    import.servers.iter().map(|server| server.name.as_str()).collect()
}

#[test]
fn claude_desktop_s_file_is_taken_as_it_is() {
    let text = r#"{"globalShortcut": "", "mcpServers": {
        "filesystem": {"command": "npx", "args": ["-y", "@modelcontextprotocol/server-filesystem", "/data"],
            "env": {"DEBUG": "1", "PORT": 80, "NOTHING": null}},
        "off": {"command": "uvx", "args": ["mcp-server-time"], "disabled": true}
    }}"#;
    let import = import(text, &Known).unwrap();
    assert_eq!(names(&import), ["filesystem", "off"]);
    let filesystem = &import.servers[0].registration;
    assert_eq!((filesystem.command.as_str(), filesystem.args.len(), filesystem.enabled), ("npx", 3, true));
    let env: BTreeMap<_, _> =
        [("DEBUG", "1"), ("PORT", "80")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    assert_eq!(filesystem.env, env);
    assert!(!import.servers[1].registration.enabled);
    assert!(import.refused.is_empty());
}

#[test]
fn cursor_s_servers_on_the_network_are_named_apart() {
    let text = r#"{"mcpServers": {
        "linear": {"url": "https://mcp.linear.app/sse", "headers": {}},
        "remote": {"type": "http", "url": "https://example.com"},
        "local": {"command": "python", "args": ["${env:HOME}/s.py"], "alwaysAllow": ["x"], "cwd": "/x", "odd": 1}
    }}"#;
    let import = import(text, &Known).unwrap();
    assert_eq!(names(&import), ["local"]);
    assert_eq!(import.servers[0].registration.args, ["/home/u/s.py"]);
    let notes = import.servers[0].notes.join("; ");
    assert!(notes.contains("`cwd` is not used") && notes.contains("`odd` means nothing here"), "{notes}");
    assert_eq!(import.refused, [], "nothing that could be started is left out");
    let remote: Vec<_> = import.remote.iter().map(ToString::to_string).collect();
    assert_eq!(remote.len(), 2);
    assert!(remote[0].starts_with("linear: it is reached over the network (url)"), "{remote:?}");
    assert!(remote[1].contains("(http)"), "{remote:?}");
}

#[test]
fn vs_code_s_file_has_comments_inputs_and_placeholders() {
    let text = r#"{
        // secrets are asked for
        "inputs": [{"type": "promptString", "id": "key", "password": true}, {"id": "zone", "default": "eu"}, {"id": "none"}],
        "servers": {
            "a": {"type": "stdio", "command": "npx", "args": ["--zone=${input:zone}", "${TOKEN}", "${UNSET:-none}"],
                  "env": {"KEY": "${input:key}", "T": "x-${env:TOKEN}-y"},},
            "b": {"type": "stdio", "command": "x", "env": {"A": "${input:none}"}},
            "c": {"command": "x", "args": ["${workspaceFolder}/s.py"]},
            "d": {"command": "x", "envFile": ".env"},
            "e": {"command": "x", "args": ["${env:UNSET}"]},
        },
    }"#;
    let import = import(text, &Known).unwrap();
    assert_eq!(names(&import), ["a"]);
    let a = &import.servers[0].registration;
    assert_eq!(a.args, ["--zone=eu", "secret", "none"]);
    assert_eq!((a.env["KEY"].as_str(), a.env["T"].as_str()), ("given", "x-secret-y"));
    let reasons: Vec<_> = import.refused.iter().map(ToString::to_string).collect();
    for (reason, part) in
        reasons.iter().zip(["--input none=VALUE", "workspaceFolder", "envFile", "not set here"])
    {
        assert!(reason.contains(part), "{reason}");
    }
    let nested = format!("{{\"editor.x\": 1, \"mcp\": {text}}}");
    assert_eq!(names(&super::import(&nested, &Known).unwrap()), ["a"]);
}

#[test]
fn names_that_tools_cannot_carry_are_changed_or_refused() {
    let text = r#"{"mcpServers": {
        "My Server": {"command": "x"}, "my-server": {"command": "x"}, "My-Server": {"command": "y"},
        "box": {"command": "x"}, "中": {"command": "x"}
    }}"#;
    let import = import(text, &Known).unwrap();
    assert_eq!(names(&import), ["My-Server", "my-server"]);
    assert_eq!(import.servers[0].original, "My Server");
    let refused: Vec<_> = import.refused.iter().map(|refused| refused.name.as_str()).collect();
    assert_eq!(refused, ["My-Server", "box", "中"]);
    assert!(import.refused[0].reason.contains("which `My Server` has already"), "{}", import.refused[0]);
}

#[test]
fn what_is_no_such_file_says_so() {
    assert!(matches!(import("{", &Known), Err(ImportError::Json(_))));
    assert_eq!(import("{}", &Known), Err(ImportError::NoServers));
    assert_eq!(
        import(&json!({"mcpServers": []}).to_string(), &Known),
        Err(ImportError::NotAnObject("mcpServers"))
    );
    let bad =
        json!({"mcpServers": {"a": {"args": []}, "b": 1, "c": {"command": "x", "args": [1]}}}).to_string();
    assert_eq!(import(&bad, &Known).unwrap().refused.len(), 3);
}
