//! `npx` as an install and a run.

use super::command::{CommandError, Understood};

/// Options that change nothing about what is installed or run.
const IDLE: [&str; 7] = ["-y", "--yes", "-q", "--quiet", "--silent", "--prefer-online", "--prefer-offline"];

pub(super) fn split(tool: &'static str, args: &[String]) -> Result<Understood, CommandError> {
    let mut packages = Vec::new();
    let mut rest = args.iter();
    let mut positional: Vec<String> = Vec::new();
    while let Some(arg) = rest.next() {
        match arg.as_str() {
            "--" => {
                positional.extend(rest.by_ref().cloned());
            }
            "-p" | "--package" => {
                let package = rest
                    .next()
                    .ok_or_else(|| CommandError::new(tool, format!("`{arg}` names no package")))?;
                packages.push(package.clone());
            }
            option if IDLE.contains(&option) => {}
            option => {
                if let Some(package) =
                    option.strip_prefix("--package=").or_else(|| option.strip_prefix("-p="))
                {
                    packages.push(package.to_owned());
                } else if option.starts_with('-') {
                    let problem = format!(
                        "the option `{option}` cannot be split into an install and a run; what is known: \
                         -y, -q, --package, and npm's own settings as NPM_CONFIG_ variables"
                    );
                    return Err(CommandError::new(tool, problem));
                } else {
                    positional.push(arg.clone());
                    // What follows is the program's, options too.
                    positional.extend(rest.by_ref().cloned());
                }
            }
        }
    }
    if positional.is_empty() {
        return Err(CommandError::new(tool, "names nothing to run"));
    }
    let first = positional.remove(0);
    if packages.is_empty() {
        check(tool, &first)?;
        return Ok(Understood::Npm { packages: vec![first], program: None, args: positional });
    }
    packages.iter().try_for_each(|package| check(tool, package))?;
    if first.contains('/') || first.starts_with('.') {
        return Err(CommandError::new(tool, format!("`{first}` is no name of a program")));
    }
    Ok(Understood::Npm { packages, program: Some(first), args: positional })
}

/// A folder of this machine is not in the install box: a project is run by `node`, with its own dependencies.
fn check(tool: &'static str, package: &str) -> Result<(), CommandError> {
    let is_path = package.starts_with(['/', '.', '~']) || package.starts_with("file:");
    if is_path || package.is_empty() || package.starts_with('-') {
        let problem =
            format!("`{package}` is a folder of this machine or no package: run it as `node SCRIPT`");
        return Err(CommandError::new(tool, problem));
    }
    Ok(())
}
