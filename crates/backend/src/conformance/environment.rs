//! The environment of commands.

use std::collections::BTreeMap;

use sandcrate_protocol::ErrorKind;

use super::Check;
use super::bench::{Bench, TestBox, fails, text_of};
use crate::{ExecRequest, SessionSpec};

pub(super) fn cases() -> Vec<super::Case> {
    family!("environment" {
        [] the_base_has_path_home_and_lang_only,
            home_and_path_are_usable,
            session_and_command_variables_are_set_and_the_later_wins,
            values_hold_any_text,
            two_thousand_variables_arrive,
            too_large_an_environment_is_over_the_limit,
            a_bad_key_is_refused_by_name,
            variables_of_one_command_are_not_those_of_the_next;
    })
}

/// The environment of a program that no shell has touched.
async fn variables(session: &TestBox, request: ExecRequest) -> Result<BTreeMap<String, String>, String> {
    let text = text_of(&session.run(request).await?)?;
    let pairs = text.split_terminator('\0').map(|pair| {
        let (key, value) = pair.split_once('=').ok_or_else(|| format!("a variable without `=`: {pair:?}"))?;
        Ok((key.to_owned(), value.to_owned()))
    });
    pairs.collect()
}

fn print() -> ExecRequest {
    ExecRequest::argv(["env", "-0"])
}

async fn the_base_has_path_home_and_lang_only(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let seen: Vec<String> = variables(&session, print()).await?.into_keys().collect();
    ensure_eq!(seen, ["HOME", "LANG", "PATH"], "the variables");
    Ok(())
}

async fn home_and_path_are_usable(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let script = "cd ~ && pwd -P && echo x > file && cat \"$HOME/file\" && command -v ls > /dev/null";
    let seen = session.text(script).await?;
    let home = variables(&session, print()).await?.remove("HOME").unwrap_or_default();
    ensure_eq!(seen, format!("{home}\nx"), "HOME");
    Ok(())
}

async fn session_and_command_variables_are_set_and_the_later_wins(bench: &Bench) -> Check {
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let env = vec![
        pair("S", "session"),
        pair("BOTH", "session"),
        pair("LANG", "session"),
        pair("T", "1"),
        pair("T", "2"),
    ];
    let session = bench.start_spec(SessionSpec { env, ..bench.spec()? }).await?;
    let request = print().env("BOTH", "command").env("C", "first").env("C", "last");
    let seen = variables(&session, request).await?;
    for (key, value) in
        [("S", "session"), ("BOTH", "command"), ("LANG", "session"), ("C", "last"), ("T", "2")]
    {
        ensure_eq!(seen.get(key).map(String::as_str), Some(value), key);
    }
    ensure_eq!(seen.len(), 7, "the number of variables");
    Ok(())
}

async fn values_hold_any_text(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let odd = ["", "a=b", "line\nline\n", "'\"`$HOME\\", "ü…\u{1f600}", "\u{1}\u{1b}[0m", " spaces "];
    let request = odd
        .iter()
        .enumerate()
        .fold(print(), |request, (index, value)| request.env(format!("V{index}"), *value));
    let seen = variables(&session, request).await?;
    for (index, value) in odd.iter().enumerate() {
        ensure_eq!(seen.get(&format!("V{index}")).map(String::as_str), Some(*value), "a value");
    }
    let odd_key = variables(&session, print().env("odd.key-1 x", "v")).await?;
    ensure_eq!(odd_key.get("odd.key-1 x").map(String::as_str), Some("v"), "a key that no shell could set");
    Ok(())
}

async fn two_thousand_variables_arrive(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let value = |index: usize| format!("{index}-{}", "v".repeat(100));
    let request = (0..2000).fold(print(), |request, index| request.env(format!("V{index}"), value(index)));
    let seen = variables(&session, request).await?;
    for index in 0..2000 {
        ensure_eq!(seen.get(&format!("V{index}")), Some(&value(index)), "a value");
    }
    Ok(())
}

async fn too_large_an_environment_is_over_the_limit(bench: &Bench) -> Check {
    let session = bench.start().await?;
    let one = session.outcome(print().env("LONG", "x".repeat(crate::MAX_STRING_BYTES))).await;
    fails("one long variable", one, ErrorKind::LimitExceeded, "LONG")?;
    let many = (0..20).fold(print(), |request, index| request.env(format!("V{index}"), "x".repeat(100_000)));
    fails("2 MB in all", session.outcome(many).await, ErrorKind::LimitExceeded, "environment")?;

    // Each half is fine by itself.
    let half = |prefix: &str| (0..8).map(|index| (format!("{prefix}{index}"), "x".repeat(110_000))).collect();
    let session = bench.start_spec(SessionSpec { env: half("S"), ..bench.spec()? }).await?;
    ensure_eq!(session.text("echo ${#S7}").await?, "110000", "a large session environment");
    let mut request = print();
    request.env = half("C");
    fails("both halves", session.outcome(request).await, ErrorKind::LimitExceeded, "environment")
}

/// AP-11.
async fn a_bad_key_is_refused_by_name(bench: &Bench) -> Check {
    let session = bench.start().await?;
    for (key, naming) in
        [("A=B", "A=B"), ("", "env key"), ("KEY\nX", "KEY"), ("KEY\0X", "KEY"), ("KEY\u{1b}", "KEY")]
    {
        let result = session.outcome(print().env(key, "v")).await;
        fails(&format!("key {key:?}"), result, ErrorKind::Validation, naming)?;
        let spec = SessionSpec { env: vec![(key.to_owned(), "v".to_owned())], ..bench.spec()? };
        fails(
            &format!("session key {key:?}"),
            bench.backend.start(spec).await,
            ErrorKind::Validation,
            naming,
        )?;
    }
    fails("NUL in a value", session.outcome(print().env("KEY", "a\0b")).await, ErrorKind::Validation, "KEY")
}

async fn variables_of_one_command_are_not_those_of_the_next(bench: &Bench) -> Check {
    let session = bench.start().await?;
    ensure!(variables(&session, print().env("SECRET", "x")).await?.contains_key("SECRET"), "it is not set");
    let seen = variables(&session, print()).await?;
    ensure!(!seen.contains_key("SECRET"), "the next command sees {seen:?}");
    Ok(())
}
