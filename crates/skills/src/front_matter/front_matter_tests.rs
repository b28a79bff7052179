//! Front matter: what is read, what is kept, what is refused.

use proptest::prelude::*;

use super::*;

fn parse(text: &str) -> FrontMatter<'_> {
    FrontMatter::parse(text).unwrap_or_else(|error| panic!("{text:?}: {error}"))
}

fn fields(text: &str) -> (Option<String>, Option<String>, Option<String>, &str) {
    let read = parse(text);
    (read.field(NAME), read.field(DISPLAY_NAME), read.field(DESCRIPTION), read.body())
}

#[test]
fn the_reference_s_cases_read_as_it_reads_them() {
    let text = |text: &str| Some(text.to_owned());
    for (file, expected) in [
        ("---\nname: fm1\n---\n\n\n\nbody", (text("fm1"), None, None, "body")),
        ("--- \nname: fm2\n ---  \nbody", (text("fm2"), None, None, "body")),
        ("---\nname: fm3\nno end", (None, None, None, "---\nname: fm3\nno end")),
        ("---\n- list\n---\nbody", (None, None, None, "body")),
        (
            "---\nname: 123\ndisplay_name: 4.5\ndescription: [a, b]\n---\nbody",
            (text("123"), text("4.5"), text("['a', 'b']"), "body"),
        ),
        ("\n---\nname: fm6\n---\nbody", (None, None, None, "\n---\nname: fm6\n---\nbody")),
        ("---\r\nname: fm7\r\n---\r\nbody\r\n", (text("fm7"), None, None, "body\r\n")),
        ("----\nname: fm8\n---\nbody", (None, None, None, "----\nname: fm8\n---\nbody")),
        ("---\nname:\n---\nbody", (None, None, None, "body")),
        ("\u{feff}---\nname: x\n---\nbody", (None, None, None, "\u{feff}---\nname: x\n---\nbody")),
        ("---\nname: \"  sp  \"\n---\nbody", (text("sp"), None, None, "body")),
        ("", (None, None, None, "")),
        ("---\nname: true\ndescription: 2020-01-01\n---\n", (text("True"), None, text("2020-01-01"), "")),
        ("---\n---\nbody", (None, None, None, "body")),
    ] {
        assert_eq!(fields(file), expected, "{file:?}");
    }
}

#[test]
fn scalars_print_as_in_python() {
    for (yaml, printed) in [
        ("yes", "True"),
        ("0x1F", "31"),
        ("010", "8"),
        ("1_000", "1000"),
        ("1.50", "1.5"),
        ("1e3", "1e3"),
        ("-.inf", "-inf"),
        ("{a: [1, ~, 'x']}", "{'a': [1, None, 'x']}"),
        ("'5'", "5"),
        ("!!str 5", "5"),
        ("|\n  two\n  lines", "two\nlines"),
    ] {
        let file = format!("---\ndescription: {yaml}\n---\n");
        assert_eq!(parse(&file).field(DESCRIPTION).as_deref(), Some(printed), "{yaml}");
    }
}

/// K3: the reference drops every key but its own three.
#[test]
fn k3_other_keys_comments_and_line_ends_survive_an_edit() {
    let file = "---\n# about\nname: a\nversion: 1.10  # keep\ndescription: >\n  long\n  text\n\n# tools follow\nallowed-tools:\n  - Bash\n  - Read\n---\n\nbody\r\n";
    let edited = parse(file).edit(&[(DESCRIPTION, "new: text")], None);
    assert_eq!(
        edited,
        "---\n# about\nname: a\nversion: 1.10  # keep\ndescription: 'new: text'\n\n# tools follow\nallowed-tools:\n  - Bash\n  - Read\n---\n\nbody\r\n"
    );
    let removed = parse(&edited).edit(&[(DESCRIPTION, "")], Some("other"));
    assert_eq!(
        removed,
        "---\n# about\nname: a\nversion: 1.10  # keep\n\n# tools follow\nallowed-tools:\n  - Bash\n  - Read\n---\n\nother"
    );
    let windows = "---\r\nname: a\r\nlicense: MIT\r\n---\r\nbody\r\n";
    let edited = parse(windows).edit(&[(DESCRIPTION, "d")], None);
    assert_eq!(edited, "---\r\nname: a\r\nlicense: MIT\r\ndescription: d\r\n---\r\nbody\r\n");
}

/// What stands on no lines of its own is written anew, with every key.
#[test]
fn k3_flow_mappings_and_repeated_keys_are_edited_too() {
    for file in [
        "---\n{name: a, version: [1, 2.5, null], description: x}\n---\nbody",
        "---\nname: a\nname: b\nversion: [1, 2.5, null]\n---\nbody",
        "---\n? name\n: a\nversion: [1, 2.5, null]\n---\nbody",
        "---\n\"name\": a\nversion:\n- 1\n- 2.5\n- ~\n---\nbody",
    ] {
        let edited = parse(file).edit(&[(NAME, "c"), (DESCRIPTION, "d")], None);
        let read = parse(&edited);
        assert_eq!(read.field(NAME).as_deref(), Some("c"), "{edited}");
        assert_eq!(read.field(DESCRIPTION).as_deref(), Some("d"), "{edited}");
        assert_eq!(read.field("version").as_deref(), Some("[1, 2.5, None]"), "{edited}");
        assert_eq!(read.body(), "body", "{edited}");
    }
}

#[test]
fn new_files_are_those_of_the_reference() {
    assert_eq!(compose("s1", "", "", ""), "---\nname: s1\n---\n\n");
    assert_eq!(
        compose("s2", "Skill Two: x", "multi\nline \"q\"", "# Do\n\nthings\n"),
        "---\nname: s2\ndisplay_name: 'Skill Two: x'\ndescription: 'multi\n\n  line \"q\"'\n---\n\n# Do\n\nthings\n"
    );
    let nested = compose("s3", "", "", "---\nname: evil\n---\nbody");
    assert_eq!(fields(&nested), (Some("s3".to_owned()), None, None, "---\nname: evil\n---\nbody"));
}

/// AP-23: 350 bytes of aliases cost the reference 28 seconds.
#[test]
fn ap_23_an_alias_bomb_is_refused_at_once() {
    let mut bomb = String::from("---\na0: &a0 [x, x, x, x, x, x, x, x, x]\n");
    for level in 1..9 {
        let row = vec![format!("*a{}", level - 1); 9].join(", ");
        bomb.push_str(&format!("a{level}: &a{level} [{row}]\n"));
    }
    bomb.push_str("name: *a8\n---\nbody");
    let began = std::time::Instant::now();
    let error = FrontMatter::parse(&bomb).unwrap_err();
    assert!(error.to_string().contains("alias"), "{error}");
    assert!(began.elapsed() < std::time::Duration::from_millis(100));
}

#[test]
fn ap_23_size_depth_count_tags_and_bad_yaml_are_refused() {
    let long = format!("---\nname: {}\n---\n", "x".repeat(FRONT_MATTER_BYTES));
    let deep = format!("---\nname: {}{}\n---\n", "[".repeat(60), "]".repeat(60));
    let many = format!("---\nname: [{}]\n---\n", "1,".repeat(11_000));
    for bad in [
        long.as_str(),
        deep.as_str(),
        many.as_str(),
        "---\nname: [unclosed\n---\n",
        "---\nname: !!python/object/apply:os.system [id]\n---\n",
        "---\nname: !thing x\n---\n",
        "---\na: b: c\n---\n",
    ] {
        let began = std::time::Instant::now();
        assert!(FrontMatter::parse(bad).is_err(), "{}", &bad[..40.min(bad.len())]);
        assert!(began.elapsed() < std::time::Duration::from_millis(100));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_written_comes_back(
        name in "\\PC{0,20}", display in "(?s).{0,30}", description in "[ -~\n\t'\":#\\[\\]]{0,60}", body in "(?s).{0,40}",
    ) {
        let written = compose(&name, &display, &description, &body);
        let read = parse(&written);
        let expected = |text: &str| Some(python_trim(text).to_owned()).filter(|text| !text.is_empty());
        prop_assert_eq!(read.field(NAME), expected(&name));
        prop_assert_eq!(read.field(DISPLAY_NAME), expected(&display));
        prop_assert_eq!(read.field(DESCRIPTION), expected(&description));
    }

    #[test]
    fn any_text_is_read_or_refused_and_edits_come_back(text in "(?s)---\n.{0,80}\n---\n.{0,10}", value in "(?s).{1,20}") {
        if let Ok(read) = FrontMatter::parse(&text) {
            let edited = read.edit(&[(DESCRIPTION, &value)], None);
            let again = FrontMatter::parse(&edited);
            let again = again.map(|again| (again.field(DESCRIPTION), again.body().to_owned()));
            let expected = Some(python_trim(&value).to_owned()).filter(|text| !text.is_empty());
            prop_assert_eq!(again.ok(), Some((expected, read.body().to_owned())), "{:?}", edited);
        }
    }
}
