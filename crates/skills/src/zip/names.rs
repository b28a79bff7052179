//! Names of entries: decoded as Python decodes them, and safe or refused.

use std::collections::HashSet;

use super::reader::ZipEntry;
use crate::limits::PACKAGE_DEPTH;
use crate::{Limits, SkillError};

/// What bytes from 0x80 on mean in a name that does not say it is UTF-8.
const CP437: &str = "ÇüéâäàåçêëèïîìÄÅÉæÆôöòûùÿÖÜ¢£¥₧ƒáíóúñÑªº¿⌐¬½¼¡«»░▒▓│┤╡╢╖╕╣║╗╝╜╛┐└┴┬├─┼╞╟╚╔╩╦╠═╬╧╨╤╥╙╘╒╓╫╪┘┌█▄▌▐▀αßΓπΣσµτΦΘΩδ∞φε∩≡±≥≤⌠⌡÷≈°∙·√ⁿ²■\u{a0}";
const MAX_NAME_BYTES: usize = 1024;

pub(super) fn decode(bytes: &[u8], utf8: bool) -> String {
    match std::str::from_utf8(bytes) {
        // Many writers forget the flag.
        Ok(text) => text.to_owned(),
        Err(_) if utf8 => String::from_utf8_lossy(bytes).into_owned(),
        Err(_) => {
            let table: Vec<char> = CP437.chars().collect();
            let decode = |byte: &u8| match byte {
                0..0x80 => char::from(*byte),
                high => table.get(usize::from(high - 0x80)).copied().unwrap_or('\u{fffd}'),
            };
            bytes.iter().map(decode).collect()
        }
    }
}

/// The path of an entry, without a slash at its end.
pub(super) fn check(name: &str) -> Result<String, SkillError> {
    let refuse = || {
        let shown: String = name.chars().take(200).flat_map(char::escape_debug).collect();
        SkillError::archive(format!("Archive contains an unsafe path: {shown}"))
    };
    let path = name.strip_suffix('/').unwrap_or(name);
    let drive = path.as_bytes().get(1) == Some(&b':') && path.as_bytes()[0].is_ascii_alphabetic();
    if path.is_empty() || drive || path.len() > MAX_NAME_BYTES {
        return Err(refuse());
    }
    let mut depth = 0;
    let mut parts = Vec::new();
    for part in path.split('/') {
        depth += 1;
        match part {
            "." if depth == 1 => continue,
            "" | "." | ".." => return Err(refuse()),
            part if part.len() > 255 || part.chars().any(|c| c == '\\' || c.is_control()) => {
                return Err(refuse());
            }
            part => parts.push(part),
        }
    }
    if depth > PACKAGE_DEPTH {
        return Err(SkillError::limit("the depth of the archive", PACKAGE_DEPTH.to_string()));
    }
    if parts.is_empty() { Err(refuse()) } else { Ok(parts.join("/")) }
}

/// No name stands twice, and none passes through a file. Missing directories count as entries too.
pub(super) fn check_together(entries: &[ZipEntry], limits: &Limits) -> Result<(), SkillError> {
    let mut files = HashSet::new();
    let mut directories = HashSet::new();
    let refuse = |path: &str| SkillError::archive(format!("Archive contains a path twice: {path}"));
    for entry in entries {
        let path = entry.path.as_str();
        let mut parent = path;
        while let Some((above, _)) = parent.rsplit_once('/') {
            directories.insert(above);
            parent = above;
        }
        if entry.is_dir {
            directories.insert(path);
        } else if !files.insert(path) {
            return Err(refuse(path));
        }
    }
    if let Some(both) = files.intersection(&directories).next() {
        return Err(refuse(both));
    }
    if files.len() + directories.len() > limits.package_entries {
        return Err(SkillError::limit("the archive", format!("{} entries", limits.package_entries)));
    }
    Ok(())
}
