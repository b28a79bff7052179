//! Cuts output to what a model is shown: its beginning and its end, and between them how much is missing.

/// The text, and whether it was cut. Counts are characters, never bytes.
pub fn truncate(text: &str, limit: usize) -> (String, bool) {
    let length = text.chars().count();
    if length <= limit {
        return (text.to_owned(), false);
    }
    if limit == 0 {
        return (String::new(), true);
    }
    let (mut head, mut tail) = (0, 0);
    let mut notice = String::new();
    // The notice has digits of what it leaves out, and leaves out more the longer it is; four rounds settle it.
    for _ in 0..4 {
        let omitted = length.saturating_sub(head + tail);
        notice = format!("\n\n... [{omitted} characters truncated] ...\n\n");
        let room = limit.saturating_sub(notice.chars().count());
        if room == 0 {
            return (first(&notice, limit).to_owned(), true);
        }
        let new_head = (room as f64 * 0.6) as usize;
        let new_tail = room - new_head;
        if (new_head, new_tail) == (head, tail) {
            break;
        }
        (head, tail) = (new_head, new_tail);
    }
    let cut = format!("{}{notice}{}", first(text, head), last(text, tail));
    (first(&cut, limit).to_owned(), true)
}

/// The first characters.
pub(super) fn first(text: &str, count: usize) -> &str {
    text.char_indices().nth(count).map_or(text, |(end, _)| &text[..end])
}

fn last(text: &str, count: usize) -> &str {
    match count.checked_sub(1) {
        None => "",
        Some(before) => text.char_indices().nth_back(before).map_or(text, |(start, _)| &text[start..]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Head, tail and the number printed, for a limit and a length.
    const VECTORS: [(usize, usize, usize, usize, usize); 13] = [
        (100, 520, 37, 25, 458),
        (100, 101, 37, 26, 38),
        (100, 1000, 37, 25, 938),
        (100, 10_000, 36, 25, 9939),
        (100, 99_999, 36, 24, 99_939),
        (100, 1_000_000, 35, 24, 999_941),
        (4000, 4001, 2377, 1586, 38),
        (4000, 5000, 2376, 1585, 1039),
        (4000, 10_000, 2376, 1585, 6039),
        (4000, 14_000, 2376, 1584, 10_040),
        (4000, 1_000_000, 2375, 1584, 996_041),
        (40, 200, 1, 1, 198),
        (39, 200, 0, 1, 199),
    ];

    fn text(length: usize) -> String {
        (0..length).map(|index| char::from_u32(0x4e00 + (index % 5000) as u32).unwrap()).collect()
    }

    #[test]
    fn vectors_of_the_reference_hold() {
        for (limit, length, head, tail, number) in VECTORS {
            let text = text(length);
            let notice = format!("\n\n... [{number} characters truncated] ...\n\n");
            let expected = format!("{}{notice}{}", first(&text, head), last(&text, tail));
            assert_eq!(truncate(&text, limit), (expected, true), "{limit} of {length}");
        }
        let notice = "\n\n... [200 characters truncated] ...\n\n";
        assert_eq!(truncate(&text(200), 38), (notice.to_owned(), true));
        assert_eq!(truncate(&text(200), 37), (notice[..37].to_owned(), true));
        assert_eq!(truncate(&text(20), 10), ("\n\n... [20 ".to_owned(), true));
        assert_eq!(truncate("abc", 0), (String::new(), true));
        assert_eq!(truncate("", 0), (String::new(), false));
    }

    #[test]
    fn what_is_cut_has_the_limit_and_says_the_truth() {
        for limit in (36..400).step_by(7) {
            for length in [limit + 1, limit + 2, limit + 99, 1009, 10_000, 100_001] {
                if length <= limit {
                    continue;
                }
                let (cut, was_cut) = truncate(&"a".repeat(length), limit);
                assert!(was_cut);
                assert_eq!(cut.chars().count(), limit);
                if limit > 45 {
                    let kept = cut.chars().filter(|c| *c == 'a').count()
                        - "characters truncated".matches('a').count();
                    let number: usize = cut.split(['[', ' ']).find_map(|word| word.parse().ok()).unwrap();
                    assert_eq!(number, length - kept, "{limit} of {length}");
                }
            }
        }
    }
}
