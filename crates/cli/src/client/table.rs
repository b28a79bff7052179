//! Tables for people, and times as ages.

use std::fmt::Write;

use jiff::Timestamp;

/// Columns as wide as their widest cell, two spaces apart; the last one is not padded.
pub(crate) fn render<const N: usize>(head: [&str; N], rows: &[[String; N]]) -> String {
    let mut widths = head.map(width);
    for row in rows {
        for (column, cell) in widths.iter_mut().zip(row) {
            *column = (*column).max(width(cell));
        }
    }
    let mut text = String::new();
    let head = head.map(str::to_owned);
    for row in std::iter::once(&head).chain(rows) {
        for (index, (cell, column)) in row.iter().zip(widths).enumerate() {
            let cell = clean(cell);
            let pad = if index + 1 == N { 0 } else { column - width(&cell) + 2 };
            // Writing to a string does not fail.
            let _ = write!(text, "{cell}{:pad$}", "");
        }
        text.truncate(text.trim_end_matches(' ').len());
        text.push('\n');
    }
    text
}

fn width(cell: &str) -> usize {
    clean(cell).chars().count()
}

/// Cells hold what strangers chose; control characters would let them paint our terminal.
pub(crate) fn clean(cell: &str) -> String {
    cell.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// As much of a command as helps to know it again: a script may be in it.
pub(crate) fn shortened(command: &str) -> String {
    const MOST: usize = 100;
    match command.char_indices().nth(MOST) {
        Some((cut, _)) => format!("{}…", &command[..cut]),
        None => command.to_owned(),
    }
}

/// How long ago a time of the server was, such as `5m`; `-` when it is no time.
pub(crate) fn age(text: &str, now: Timestamp) -> String {
    let Ok(then) = text.parse::<Timestamp>() else { return "-".to_owned() };
    let seconds = (now.as_second() - then.as_second()).max(0);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_command_is_shortened_between_characters() {
        assert_eq!(shortened("true"), "true");
        assert_eq!(shortened(&"ä".repeat(100)), "ä".repeat(100));
        assert_eq!(shortened(&"ä".repeat(101)), format!("{}…", "ä".repeat(100)));
    }

    #[test]
    fn columns_line_up_and_nothing_trails() {
        let rows = [["a".to_owned(), "running".to_owned()], ["longer".to_owned(), "ä\x1b[2J".to_owned()]];
        assert_eq!(render(["ID", "STATE"], &rows), "ID      STATE\na       running\nlonger  ä\u{fffd}[2J\n");
        assert_eq!(render(["ID", "STATE"], &[]), "ID  STATE\n");
    }

    #[test]
    fn ages_have_one_unit() {
        let now: Timestamp = "2026-01-31T12:00:00Z".parse().unwrap();
        for (then, shown) in [
            ("2026-01-31T11:59:30.5Z", "30s"),
            ("2026-01-31T11:55:00+00:00", "5m"),
            ("2026-01-31T01:00:00Z", "11h"),
            ("2026-01-01T12:00:00Z", "30d"),
            ("2026-02-01T12:00:00Z", "0s"),
            ("never", "-"),
        ] {
            assert_eq!(age(then, now), shown, "{then}");
        }
    }
}
