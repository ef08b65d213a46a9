//! Escapes texts of a program, so that each is one word in a comment line of a dump.

use std::fmt::Write;

/// Escapes a text into one word. Each byte that is not printable ASCII, and each space and `%`, becomes `%` with two
/// hexadecimal digits.
pub(crate) fn escape_word(text: impl IntoIterator<Item = u8>) -> String {
    text.into_iter().fold(String::new(), |mut word, byte| {
        match byte {
            b'!'..=b'~' if byte != b'%' => word.push(char::from(byte)),
            _ => {
                let _cannot_fail = write!(word, "%{byte:02x}");
            }
        }
        word
    })
}

#[cfg(test)]
mod tests {
    use super::escape_word;

    #[test]
    fn escaped_text_is_one_word() {
        let check = |text: &str, expected| assert_eq!(escape_word(text.bytes()), expected);
        check("/x?a=b", "/x?a=b");
        check("a b%\n\x1b\0ä", "a%20b%25%0a%1b%00%c3%a4");
    }
}
