//! `pip install` and `npm install` through the index that this machine is configured for, allowed by rule.
//!
//! The one test outside the world of namespaces: it has to be where the index is. It names no host; it asks pip and npm
//! which they use, lets a box reach that and nothing else, and tries nothing else. The one other name it asks for is
//! refused before anything is sent.

use std::process::{Command, ExitCode};

use sandcrate_backend::Isolation;
use sandcrate_protocol::network::DenialKind;

use crate::stage::{Stage, grants};

/// Small, without dependencies.
const PIP_PACKAGE: &str = "six";
const NPM_PACKAGE: &str = "is-number";
/// Reserved, so nobody's; refused by policy all the same, before anybody is asked.
const OTHER_NAME: &str = "not-allowed.example";

/// An installer of this machine, and where it gets its packages from.
struct Index {
    url: String,
    /// Names and ports that it needs: the index, and where its files are.
    rules: Vec<String>,
    /// Installs, in an empty folder.
    script: String,
}

pub(crate) fn run(arguments: &[String]) -> ExitCode {
    let wanted = arguments.get(1).is_none_or(|filter| filter.starts_with("package_index"));
    if !wanted {
        return ExitCode::SUCCESS;
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let failed = runtime.block_on(async {
        let stage = Stage::open().await;
        let mut failed = false;
        for (name, index) in [("pip", pip()), ("npm", npm())] {
            let index = match index.and_then(reached) {
                Ok(index) => index,
                Err(why) => {
                    eprintln!("SKIP: package_index::{name}: {why}");
                    continue;
                }
            };
            match install(&stage, &index).await {
                Ok(()) => println!("test package_index::{name} ... ok"),
                Err(why) => {
                    println!("test package_index::{name} ... FAILED\n{why}");
                    failed = true;
                }
            }
        }
        stage.close().await;
        failed
    });
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// The programs that boxes have, not those of whoever runs the tests.
fn program(name: &str) -> Command {
    let mut command = Command::new("env");
    command.arg("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin").arg(name);
    command
}

fn said(name: &str, arguments: &[&str]) -> Option<String> {
    let output = program(name).args(arguments).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    (output.status.success() && !text.is_empty() && text != "undefined").then_some(text)
}

fn pip() -> Result<Index, String> {
    if said("python3", &["-m", "pip", "--version"]).is_none() {
        return Err("no pip".to_owned());
    }
    let configured = said("python3", &["-m", "pip", "config", "get", "global.index-url"]);
    let configured = std::env::var("PIP_INDEX_URL").ok().or(configured);
    // What pip itself falls back to is pip's to know, and where that index keeps its files.
    let ask = "from pip._internal.models.index import PyPI; print(PyPI.simple_url, PyPI.file_storage_domain)";
    let built_in = said("python3", &["-c", ask]).unwrap_or_default();
    let (built_in, files) = built_in.split_once(' ').unwrap_or_default();
    let url = configured.unwrap_or_else(|| built_in.to_owned());
    let (host, port) = place(&url).ok_or("pip names no index")?;
    let mut rules = vec![format!("{host}:{port}")];
    if place(built_in).is_some_and(|(built_in, _)| built_in == host) && !files.is_empty() {
        rules.push(format!("{files}:{port}"));
    }
    let script = format!(
        "python3 -m pip install --disable-pip-version-check --no-cache-dir --target . --no-deps {PIP_PACKAGE} -i $INDEX && test -f {PIP_PACKAGE}.py"
    );
    Ok(Index { url, rules, script })
}

fn npm() -> Result<Index, String> {
    let url = said("npm", &["config", "get", "registry"]).ok_or("no npm, or it names no registry")?;
    let (host, port) = place(&url).ok_or("npm names no registry")?;
    let script = format!(
        "npm install --cache cache --registry $INDEX --no-audit --no-fund {NPM_PACKAGE} && test -f node_modules/{NPM_PACKAGE}/package.json"
    );
    Ok(Index { url, rules: vec![format!("{host}:{port}")], script })
}

/// Host and port of a URL.
fn place(url: &str) -> Option<(String, u16)> {
    let (scheme, rest) = url.split_once("://")?;
    let authority = rest.split('/').next()?.rsplit('@').next()?;
    let default = if scheme == "https" { 443 } else { 80 };
    match authority.rsplit_once(':') {
        Some((host, port)) => Some((host.to_owned(), port.parse().ok()?)),
        None => Some((authority.to_owned(), default)),
    }
}

/// The machine itself first, the same way: where it does not get a package, a box cannot.
fn reached(index: Index) -> Result<Index, String> {
    let proxies = ["https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY"];
    if let Some(proxy) = proxies.iter().find(|name| std::env::var_os(name).is_some()) {
        return Err(format!("the machine goes through a proxy ({proxy}), which boxes do not"));
    }
    let place = tempfile::tempdir().unwrap();
    let tried = program("timeout")
        .args(["60", "sh", "-c", &index.script])
        .env("INDEX", &index.url)
        // Packages that lie on this machine would prove nothing.
        .env_remove("PIP_FIND_LINKS")
        .current_dir(place.path())
        .output()
        .unwrap();
    if tried.status.success() {
        return Ok(index);
    }
    let said = String::from_utf8_lossy(&tried.stderr).trim().to_owned();
    Err(format!("the machine itself gets nothing from the index it is configured for: {said}"))
}

async fn install(stage: &Stage, index: &Index) -> Result<(), String> {
    let policy = index.rules.iter().map(|rule| format!("allow {rule}")).collect::<Vec<_>>().join(", ");
    let rules: Vec<&str> = index.rules.iter().map(String::as_str).collect();
    let isolation = Isolation {
        policy: policy.parse().map_err(|error| format!("{policy}: {error}"))?,
        // An own index may stand at a private address; by its name it is granted.
        grants: grants(&rules),
        ..Isolation::default()
    };
    let test_box = stage
        .open_with(isolation, |spec| {
            spec.limits.memory_bytes = 2 << 30;
            spec.env.push(("INDEX".to_owned(), index.url.clone()));
        })
        .await;
    let ran = test_box.run(&format!("mkdir /tmp/got && cd /tmp/got && {}", index.script)).await;
    if !ran.ok || !ran.denials.is_empty() {
        return Err(format!("{}\n{:?}", ran.text, ran.denials));
    }
    let lookup = format!("import socket; socket.getaddrinfo('{OTHER_NAME}', 443)");
    let ran = test_box.run(&format!("python3 -c \"{lookup}\"")).await;
    let refused = ran.denials.iter().any(|denial| {
        denial.kind == DenialKind::Resolve && denial.target.contains(OTHER_NAME) && !denial.rule.is_empty()
    });
    if ran.ok || !refused {
        return Err(format!("another name was not refused: {}\n{:?}", ran.text, ran.denials));
    }
    test_box.stop().await;
    Ok(())
}
