//! Tests of the rules on arguments, environment and working directory.

use std::os::unix::ffi::OsStringExt;

use bytes::Bytes;
use proptest::prelude::*;
use sandcrate_protocol::ErrorKind;

use super::*;
use crate::SessionId;

fn spec() -> SessionSpec {
    SessionSpec::new(SessionId::new("s").unwrap())
}

fn pair(key: &str, value: &str) -> (String, String) {
    (key.to_owned(), value.to_owned())
}

#[test]
fn any_value_without_nul_is_fine_and_a_bad_key_is_named() {
    assert!(check_env("A", "line\nline \"'\u{1b} ü").is_ok());
    assert!(check_env("a.b-c d", "").is_ok());
    for key in ["", "A=B", "A\0B", "A\nB", "A\u{7}"] {
        let error = check_env(key, "v").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Validation);
        assert!(error.to_string().contains(&format!("`{}`", shown(key))), "{error}");
    }
    assert!(check_env("KEY", "a\0b").unwrap_err().to_string().contains("`KEY`"));
}

#[test]
fn one_string_is_bounded_as_the_kernel_bounds_it() {
    assert!(check_env("K", &"v".repeat(MAX_STRING_BYTES - 2)).is_ok());
    assert_eq!(
        check_env("K", &"v".repeat(MAX_STRING_BYTES - 1)).unwrap_err().kind(),
        ErrorKind::LimitExceeded
    );
    assert!(check_argv(&["p".into(), "x".repeat(MAX_STRING_BYTES).into()]).is_ok());
    let error = check_argv(&["p".into(), "x".repeat(MAX_STRING_BYTES + 1).into()]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    assert!(error.to_string().contains("argument 1"), "{error}");
}

#[test]
fn the_whole_of_arguments_and_environment_is_bounded() {
    let env: Vec<_> = (0..8).map(|n| pair(&format!("V{n}"), &"v".repeat(120_000))).collect();
    let argv: Vec<OsString> = (0..8).map(|_| "a".repeat(120_000).into()).collect();
    assert!(check_start_size(&[], &env).is_ok() && check_start_size(&argv, &[]).is_ok());
    assert_eq!(check_start_size(&argv, &env).unwrap_err().kind(), ErrorKind::LimitExceeded);
    let mut request = ExecRequest::argv(argv);
    assert!(request.validate().is_ok());
    request.env = env;
    assert_eq!(request.validate().unwrap_err().kind(), ErrorKind::LimitExceeded);

    let many: Vec<_> = (0..=MAX_VARIABLES).map(|n| pair(&format!("V{n}"), "")).collect();
    assert!(check_start_size(&[], &many[1..]).is_ok());
    assert_eq!(check_start_size(&[], &many).unwrap_err().kind(), ErrorKind::LimitExceeded);
}

#[test]
fn a_program_is_named_and_arguments_hold_any_byte_but_nul() {
    assert!(check_argv(&[]).is_err() && check_argv(&["".into(), "x".into()]).is_err());
    assert!(check_argv(&["p".into(), "".into(), OsString::from_vec(vec![0xff, b'\n'])]).is_ok());
    assert!(check_argv(&["p".into(), OsString::from_vec(vec![b'a', 0])]).is_err());
    assert!(ExecRequest::shell("echo \0").validate().is_err());
    assert!(ExecRequest::shell("x".repeat(3_000_000)).validate().is_ok());
}

#[test]
fn workdirs_are_absolute_and_never_go_up() {
    for good in ["/", "/workspace", "/workspace//a/", "/usr/bin", "/ü"] {
        assert!(check_workdir(good).is_ok(), "{good}");
    }
    for bad in ["", "workspace", "./x", "/a/../b", "/..", "/a\0", "/a\nb"] {
        let error = check_workdir(bad).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Validation);
        assert!(error.to_string().starts_with("workdir "), "{error}");
        let mut request = ExecRequest::shell("true");
        request.cwd = Some(bad.to_owned());
        assert!(request.validate().is_err());
        assert!(SessionSpec { workdir: bad.to_owned(), ..spec() }.validate().is_err());
    }
}

#[test]
fn a_spec_is_checked_in_every_part() {
    assert!(spec().validate().is_ok());
    assert!(SessionSpec { env: vec![pair("A=", "")], ..spec() }.validate().is_err());
    let mut zero = spec();
    zero.limits.pids = 0;
    assert!(zero.validate().unwrap_err().to_string().contains("pids"));
}

#[test]
fn file_paths_and_writes_are_bounded() {
    for path in ["", "a\0b", &"x".repeat(5000)] {
        let error = FileRequest::Stat { path: path.to_owned() }.validate().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Validation);
    }
    assert!(FileRequest::Rename { from: "a".into(), to: "../b\n".into() }.validate().is_ok());
    let data = Bytes::from(vec![0; FileRequest::MAX_BYTES as usize + 1]);
    let error = FileRequest::Write { path: "a".into(), data }.validate().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
}

#[test]
fn later_layers_win_in_place() {
    let (base, session) =
        ([pair("PATH", "/bin"), pair("A", "1")], [pair("A", "2"), pair("B", "3"), pair("B", "4")]);
    let expected = [pair("PATH", "/bin"), pair("A", "2"), pair("B", "4")];
    assert_eq!(merge_env(&[&base, &session]), expected);
}

proptest! {
    #[test]
    fn an_accepted_variable_is_one_that_the_kernel_reads_back(key in ".{0,6}", value in any::<String>()) {
        if check_env(&key, &value).is_ok() {
            let joined = format!("{key}={value}");
            prop_assert_eq!(joined.split_once('='), Some((key.as_str(), value.as_str())));
            prop_assert!(!joined.contains('\0'));
        }
    }
}
