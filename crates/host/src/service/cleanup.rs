//! Commands that can only make a full workspace emptier, or look at it.
//!
//! Without them a workspace over its quota would stay so for ever: every command is refused, `rm` too.

/// Programs that write nothing. `chmod` is for directories that the host cannot look into to measure them.
const PROGRAMS: [&str; 8] = ["rm", "rmdir", "unlink", "chmod", "ls", "du", "df", "stat"];

/// One plain command of those, without anything by which a shell could run or write something else.
pub(super) fn is_cleanup(command: &str) -> bool {
    let plain = |c: char| {
        !matches!(c, ';' | '&' | '|' | '<' | '>' | '$' | '`' | '(' | ')' | '\n' | '\r' | '\\' | '=')
    };
    command.chars().all(plain)
        && command.split_whitespace().next().is_some_and(|program| PROGRAMS.contains(&program))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_commands_that_remove_or_look_are_let_through() {
        for command in ["rm -rf /workspace/build", " rm 'a b' *.log ", "du -sh .", "ls", "chmod -R a+rX x"] {
            assert!(is_cleanup(command), "{command}");
        }
        for command in [
            "",
            "rm a; dd of=b",
            "rm $(x)",
            "ls > a",
            "rm a && x",
            "A=1 rm b",
            "python3 -c 1",
            "rm a\nx",
            "/tmp/rm a",
        ] {
            assert!(!is_cleanup(command), "{command}");
        }
    }
}
