//! Sizes, durations and CPU shares as people type them. Errors say what is accepted; clap adds flag and value.

use std::time::Duration;

/// `512M`, `1G`, `64k`, `1.5GiB`, or a number of bytes. Units are powers of 1024.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    const FORMS: &str = "expected a size such as 512M, 1G, 64k or a number of bytes";
    let (number, unit) = split_number(text).ok_or(FORMS)?;
    let unit = unit.to_ascii_lowercase();
    let shift = match unit.strip_suffix("ib").or_else(|| unit.strip_suffix('b')).unwrap_or(&unit) {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err(FORMS.to_owned()),
    };
    if number == 0.0 {
        return Err("must be more than 0".to_owned());
    }
    let bytes = number * (1_u64 << shift) as f64;
    // Anything that large is a slip; it would not fit the kernel's signed counters either.
    if bytes < 1.0 || bytes > (1_u64 << 62) as f64 {
        return Err(format!("out of range; {FORMS}"));
    }
    Ok(bytes as u64)
}

/// `500ms`, `30s`, `15m`, `2h`, or bare seconds; 0 is zero.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    const FORMS: &str = "expected a duration such as 30s, 500ms, 15m, 2h, a number of seconds, or 0 for none";
    let (number, unit) = split_number(text).ok_or(FORMS)?;
    let seconds = match unit {
        "ms" => number / 1000.0,
        "" | "s" => number,
        "m" => number * 60.0,
        "h" => number * 3600.0,
        "d" => number * 86400.0,
        _ => return Err(FORMS.to_owned()),
    };
    // A year: beyond it a limit means nothing, and sums with clocks stay far from overflow.
    if seconds > 366.0 * 86400.0 {
        return Err("at most one year; 0 means no limit".to_owned());
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// `1.5` CPUs as thousandths.
pub(crate) fn parse_cpus(text: &str) -> Result<u32, String> {
    let cpus = match split_number(text) {
        Some((number, "")) => number,
        _ => return Err("expected a number of CPUs such as 1, 0.5 or 1.5".to_owned()),
    };
    // The kernel takes no quota below 1 ms in 100 ms; 1024 is more than any machine of this kind has.
    if !(0.01..=1024.0).contains(&cpus) {
        return Err("expected 0.01 to 1024 CPUs".to_owned());
    }
    Ok((cpus * 1000.0).round() as u32)
}

/// The number in front and what follows it; no sign, no exponent, no infinities.
fn split_number(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number = text[..end].parse().ok()?;
    Some((number, text[end..].trim_start()))
}

/// A size in the largest unit that shows it exactly, or with one decimal.
pub(crate) fn show_size(bytes: u64) -> String {
    for (shift, unit) in [(40, "T"), (30, "G"), (20, "M"), (10, "k")] {
        let one = 1_u64 << shift;
        if bytes >= one {
            let exact = bytes.is_multiple_of(one);
            return if exact {
                format!("{}{unit}", bytes >> shift)
            } else {
                format!("{:.1}{unit}", bytes as f64 / one as f64)
            };
        }
    }
    format!("{bytes} bytes")
}

/// A duration as one would type it.
pub(crate) fn show_duration(time: Duration) -> String {
    let millis = time.as_millis();
    match millis {
        _ if !millis.is_multiple_of(1000) => format!("{millis}ms"),
        _ if millis.is_multiple_of(3_600_000) && millis > 0 => format!("{}h", millis / 3_600_000),
        _ if millis.is_multiple_of(60_000) && millis > 0 => format!("{}m", millis / 60_000),
        _ => format!("{}s", millis / 1000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_in_every_accepted_form() {
        for (text, bytes) in [
            ("512M", 512 << 20),
            ("1G", 1 << 30),
            ("64k", 64 << 10),
            ("64K", 64 << 10),
            ("1.5GiB", 3 << 29),
            ("2MB", 2 << 20),
            ("4096", 4096),
            ("10b", 10),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "M", "-1", "12Q", "1e9", "0", "0.0001", "99999999999T", "inf", "1.2.3M", "1 2"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations_in_every_accepted_form() {
        for (text, millis) in [
            ("500ms", 500),
            ("30s", 30_000),
            ("15m", 900_000),
            ("2h", 7_200_000),
            ("7", 7000),
            ("0", 0),
            ("1.5", 1500),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "s", "-1s", "10 years", "1e3", "999999d"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn cpus_are_thousandths_within_bounds() {
        assert_eq!(parse_cpus("1.5"), Ok(1500));
        assert_eq!(parse_cpus("0.01"), Ok(10));
        for text in ["0", "0.001", "-1", "2000", "1x", "", "NaN"] {
            assert!(parse_cpus(text).is_err(), "{text}");
        }
    }

    #[test]
    fn shown_values_read_as_typed() {
        assert_eq!(show_size(512 << 20), "512M");
        assert_eq!(show_size(1 << 30), "1G");
        assert_eq!(show_size(1_600_000), "1.5M");
        assert_eq!(show_size(10), "10 bytes");
        assert_eq!(show_duration(Duration::from_secs(30)), "30s");
        assert_eq!(show_duration(Duration::from_secs(900)), "15m");
        assert_eq!(show_duration(Duration::from_millis(1500)), "1500ms");
        assert_eq!(show_duration(Duration::ZERO), "0s");
    }
}
