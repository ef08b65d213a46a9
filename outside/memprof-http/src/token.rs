//! Secret token of clients that are of another user or machine.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::rand::GetRandomFlags;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// Length of the shortest token in base64 and in hex: 128 bits.
const MIN_CHARS: usize = 22;
const MIN_HEX_DIGITS: usize = 32;

/// A token. Only its digest is stored.
#[derive(Clone, Debug)]
pub struct Token([u8; 32]);

/// Reason why a token is invalid.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file cannot be read.
    #[error("failed to read {0}: {1}")]
    Unreadable(String, #[source] io::Error),
    /// Other users can read the file.
    #[error("{0} can be read by others: chmod 600 {0}")]
    Exposed(String),
    /// The token has less than 128 bits.
    #[error("the token is too short: make one with `openssl rand -hex 16`")]
    Short,
    /// The token has a character that a path may not contain.
    #[error("the token has an invalid character: expected A-Z a-z 0-9 . _ ~ -")]
    Character,
}

impl Token {
    /// Reads the token in the first line of a file that only its owner can access.
    ///
    /// # Errors
    /// The file is unreadable, others have any permission for it, or its token is invalid.
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        let name = path.display().to_string();
        let read_error = |error| TokenError::Unreadable(name.clone(), error);
        let metadata = path.metadata().map_err(read_error)?;
        if metadata.mode() & 0o077 != 0 {
            return Err(TokenError::Exposed(name));
        }
        let text = std::fs::read_to_string(path).map_err(read_error)?;
        Self::parse(text.lines().next().unwrap_or_default().trim())
    }

    /// Parses a token of at least 128 bits, in characters that a path may contain: ASCII letters, digits and `._~-`.
    /// Only its hash is kept.
    ///
    /// # Errors
    /// The token is too short, or has another character.
    pub fn parse(text: &str) -> Result<Self, TokenError> {
        let is_safe = |byte: u8| byte.is_ascii_alphanumeric() || b"._~-".contains(&byte);
        if !text.bytes().all(is_safe) {
            return Err(TokenError::Character);
        }
        let is_hex = text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if text.len() < if is_hex { MIN_HEX_DIGITS } else { MIN_CHARS } {
            return Err(TokenError::Short);
        }
        Ok(Self(Sha256::digest(text).into()))
    }

    /// Generates a token of 128 random bits. Returns the token with its text, which is stored nowhere else.
    ///
    /// # Errors
    /// The kernel has no random bytes.
    pub fn generate() -> io::Result<(Self, String)> {
        let mut bytes = [0; MIN_HEX_DIGITS / 2];
        rustix::io::retry_on_intr(|| rustix::rand::getrandom(&mut bytes, GetRandomFlags::empty()))?;
        let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok((Self(Sha256::digest(&text).into()), text))
    }

    /// Returns whether `text` is this token. The time of the comparison does not depend on how much of `text` is right.
    pub(crate) fn matches(&self, text: &str) -> bool {
        let digest: [u8; 32] = Sha256::digest(text).into();
        self.0.ct_eq(&digest).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const HEX: &str = "00112233445566778899aabbccddeeff";

    #[test]
    fn token_is_checked_for_length_and_characters() {
        let check = |text: &str, expected: &str| {
            let error = Token::parse(text).err();
            let error = error.map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(expected) && error.is_empty() == expected.is_empty());
        };
        check(HEX, "");
        check("abcdefghijklmnopqrstu-", "");
        check(&HEX[1..], "too short");
        check("abcdefghijklmnopqrstu", "too short");
        check("", "too short");
        check("abcdefghijklmnopqrstuvw/../", "character");
    }

    #[test]
    fn only_equal_text_matches() {
        let token = Token::parse(HEX).unwrap();
        assert!(token.matches(HEX));
        assert!(!token.matches(""));
        assert!(!token.matches(&HEX[1..]));
        assert!(!token.matches(&HEX.to_uppercase()));
    }

    #[test]
    fn generated_tokens_differ() {
        let (token, text) = Token::generate().unwrap();
        assert!(token.matches(&text));
        assert!(Token::parse(&text).unwrap().matches(&text));
        assert!(!token.matches(&Token::generate().unwrap().1));
    }

    #[test]
    fn file_readable_by_others_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        std::fs::write(&path, format!("{HEX}\n")).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
        let error = Token::read(&path).unwrap_err().to_string();
        assert!(error.contains("chmod 600"), "{error}");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        assert!(Token::read(&path).unwrap().matches(HEX));
    }
}
