//! Escapes text so that it has no effect on a terminal but to be shown.
//!
//! Names, texts and symbols come from hosts and files of other users. An escape sequence in them could write to the
//! clipboard or hide what follows; characters that change the direction of writing make a line look like another
//! one.

use std::borrow::Cow;
use std::io::{self, Write};

/// Replaces each character that controls a terminal, except newlines and tabs, with an escape as in JSON (`\u001b`).
/// JSON text keeps its value.
pub fn printable(text: &str) -> Cow<'_, str> {
    escape_harmful_characters(text, |c| is_harmful(c) && c != '\n' && c != '\t')
}

/// Like [`printable`], but also escapes newlines and tabs: for a table cell.
pub fn one_line(text: &str) -> Cow<'_, str> {
    escape_harmful_characters(text, is_harmful)
}

/// Replaces each character for which `is_harmful` returns true with an escape as in JSON: `\u001b`. These characters
/// must be below U+10000, because JSON writes others as two escapes.
fn escape_harmful_characters(text: &str, is_harmful: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_harmful) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_harmful(c) {
            out.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            out.push(c);
        }
    }
    out.into()
}

/// Returns whether a character is C0, DEL or C1, a line or paragraph separator, or changes the direction of writing
/// (Unicode's UAX #9, `Bidi_Control`).
fn is_harmful(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}'
        )
        || matches!(c, '\u{2066}'..='\u{2069}')
}

/// A writer that makes all text printable; bytes that are not UTF-8 become U+FFFD.
#[derive(Debug)]
pub(crate) struct Printable<W: Write> {
    inner: W,
    /// Bytes of an incomplete character at the end of the last write.
    incomplete: Vec<u8>,
}

impl<W: Write> Printable<W> {
    /// Creates a writer that passes text to `inner` in printable form.
    pub(crate) fn new(inner: W) -> Self {
        Self {
            inner,
            incomplete: Vec::new(),
        }
    }
}

impl<W: Write> Write for Printable<W> {
    /// Writes all of `bytes` in printable form, invalid UTF-8 as U+FFFD. An incomplete character at the end of `bytes`
    /// waits for the next call, which may complete it, unless invalid bytes precede it.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.incomplete.extend_from_slice(bytes);
        let complete = self.incomplete.len() - incomplete_tail_length(&self.incomplete);
        let rest = self.incomplete.split_off(complete);
        let text = std::mem::replace(&mut self.incomplete, rest);
        let text = String::from_utf8_lossy(&text);
        self.inner.write_all(printable(&text).as_bytes())?;
        Ok(bytes.len())
    }

    /// Also writes a waiting incomplete character, as U+FFFD: no more bytes of it are expected.
    fn flush(&mut self) -> io::Result<()> {
        if !std::mem::take(&mut self.incomplete).is_empty() {
            self.inner
                .write_all(char::REPLACEMENT_CHARACTER.to_string().as_bytes())?;
        }
        self.inner.flush()
    }
}

/// Returns the length of the character that is incomplete at the end of a text; 0 if there is none.
fn incomplete_tail_length(text: &[u8]) -> usize {
    let last = text.utf8_chunks().last();
    let end = last.map_or(&b""[..], |chunk| chunk.invalid());
    match str::from_utf8(end) {
        Err(error) if error.error_len().is_none() => end.len(),
        Ok(_) | Err(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_control_characters_are_escaped() {
        let check = |text: &str, expected: &str, line: &str| {
            assert_eq!(printable(text), expected);
            assert_eq!(one_line(text), line);
        };
        check(
            "grow_cache ß 値 🦀",
            "grow_cache ß 値 🦀",
            "grow_cache ß 値 🦀",
        );
        check("a\tb\nc", "a\tb\nc", "a\\u0009b\\u000ac");
        let clipboard = "\\u001b]52;c;cm0=\\u0007";
        check("\u{1b}]52;c;cm0=\u{7}", clipboard, clipboard);
        check(
            "\u{9b}2J\u{7f}\r",
            "\\u009b2J\\u007f\\u000d",
            "\\u009b2J\\u007f\\u000d",
        );
        check(
            "\u{202e}fdp.exe\u{2066}",
            "\\u202efdp.exe\\u2066",
            "\\u202efdp.exe\\u2066",
        );
    }

    #[test]
    fn escaped_json_has_the_same_value() {
        let value = serde_json::json!({ "name": "\u{1b}[2J \u{9b} \u{202e} \u{7f} ß" });
        let text = value.to_string();
        let shown = printable(&text);
        assert!(!shown.contains(['\u{9b}', '\u{202e}', '\u{7f}']), "{shown}");
        let read: serde_json::Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(read, value);
    }

    #[test]
    fn characters_may_be_split_across_writes() {
        let text = "ß\u{9b}値\u{202e}🦀\n".as_bytes();
        for at in 0..text.len() {
            let mut out = Vec::new();
            let mut printable = Printable::new(&mut out);
            printable.write_all(&text[..at]).unwrap();
            printable.write_all(&text[at..]).unwrap();
            assert_eq!(
                String::from_utf8(out).unwrap(),
                "ß\\u009b値\\u202e🦀\n",
                "{at}"
            );
        }
        let mut out = Vec::new();
        let mut printable = Printable::new(&mut out);
        printable
            .write_all("a値".as_bytes().split_last().unwrap().1)
            .unwrap();
        printable.flush().unwrap();
        printable.flush().unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "a\u{fffd}");
        let mut out = Vec::new();
        Printable::new(&mut out).write_all(b"a\x9b2J\xff").unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "a\u{fffd}2J\u{fffd}");
        let mut out = Vec::new();
        let mut printable = Printable::new(&mut out);
        printable.write_all(b"\xff\xe5").unwrap();
        printable.write_all(b"\x80\xa4").unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "\u{fffd}値");
    }
}
