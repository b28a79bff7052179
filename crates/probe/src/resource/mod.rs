//! Attacks on the limits: processes, memory, disk, descriptors, kernel buffers.

pub(crate) mod buffers;
pub(crate) mod crew;
pub(crate) mod disk;
pub(crate) mod memory;
pub(crate) mod odd_files;
pub(crate) mod processes;

use crate::report::Usage;

/// The only argument as a number, or `default` when there is none.
pub(crate) fn number<T: std::str::FromStr>(arguments: &[String], default: Option<T>) -> Result<T, Usage> {
    match (arguments, default) {
        ([], Some(default)) => Ok(default),
        ([text], _) => text.parse().map_err(|_| Usage(format!("{text} is not a number"))),
        _ => Err(Usage("needs one number".into())),
    }
}

/// `DIR,NUMBER` in one argument, or `DIR NUMBER` in two.
pub(crate) fn directory_and_number(
    arguments: &[String],
    default: Option<u64>,
) -> Result<(String, u64), Usage> {
    let joined = arguments.join(",");
    let (directory, count) = match (joined.rsplit_once(','), default) {
        (Some((directory, count)), _) => {
            (directory.to_owned(), count.parse().map_err(|_| Usage(format!("{count} is not a number")))?)
        }
        (None, Some(default)) => (joined, default),
        (None, None) => return Err(Usage("needs DIR,NUMBER".into())),
    };
    let directory = crate::fs::device::writable_directory(&[directory])?;
    Ok((directory, count))
}
