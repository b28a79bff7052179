//! Words for a POSIX shell: in scripts that we write, and where a command is shown to a person.

/// One word, whatever is in it.
pub fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_a_shell() {
        for word in ["plain", "", "a b", "it's", "$(x)", "a\nb", "*", "-n", "ä"] {
            let script = format!("printf %s {}", shell_word(word));
            let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
            assert_eq!(output.stdout, word.as_bytes(), "{word:?}");
        }
    }
}
