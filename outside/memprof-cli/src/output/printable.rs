//! Text that does no more to a terminal than show itself.
//!
//! Names, texts and symbols come from hosts and files of other users. An escape sequence among them
//! could write to the clipboard or hide what follows; characters that turn the direction of writing
//! show a line as another one.

use std::borrow::Cow;
use std::io::{self, Write};

/// The text with each character that controls a terminal written as JSON writes it, `\u001b`: so JSON
/// stays the same JSON. Newlines and tabs stay.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    escaped(text, |c| is_harmful(c) && c != '\n' && c != '\t')
}

/// The same for what must not begin a new line: a cell of a table.
pub(crate) fn one_line(text: &str) -> Cow<'_, str> {
    escaped(text, is_harmful)
}

fn escaped(text: &str, is_harmful: impl Fn(char) -> bool) -> Cow<'_, str> {
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

/// C0, DEL and C1; line and paragraph separators; what changes the direction of writing
/// (Unicode's UAX #9, `Bidi_Control`).
fn is_harmful(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}'
        )
        || matches!(c, '\u{2066}'..='\u{2069}')
}

/// Makes what is written through it printable; bytes that are no UTF-8 become U+FFFD.
#[derive(Debug)]
pub(crate) struct Printable<W: Write> {
    inner: W,
    /// The start of a character whose rest was not written yet.
    begun: Vec<u8>,
}

impl<W: Write> Printable<W> {
    pub(crate) fn new(inner: W) -> Self {
        Self {
            inner,
            begun: Vec::new(),
        }
    }
}

impl<W: Write> Write for Printable<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.begun.extend_from_slice(bytes);
        let whole = match str::from_utf8(&self.begun) {
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            // What is no UTF-8 at all has an end too.
            Ok(_) | Err(_) => self.begun.len(),
        };
        let rest = self.begun.split_off(whole);
        let text = std::mem::replace(&mut self.begun, rest);
        let text = String::from_utf8_lossy(&text);
        self.inner.write_all(printable(&text).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_controls_a_terminal_is_shown_instead() {
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
    fn json_stays_the_same_json() {
        let value = serde_json::json!({ "name": "\u{1b}[2J \u{9b} \u{202e} \u{7f} ß" });
        let text = value.to_string();
        let shown = printable(&text);
        assert!(!shown.contains(['\u{9b}', '\u{202e}', '\u{7f}']), "{shown}");
        let read: serde_json::Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(read, value);
    }

    #[test]
    fn characters_may_come_in_pieces() {
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
        Printable::new(&mut out).write_all(b"a\x9b2J\xff").unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "a\u{fffd}2J\u{fffd}");
    }
}
