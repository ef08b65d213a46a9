//! The secret that a client of another user or machine must bring.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::rand::GetRandomFlags;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// The shortest token in base64, and in hex: 128 bits.
const LETTERS: usize = 22;
const HEX_DIGITS: usize = 32;

/// A token. Only its digest is kept.
#[derive(Clone, Debug)]
pub struct Token([u8; 32]);

/// Why a token is none.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// Its file cannot be read.
    #[error("failed to read {0}: {1}")]
    Unreadable(String, #[source] io::Error),
    /// Its file is open to others.
    #[error("{0} can be read by others: chmod 600 {0}")]
    Exposed(String),
    /// It has less than 128 bits.
    #[error("the token is too short: make one with `openssl rand -hex 16`")]
    Short,
    /// It does not fit a path.
    #[error("the token has a character that is none of A-Z a-z 0-9 . _ ~ -")]
    Character,
}

impl Token {
    /// The first line of a file that its owner alone can read.
    ///
    /// # Errors
    /// The file, or what it holds, is not fit.
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        let name = path.display().to_string();
        let failed = |error| TokenError::Unreadable(name.clone(), error);
        let metadata = path.metadata().map_err(failed)?;
        if metadata.mode() & 0o077 != 0 {
            return Err(TokenError::Exposed(name));
        }
        let text = std::fs::read_to_string(path).map_err(failed)?;
        Self::parse(text.lines().next().unwrap_or_default().trim())
    }

    /// A token of at least 128 bits, in characters that a path may hold.
    ///
    /// # Errors
    /// It is too short, or has another character.
    pub fn parse(text: &str) -> Result<Self, TokenError> {
        let is_safe = |byte: u8| byte.is_ascii_alphanumeric() || b"._~-".contains(&byte);
        if !text.bytes().all(is_safe) {
            return Err(TokenError::Character);
        }
        let is_hex = text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if text.len() < if is_hex { HEX_DIGITS } else { LETTERS } {
            return Err(TokenError::Short);
        }
        Ok(Self(Sha256::digest(text).into()))
    }

    /// A new token, and its text, which is kept nowhere else.
    ///
    /// # Errors
    /// The kernel has no random bytes yet.
    pub fn generate() -> io::Result<(Self, String)> {
        let mut bytes = [0; HEX_DIGITS / 2];
        rustix::io::retry_on_intr(|| rustix::rand::getrandom(&mut bytes, GetRandomFlags::empty()))?;
        let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok((Self(Sha256::digest(&text).into()), text))
    }

    /// Whether `given` is this token, in a time that does not tell how much of it is.
    pub(crate) fn matches(&self, given: &str) -> bool {
        let given: [u8; 32] = Sha256::digest(given).into();
        self.0.ct_eq(&given).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const HEX: &str = "00112233445566778899aabbccddeeff";

    #[test]
    fn tokens() {
        let check = |text: &str, expected: &str| {
            let refused = Token::parse(text).err();
            let refused = refused.map(|error| error.to_string()).unwrap_or_default();
            assert!(refused.contains(expected) && refused.is_empty() == expected.is_empty());
        };
        check(HEX, "");
        check("abcdefghijklmnopqrstu-", "");
        check(&HEX[1..], "too short");
        check("abcdefghijklmnopqrstu", "too short");
        check("", "too short");
        check("abcdefghijklmnopqrstuvw/../", "character");
    }

    #[test]
    fn only_the_same_text_is_the_token() {
        let token = Token::parse(HEX).unwrap();
        assert!(token.matches(HEX));
        assert!(!token.matches(""));
        assert!(!token.matches(&HEX[1..]));
        assert!(!token.matches(&HEX.to_uppercase()));
    }

    #[test]
    fn a_new_token_is_like_no_other() {
        let (token, text) = Token::generate().unwrap();
        assert!(token.matches(&text));
        assert!(Token::parse(&text).unwrap().matches(&text));
        assert!(!token.matches(&Token::generate().unwrap().1));
    }

    #[test]
    fn a_file_that_others_can_read_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("token");
        std::fs::write(&path, format!("{HEX}\n")).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
        let refused = Token::read(&path).unwrap_err().to_string();
        assert!(refused.contains("chmod 600"), "{refused}");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        assert!(Token::read(&path).unwrap().matches(HEX));
    }
}
