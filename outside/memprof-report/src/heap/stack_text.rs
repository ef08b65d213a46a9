//! Addresses of a stack as other writers spell them, rewritten as jemalloc does: `0x…`, separated by one blank.

/// Least digits of an address without `0x`: `%p` of Microsoft's C library writes 8 or 16.
const MIN_BARE_DIGITS: usize = 8;

/// Rewrites a stack, which another writer than jemalloc may spell in its own way, as addresses with `0x`, one blank
/// apart. Accepts `(nil)` (glibc's `%p` of null) as 0, and hexadecimal digits without `0x` if there are at least
/// [`MIN_BARE_DIGITS`]. `None` if the text is in this form already, or a word is no address.
pub(super) fn normalize_stack_text(text: &[u8]) -> Option<Vec<u8>> {
    let mut words = Vec::new();
    for word in text
        .split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty())
    {
        let digits = match word {
            b"(nil)" => b"0",
            [b'0', b'x' | b'X', digits @ ..] => digits,
            _ if word.len() >= MIN_BARE_DIGITS => word,
            _ => return None,
        };
        if !digits.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
        words.push([b"0x", digits].concat());
    }
    let normalized = words.join(&b' ');
    (normalized != text).then_some(normalized)
}

#[cfg(test)]
mod tests {
    use super::normalize_stack_text;

    #[test]
    fn addresses_of_other_writers_are_rewritten() {
        let check = |text: &str, expected: Option<&str>| {
            let normalized = normalize_stack_text(text.as_bytes());
            let normalized = normalized.map(|text| String::from_utf8(text).expect("it is text"));
            assert_eq!(normalized.as_deref(), expected, "{text}");
        };
        check("0x1  0x2\t0x3", Some("0x1 0x2 0x3"));
        check(
            "00007FF6A1B21010 00007FF6A1B22020",
            Some("0x00007FF6A1B21010 0x00007FF6A1B22020"),
        );
        check("0x401010 (nil)", Some("0x401010 0x0"));
        check("0X401010", Some("0x401010"));
        check("0x1 0x2", None);
        check("0x1 zz", None);
        check("0x1 12", None);
        check("0x1 not_an_address", None);
        check("", None);
    }
}
