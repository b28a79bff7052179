//! Signed addresses of files: whoever has one may read or write that file without the sandbox's token.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use sha2::{Digest, Sha256};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Read,
    Write,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
        })
    }
}

/// What a signature vouches for.
#[derive(Debug, Clone, Copy)]
pub struct Signed<'a> {
    /// As it stands in the address.
    pub path: &'a str,
    pub operation: Operation,
    /// Empty for the sandbox's own user.
    pub user: &'a str,
    /// Seconds since 1970.
    pub expires: Option<i64>,
}

/// The signature that stands in the address.
pub fn sign(signed: &Signed<'_>, token: &str) -> String {
    let Signed { path, operation, user, expires } = signed;
    let text = match expires {
        Some(expires) => format!("{path}:{operation}:{user}:{token}:{expires}"),
        None => format!("{path}:{operation}:{user}:{token}"),
    };
    format!("v1_{}", STANDARD_NO_PAD.encode(Sha256::digest(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    // Values made with the Python SDK 2.63.0.
    #[test]
    fn a_signature_is_the_sdks() {
        let mut signed =
            Signed { path: "/home/user/a.txt", operation: Operation::Read, user: "", expires: None };
        assert_eq!(sign(&signed, "tok"), "v1_Zkbb3914oLJLvMBzCAHQhm2ydBLxbSx2eQUR/kLdvIY");
        signed = Signed { user: "root", operation: Operation::Write, expires: Some(1_700_000_000), ..signed };
        assert_eq!(sign(&signed, "tok"), "v1_3hlIyTfkHTdfJKgNFUJamAQ7q+SOj3624i+geS/jqCM");
    }
}
