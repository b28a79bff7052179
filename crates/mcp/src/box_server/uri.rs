//! Addresses of workspace files: `sandcrate://SESSION/workspace/PATH`, and `?offset=N` for a later part.

use sandcrate_host::HostError;

const SCHEME: &str = "sandcrate://";
pub(super) const WORKSPACE: &str = "/workspace";
/// Longer than any path a box can have.
const LONGEST: usize = 16 << 10;

/// Of which files there are addresses, for clients that make them.
pub(super) fn template(session: &str) -> String {
    format!("{SCHEME}{}{WORKSPACE}/{{+path}}", escaped(session, false))
}

/// The address of a file by its path below the workspace.
pub(super) fn of(session: &str, relative: &str) -> String {
    format!("{SCHEME}{}{WORKSPACE}/{}", escaped(session, false), escaped(relative, true))
}

/// The same from an offset on.
pub(super) fn from_offset(uri: &str, offset: u64) -> String {
    let plain = uri.split('?').next().unwrap_or(uri);
    format!("{plain}?offset={offset}")
}

/// What an address means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) session: String,
    /// Below the workspace; empty for the workspace itself.
    pub(super) relative: String,
    pub(super) offset: u64,
}

impl Place {
    pub(super) fn path(&self) -> String {
        if self.relative.is_empty() { WORKSPACE.to_owned() } else { format!("{WORKSPACE}/{}", self.relative) }
    }
}

pub(super) fn parse(uri: &str) -> Result<Place, HostError> {
    let wrong = |why: &str| {
        HostError::invalid(format!("the uri {why}; it is written {SCHEME}SESSION{WORKSPACE}/PATH[?offset=N]"))
    };
    if uri.len() > LONGEST {
        return Err(wrong("is too long"));
    }
    let rest = uri.strip_prefix(SCHEME).ok_or_else(|| wrong("has another scheme"))?;
    let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
    let (session, path) = rest.split_once('/').ok_or_else(|| wrong("names no path"))?;
    let plain = |text: &str| unescaped(text).ok_or_else(|| wrong("has a `%` that is no escape of UTF-8"));
    let (session, path) = (plain(session)?, format!("/{}", plain(path)?));
    let relative = match path.strip_prefix(WORKSPACE) {
        Some("" | "/") => "",
        Some(below) if below.starts_with('/') => below.trim_matches('/'),
        _ => return Err(wrong("leads out of the workspace")),
    };
    check_relative(relative).map_err(wrong)?;
    let offset = match query.map(|query| query.split_once('=')) {
        None => 0,
        Some(Some(("offset", number))) => {
            number.parse().map_err(|_| wrong("has an offset that is no number"))?
        }
        Some(_) => return Err(wrong("has a query that is not known")),
    };
    Ok(Place { session, relative: relative.to_owned(), offset })
}

/// Whether a path below the workspace stays there by its text. What links do is the box's business.
pub(super) fn check_relative(relative: &str) -> Result<(), &'static str> {
    if relative.len() > LONGEST || relative.contains('\0') {
        return Err("has a path that no file can have");
    }
    match relative
        .split('/')
        .all(|part| !matches!(part, "." | "..") && (!part.is_empty() || relative.is_empty()))
    {
        true => Ok(()),
        false => Err("has `.`, `..` or an empty name in its path"),
    }
}

fn escaped(text: &str, slashes: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        let plain = byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || (slashes && byte == b'/');
        if plain {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

fn unescaped(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
        let (high, low) = (digit(bytes.next())?, digit(bytes.next())?);
        out.push(u8::try_from(high * 16 + low).ok()?);
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_written() {
        for (session, relative) in [("demo", "a.py"), ("a b/c", "dir/ä %2F?#.txt"), ("mcp-1", "x/y/z")] {
            let uri = of(session, relative);
            assert!(uri.is_ascii(), "{uri}");
            let place = parse(&uri).unwrap();
            assert_eq!(
                (place.session.as_str(), place.relative.as_str(), place.offset),
                (session, relative, 0)
            );
            assert_eq!(parse(&from_offset(&uri, 7)).unwrap().offset, 7);
            assert_eq!(parse(&from_offset(&from_offset(&uri, 7), 9)).unwrap().offset, 9);
        }
        assert_eq!(parse("sandcrate://s/workspace").unwrap().path(), "/workspace");
        assert_eq!(parse("sandcrate://s/workspace/a/").unwrap().path(), "/workspace/a");
    }

    #[test]
    fn what_leaves_the_workspace_is_refused() {
        for (uri, word) in [
            ("file:///workspace/a", "scheme"),
            ("sandcrate://s", "names no path"),
            ("sandcrate://s/etc/passwd", "leads out"),
            ("sandcrate://s/workspacex/a", "leads out"),
            ("sandcrate://s/workspace/../etc/passwd", "`..`"),
            ("sandcrate://s/workspace/%2e%2e/x", "`..`"),
            ("sandcrate://s/workspace/a//b", "empty name"),
            ("sandcrate://s/workspace/%00", "no file can have"),
            ("sandcrate://s/workspace/%zz", "`%`"),
            ("sandcrate://s/workspace/%ff", "`%`"),
            ("sandcrate://s/workspace/a?offset=-1", "no number"),
            ("sandcrate://s/workspace/a?size=1", "query"),
        ] {
            let error = parse(uri).unwrap_err();
            assert!(error.message.contains(word), "{uri}: {error}");
        }
    }
}
