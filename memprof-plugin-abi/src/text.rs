//! Borrowed text at the ABI boundary.
#![expect(unsafe_code, reason = "the ABI boundary: pointers from the other side")]

use std::borrow::Cow;
use std::slice;

use crate::raw::{memprof_message_t, memprof_plugin_entry_t, memprof_str_t};

// SAFETY: memprof.h, `memprof_plugin_entry_t`: the struct only contains pointers to constant data that is never freed.
unsafe impl Sync for memprof_plugin_entry_t {}
// SAFETY: memprof.h, `memprof_plugin_entry_t`: the struct only contains pointers to constant data that is never freed.
unsafe impl Sync for memprof_message_t {}

/// Escapes control characters, line separators and the characters that change the direction of writing (Unicode's UAX
/// #9, `Bidi_Control`) as in Rust's literals, for example a newline as `\n`. A log line then stays one line, and shows
/// its characters in their order, no matter what a client sent.
pub fn escape_controls(text: &str) -> Cow<'_, str> {
    if !text.contains(needs_escape) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match needs_escape(c) {
            true => escaped.extend(c.escape_default()),
            false => escaped.push(c),
        }
    }
    Cow::Owned(escaped)
}

/// Returns whether a character is a control character, separates lines, or changes the direction of writing.
fn needs_escape(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}')
        || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Result for text that should be UTF-8. The error contains the position of the first invalid byte.
pub type Utf8<'a> = Result<&'a str, std::str::Utf8Error>;

impl memprof_str_t {
    /// Text of length 0.
    pub const EMPTY: Self = Self::new("");

    /// Borrows `text`. The caller must keep it alive while the other side may read it.
    pub const fn new(text: &str) -> Self {
        Self {
            ptr: text.as_ptr().cast(),
            len: text.len(),
        }
    }

    /// Borrows arbitrary bytes, for a reply's body. The caller must keep them alive while the other side may read them.
    pub const fn from_bytes(bytes: &[u8]) -> Self {
        Self {
            ptr: bytes.as_ptr().cast(),
            len: bytes.len(),
        }
    }

    /// Returns the bytes that the other side lent. Empty for a null pointer.
    ///
    /// # Safety
    /// `ptr` points to `len` bytes that stay unchanged during `'a`, or `len` is 0.
    pub unsafe fn as_bytes<'a>(self) -> &'a [u8] {
        if self.len == 0 || self.ptr.is_null() {
            return &[];
        }
        // SAFETY: the caller guarantees `len` readable bytes at `ptr`.
        unsafe { slice::from_raw_parts(self.ptr.cast(), self.len) }
    }

    /// Returns the text that the other side lent. Empty for a null pointer. Fails if the text is not UTF-8.
    ///
    /// # Safety
    /// `ptr` points to `len` bytes that stay unchanged during `'a`, or `len` is 0.
    pub unsafe fn as_str<'a>(self) -> Utf8<'a> {
        // SAFETY: the caller guarantees `len` readable bytes at `ptr`, or that `len` is 0.
        std::str::from_utf8(unsafe { self.as_bytes() })
    }
}

#[cfg(test)]
mod tests {
    use super::escape_controls;

    #[test]
    fn escaped_text_is_one_line() {
        let check = |text: &str, expected: &str| {
            assert_eq!(escape_controls(text), expected);
            assert_eq!(escape_controls(expected), expected, "twice");
        };
        check("na\u{ef}ve \\n", "na\u{ef}ve \\n");
        check("a\nERROR host: b", "a\\nERROR host: b");
        check("\r\t\u{1b}[2J", "\\r\\t\\u{1b}[2J");
        check("a\0b\u{85}\u{2028}", "a\\u{0}b\\u{85}\\u{2028}");
        check("a\u{202e}b\u{2066}c", "a\\u{202e}b\\u{2066}c");
        check("\u{200f}\u{61c}\u{2069}", "\\u{200f}\\u{61c}\\u{2069}");
        check("\u{200d}\u{2060}", "\u{200d}\u{2060}");
    }
}
