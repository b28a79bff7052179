//! One range of bytes, RFC 9110 section 14.

use std::ops::Range;

/// What a `Range` header asks of a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    Whole,
    Part(Range<u64>),
    /// Nothing of it lies in the file.
    Unsatisfiable,
}

/// Reads the header; several ranges, and what is no range, ask for the whole file.
pub(super) fn wanted(header: Option<&str>, file_bytes: u64) -> Wanted {
    let Some(range) = header.and_then(|header| header.trim().strip_prefix("bytes=")) else {
        return Wanted::Whole;
    };
    let Some((first, last)) = range.split_once('-') else { return Wanted::Whole };
    let number = |text: &str| {
        let text = text.trim();
        // A sign is no digit; more digits than a number has means beyond any file.
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| text.parse().unwrap_or(u64::MAX))
    };
    let part = match (number(first), number(last)) {
        (Some(first), Some(last)) if first <= last => first..last.saturating_add(1).min(file_bytes),
        (Some(first), None) if last.trim().is_empty() => first..file_bytes,
        (None, Some(length)) if first.trim().is_empty() => file_bytes.saturating_sub(length)..file_bytes,
        _ => return Wanted::Whole,
    };
    if part.start < part.end { Wanted::Part(part) } else { Wanted::Unsatisfiable }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_cut_to_the_file() {
        for (header, expected) in [
            ("bytes=0-3", Wanted::Part(0..4)),
            ("bytes=8-100", Wanted::Part(8..10)),
            ("bytes=4-", Wanted::Part(4..10)),
            ("bytes=-3", Wanted::Part(7..10)),
            ("bytes=-30", Wanted::Part(0..10)),
            ("bytes=9-99999999999999999999999", Wanted::Part(9..10)),
            ("bytes=10-", Wanted::Unsatisfiable),
            ("bytes=-0", Wanted::Unsatisfiable),
            ("bytes=99999999999999999999999-", Wanted::Unsatisfiable),
            ("bytes=3-1", Wanted::Whole),
            ("bytes=0-1,4-5", Wanted::Whole),
            ("bytes=-", Wanted::Whole),
            ("bytes=+1-2", Wanted::Whole),
            ("lines=1-2", Wanted::Whole),
        ] {
            assert_eq!(wanted(Some(header), 10), expected, "{header}");
        }
        assert_eq!(wanted(None, 10), Wanted::Whole);
        assert_eq!(wanted(Some("bytes=0-"), 0), Wanted::Unsatisfiable);
    }
}
