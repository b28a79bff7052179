//! `pip install` and `npm install` through the index that this machine is configured for, allowed by rule.
//!
//! The one test outside the world of namespaces: it has to be where the index is. It names no host; it asks pip and npm
//! which they use, lets a box reach that and nothing else, and tries nothing else.

use std::net::ToSocketAddrs;
use std::process::{Command, ExitCode};

use sandcrate_backend::Isolation;

use crate::stage::{Stage, grants};

/// Small, without dependencies.
const PIP_PACKAGE: &str = "six";
const NPM_PACKAGE: &str = "is-number";

pub(crate) fn run(arguments: &[String]) -> ExitCode {
    let wanted = arguments.get(1).is_none_or(|filter| filter.starts_with("package_index"));
    if !wanted {
        return ExitCode::SUCCESS;
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let failed = runtime.block_on(async {
        let stage = Stage::open().await;
        let mut failed = false;
        for (name, url, script) in [
            ("pip", pip_index(), format!("python3 -m pip install --target /tmp/got --no-deps {PIP_PACKAGE} -i $INDEX && ls /tmp/got")),
            ("npm", npm_registry(), format!("cd /tmp && npm install --registry $INDEX --no-audit --no-fund {NPM_PACKAGE} && ls node_modules")),
        ] {
            match install(&stage, url, &script).await {
                Ok(()) => println!("test package_index::{name} ... ok"),
                Err(Outcome::Without(why)) => {
                    eprintln!("SKIP: package_index::{name}: {why}");
                }
                Err(Outcome::Failed(why)) => {
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

enum Outcome {
    /// There is no way to the index from the machine itself.
    Without(String),
    Failed(String),
}

fn said(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    (output.status.success() && !text.is_empty() && text != "undefined").then_some(text)
}

fn pip_index() -> Result<String, String> {
    if said("python3", &["-m", "pip", "--version"]).is_none() {
        return Err("no pip".to_owned());
    }
    let named = said("python3", &["-m", "pip", "config", "get", "global.index-url"]);
    let named = std::env::var("PIP_INDEX_URL").ok().or(named);
    // What pip itself falls back to is pip's to know.
    let default =
        said("python3", &["-c", "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"]);
    named.or(default).ok_or_else(|| "pip names no index".to_owned())
}

fn npm_registry() -> Result<String, String> {
    said("npm", &["config", "get", "registry"]).ok_or_else(|| "no npm, or it names no registry".to_owned())
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

async fn install(stage: &Stage, url: Result<String, String>, script: &str) -> Result<(), Outcome> {
    let url = url.map_err(Outcome::Without)?;
    if let Some(proxy) = ["https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY"]
        .iter()
        .find(|name| std::env::var_os(name).is_some())
    {
        return Err(Outcome::Without(format!(
            "the machine goes through a proxy ({proxy}), which boxes do not"
        )));
    }
    let (host, port) = place(&url).ok_or_else(|| Outcome::Failed("the index is no URL".to_owned()))?;
    if (host.as_str(), port).to_socket_addrs().map_or(0, Iterator::count) == 0 {
        return Err(Outcome::Without(
            "the index that is configured does not resolve on this machine".to_owned(),
        ));
    }
    // The machine itself first: where there is no way out, a box cannot have one.
    let direct = Command::new("curl").args(["-s", "-o", "/dev/null", "-m", "20", &url]).status();
    if !direct.is_ok_and(|status| status.success()) {
        return Err(Outcome::Without(
            "the machine itself does not reach the index that is configured".to_owned(),
        ));
    }
    let rule = format!("{host}:{port}");
    let files = format!("files.pythonhosted.org:{port}");
    // The public index keeps its files under a name of their own; an own index may stand at a private address.
    let is_default = host == "pypi.org";
    let rules: Vec<&str> = if is_default { vec![&rule, &files] } else { vec![&rule] };
    let policy = rules.iter().map(|rule| format!("allow {rule}")).collect::<Vec<_>>().join(", ");
    let isolation = Isolation {
        policy: policy.parse().map_err(|error| Outcome::Failed(format!("{policy}: {error}")))?,
        grants: grants(&rules),
        ..Isolation::default()
    };
    let test_box = stage
        .open_with(isolation, |spec| {
            spec.limits.memory_bytes = 2 << 30;
            spec.env.push(("INDEX".to_owned(), url.clone()));
        })
        .await;
    let ran = test_box.run(&format!("({script}) 2>&1")).await;
    test_box.stop().await;
    if ran.ok { Ok(()) } else { Err(Outcome::Failed(format!("{}\n{:?}", ran.text, ran.denials))) }
}
