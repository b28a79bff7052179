//! Command lines as clients' configurations have them.

use super::*;

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn understood(text: &str) -> Result<Understood, CommandError> {
    let mut words = words(text);
    let command = words.remove(0);
    understand(&command, &words)
}

fn npm(packages: &str, program: Option<&str>, args: &str) -> Understood {
    Understood::Npm { packages: words(packages), program: program.map(str::to_owned), args: words(args) }
}

fn tool(package: &str, with: &str, python: Option<&str>, program: &str, args: &str) -> Understood {
    Understood::Tool {
        package: package.to_owned(),
        with: words(with),
        python: python.map(str::to_owned),
        program: program.to_owned(),
        args: words(args),
    }
}

#[test]
fn npx_is_an_install_and_a_run() {
    for (text, expected) in [
        ("npx -y some-server", npm("some-server", None, "")),
        ("npx --yes @scope/pkg@1.2.3 --stdio -y", npm("@scope/pkg@1.2.3", None, "--stdio -y")),
        ("/opt/node/bin/npx pkg@latest a", npm("pkg@latest", None, "a")),
        ("npx --package=a@1 -p b bin --x", npm("a@1 b", Some("bin"), "--x")),
        ("npx -y --package a -- bin -p x", npm("a", Some("bin"), "-p x")),
        ("npm exec -y pkg -- --flag", npm("pkg", None, "-- --flag")),
    ] {
        assert_eq!(understood(text).unwrap(), expected, "{text}");
    }
    for (text, word) in [
        ("npx", "nothing to run"),
        ("npx -y", "nothing to run"),
        ("npx -c ls", "`-c`"),
        ("npx -y ./server", "node SCRIPT"),
        ("npx -p a ../bin", "no name of a program"),
        ("npx --package", "names no package"),
    ] {
        let error = understood(text).unwrap_err().to_string();
        assert!(error.starts_with("`npx`") && error.contains(word), "{text}: {error}");
    }
}

#[test]
fn uvx_is_an_install_and_a_run() {
    for (text, expected) in [
        ("uvx mcp-server-time", tool("mcp-server-time", "", None, "mcp-server-time", "")),
        ("uvx pkg@1.2 --tz UTC", tool("pkg==1.2", "", None, "pkg", "--tz UTC")),
        ("uvx pkg@latest", tool("pkg", "", None, "pkg", "")),
        ("uvx pkg==1.2", tool("pkg==1.2", "", None, "pkg", "")),
        ("uvx pkg[cli]>=2 run", tool("pkg[cli]>=2", "", None, "pkg", "run")),
        ("uvx --from x[a]@2 bin --from y", tool("x[a]==2", "", None, "bin", "--from y")),
        (
            "uvx --python=3.12 --with a,b --with c --from git+https://h.example/x@main bin",
            tool("git+https://h.example/x@main", "a b c", Some("3.12"), "bin", ""),
        ),
        ("uv tool run -q pkg", tool("pkg", "", None, "pkg", "")),
    ] {
        assert_eq!(understood(text).unwrap(), expected, "{text}");
    }
    for (text, word) in [
        ("uvx", "nothing to run"),
        ("uvx --from", "no value"),
        ("uvx --what x", "`--what`"),
        ("uvx ./x", "folder"),
    ] {
        let error = understood(text).unwrap_err().to_string();
        assert!(error.contains(word), "{text}: {error}");
    }
}

#[test]
fn uv_run_names_its_project_and_other_uses_of_uv_are_left_alone() {
    for (text, directory, args) in [
        ("uv run server.py", None, "server.py"),
        ("uv --directory /p run weather.py --x", Some("/p"), "weather.py --x"),
        ("uv run --project=/p --frozen -- python -m mod", Some("/p"), "python -m mod"),
    ] {
        let expected = Understood::UvRun { directory: directory.map(str::to_owned), args: words(args) };
        assert_eq!(understood(text).unwrap(), expected, "{text}");
    }
    assert!(understood("uv run").unwrap_err().problem.contains("nothing to run"));
    assert!(matches!(understood("uv pip list").unwrap(), Understood::Other { .. }));
}

#[test]
fn interpreters_and_their_scripts_are_told() {
    for (text, script) in [
        ("python server.py", Some("server.py")),
        ("/p/.venv/bin/python3.12 -u -X dev /p/main.py --x", Some("/p/main.py")),
        ("python -m mod", None),
        ("python3 -c pass", None),
        ("node dist/index.js", Some("dist/index.js")),
        ("node --import tsx --no-warnings s.ts", Some("s.ts")),
        ("node -e 1", None),
        ("uv run weather.py", Some("weather.py")),
        ("uv run mcp run server.py", None),
        ("./server a.py", None),
        ("pythonic server.py", None),
    ] {
        assert_eq!(understood(text).unwrap().script(), script, "{text}");
    }
    assert!(matches!(understood("/p/.venv/bin/python -m mod").unwrap(), Understood::Python { .. }));
    assert!(matches!(understood("./server").unwrap(), Understood::Other { .. }));
}
