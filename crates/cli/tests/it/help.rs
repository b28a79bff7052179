//! Help, the manual page and completions say the same.

use crate::driver::sandcrate;

/// Every flag of `run` and `doctor` that a person may type.
const FLAGS: [&str; 24] = [
    "--env",
    "--env-file",
    "--workdir",
    "--volume",
    "--image",
    "--memory",
    "--cpus",
    "--pids-limit",
    "--quota",
    "--tmp-size",
    "--timeout",
    "--network",
    "--allow-net",
    "--deny-net",
    "--publish",
    "--read-only",
    "--writable-root",
    "--interactive",
    "--tty",
    "--name",
    "--output",
    "--quiet",
    "--require",
    "--attack",
];

fn text_of(args: &[&str]) -> String {
    let output = sandcrate(args).run();
    assert_eq!(output.code, 0, "{args:?}: {output:?}");
    assert!(output.stderr.is_empty(), "{args:?}: {output:?}");
    output.stdout
}

#[test]
fn help_and_manual_name_every_flag() {
    let help = text_of(&["run", "--help"]) + &text_of(&["doctor", "--help"]);
    // In roff, a hyphen that is to be one is written `\-`.
    let man = text_of(&["man"]).replace("\\-", "-");
    for flag in FLAGS {
        assert!(help.contains(flag), "{flag} is not in the help");
        assert!(man.contains(flag), "{flag} is not in the manual page");
    }
    for text in [&help, &man] {
        assert!(text.contains("Examples:") && text.contains("124 timeout"), "examples and exit codes");
    }
    assert!(!help.contains("__attack") && !man.contains("__attack"), "a hidden role stays hidden");
}

#[test]
fn help_and_manual_have_the_verbs_below_verbs() {
    let man = text_of(&["man"]).replace("\\-", "-");
    for (verb, flags) in [
        (&["mcp", "run"][..], &["--install-network", "--env-from-client", "--project-mode"][..]),
        (&["session", "create"][..], &["--persistent", "--label", "--ttl"][..]),
        (&["session", "ls"], &["--label", "--url"]),
        (&["session", "network"], &["--output"]),
        (&["session", "ports"], &["--publish", "--close"]),
        (&["top"], &["--once", "--interval"]),
        (&["denials"], &["--output"]),
        (&["exec"], &["--no-create", "--detach", "--token-file"]),
        (&["cp"], &["--quiet"]),
        (&["skill", "ls"], &["--quiet", "--output"]),
        (&["skill", "add"], &["--select", "--subdir", "--preview"]),
        (&["skill", "edit"], &["--description", "--display-name", "--instructions"]),
        (&["skill", "export"], &["--to", "--force"]),
        (&["skill", "rm"], &["--output"]),
        (&["logs"], &["--follow", "--tail"]),
        (&["tls", "init"], &["--domain", "--dir"]),
        (
            &["serve"],
            &[
                "--tls-cert",
                "--tls-key",
                "--listen",
                "--config",
                "--state-dir",
                "--token-file",
                "--log-format",
            ],
        ),
        (&["box"], &["--host", "--stdio-control", "--ws-control-port"]),
        (&["image", "import"], &["--max-size", "--max-entries", "--state-dir"]),
        (&["image", "ls"], &["--output"]),
        (&["image", "rm"], &["--force"]),
        (&["config", "show"], &["--config", "--output"]),
        (&["mcp", "serve"], &["--session", "--profile", "--max-timeout", "--url"]),
        (&["mcp", "config"], &["--write", "--file", "--name"]),
    ] {
        let help = text_of(&[verb, &["--help"]].concat());
        assert!(help.contains("Examples:"), "{verb:?}: {help}");
        for flag in flags {
            assert!(help.contains(flag) && man.contains(flag), "{flag} of {verb:?} is missing");
        }
        assert!(
            man.contains(&format!("SANDCRATE {}", verb.join(" ").to_uppercase())),
            "{verb:?} has no section"
        );
    }
    assert!(!man.contains("--token "), "a token is never an argument");
}

#[test]
fn completions_generate_for_every_shell() {
    for shell in ["bash", "zsh", "fish"] {
        let script = text_of(&["completions", shell]);
        for word in ["sandcrate", "doctor", "pids-limit", "writable-root"] {
            assert!(script.contains(word), "{word} is not in the script for {shell}");
        }
    }
}

#[test]
fn the_version_is_the_packages() {
    assert_eq!(text_of(&["--version"]).trim(), format!("sandcrate {}", env!("CARGO_PKG_VERSION")));
}

#[test]
fn no_arguments_and_unknown_words_are_our_error() {
    for args in [&[][..], &["frobnicate"], &["run"], &["run", "--frobnicate", "--", "true"]] {
        let output = sandcrate(args).run();
        assert_eq!(output.code, 125, "{args:?}: {output:?}");
        assert!(output.stdout.is_empty() && output.stderr.contains("sandcrate"), "{args:?}: {output:?}");
    }
}
