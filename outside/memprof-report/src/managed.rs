//! Functions of interpreted programs in stacks: managed words, which stand for names in comments of the dump, between
//! the addresses of native code.
//!
//! ```text
//! # language: python 3.11.2 /usr/bin/python3.11
//! # objects: python
//! # frame: 0x4d50040000000007 python Leak.handle /srv/app.py 9
//! ```

use std::collections::HashMap;

use percent_encoding::percent_decode_str;

/// Bits 40 to 63 of a managed word.
pub(crate) const MANAGED: u64 = 0x4d_5004;
/// Text with which a managed word begins.
const MANAGED_PREFIX: &[u8] = b"0x4d5004";
/// Id in a managed word of all names for which the process's table had no room.
pub(crate) const OTHER: u64 = 0;

/// Frames of a stack that a report shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StackFrames {
    /// The functions of an interpreted program where a stack has some, else those of native code.
    #[default]
    Program,
    /// All.
    All,
    /// Those of native code.
    Native,
}

/// Names of managed words, and the interpreters of the process.
#[derive(Clone, Debug, Default)]
pub(crate) struct ManagedNames {
    pub(crate) names: HashMap<u64, ManagedName>,
    interpreters: Vec<Interpreter>,
    /// Whether the profile says if it has the objects of an interpreter's own heap.
    pub(crate) has_objects_line: bool,
    /// Reason why it does not have them.
    objects_off_because: Option<String>,
}

/// A function of an interpreted program, at a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ManagedName {
    pub(crate) language: String,
    pub(crate) function: String,
    pub(crate) file: String,
    pub(crate) line: u32,
}

/// An interpreter in the process.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Interpreter {
    language: String,
    version: String,
    path: String,
    /// Reason why its program's functions are in no stack.
    off_because: Option<String>,
}

/// Place of a row in the source of an interpreted program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Name of the language: `python`.
    pub(crate) language: String,
    /// Path of the file, as the program names it. `None` if it is unknown.
    pub(crate) file: Option<String>,
    /// Line number; 0 if unknown.
    pub(crate) line: u32,
}

impl ManagedNames {
    /// Reads the value of the comment `frame`, `WORD LANGUAGE FUNCTION FILE LINE`: the name of a managed word, which
    /// stands for a function of an interpreted program in stacks. Ignores a malformed value.
    pub(crate) fn read_frame(&mut self, text: &str) {
        let mut words = text.split(' ');
        let mut next = || words.next();
        let (Some(word), Some(language), Some(function), Some(file), Some(line)) =
            (next(), next(), next(), next(), next())
        else {
            return;
        };
        let word = word
            .strip_prefix("0x")
            .and_then(|digits| u64::from_str_radix(digits, 16).ok());
        if let Some(word) = word.filter(|word| is_managed_word(*word)) {
            let name = ManagedName {
                language: decode_percent(language),
                function: decode_percent(function),
                file: decode_percent(file),
                line: line.parse().unwrap_or(0),
            };
            self.names.insert(word, name);
        }
    }

    /// Reads the value of the comment `language`, `LANGUAGE VERSION PATH`: an interpreter in the process. It may end
    /// with ` off: REASON`, which says why the program's functions are in no stack. Ignores a malformed value.
    pub(crate) fn read_language(&mut self, text: &str) {
        let (text, off) = match text.split_once(" off: ") {
            Some((text, reason)) => (text, Some(reason.to_owned())),
            None => (text, None),
        };
        if let [language, version, path] = text.split(' ').collect::<Vec<_>>()[..] {
            self.interpreters.push(Interpreter {
                language: decode_percent(language),
                version: decode_percent(version),
                path: decode_percent(path),
                off_because: off,
            });
        }
    }

    /// Reads the value of the comment `objects`: `LANGUAGE` if the profile has the objects of the interpreter's own
    /// heap, or `LANGUAGE off: REASON` if it lacks them.
    pub(crate) fn read_objects(&mut self, text: &str) {
        self.has_objects_line = true;
        self.objects_off_because = text
            .split_once(" off: ")
            .map(|(_, reason)| reason.to_owned());
    }

    /// Returns a note that Python's small objects are not in the profile, with the reason. `None` if the dump gives no
    /// reason: it has them, or says nothing of them.
    pub(crate) fn objects_note(&self) -> Option<String> {
        self.objects_off_because.as_ref().map(|reason| {
            format!(
                "Python's objects of up to 512 bytes are not in this profile: {reason}; `memprof holders PID` shows what \
                 holds them"
            )
        })
    }

    /// Returns a note, with the reason, for each interpreter whose program's functions are in no stack.
    pub(crate) fn interpreter_notes(&self) -> impl Iterator<Item = String> {
        self.interpreters.iter().filter_map(|interpreter| {
            let Interpreter {
                language,
                version,
                path,
                off_because,
            } = interpreter;
            let reason = off_because.as_ref()?;
            Some(format!(
                "functions of {language} {version} ({path}) are in no stack: {reason}"
            ))
        })
    }
}

/// Decodes percent-encoding, such as `%20`. Invalid UTF-8 is replaced.
fn decode_percent(word: &str) -> String {
    percent_decode_str(word).decode_utf8_lossy().into_owned()
}

/// Returns whether a frame is a managed word, which stands for a function of an interpreted program, not an address.
pub(crate) fn is_managed_word(frame: u64) -> bool {
    frame >> 40 == MANAGED
}

/// Returns whether a word of a stack's text has the prefix and the length of a managed word.
pub(crate) fn is_managed_word_text(word: &[u8]) -> bool {
    /// Hex digits below the kind.
    const DIGITS: usize = 10;
    word.len() == MANAGED_PREFIX.len() + DIGITS && word.starts_with(MANAGED_PREFIX)
}

/// Splits the text of a stack into its native words and a list of the managed ones, such as `1:7,1:9,4:2`: the number
/// of addresses before each, and its id.
pub(crate) fn split_managed_words(stack: &[u8]) -> (Vec<u8>, String) {
    let mut native = Vec::new();
    let mut managed = Vec::new();
    let mut addresses = 0;
    for word in stack.split(|byte| *byte == b' ') {
        if is_managed_word_text(word) {
            let digits = word.get(MANAGED_PREFIX.len()..).unwrap_or_default();
            // The id is in bits 1 to 32 of a managed word.
            let low = u64::from_str_radix(&String::from_utf8_lossy(digits), 16);
            managed.push(format!("{addresses}:{}", low.unwrap_or(0) >> 1));
        } else {
            addresses += usize::from(word.starts_with(b"0x"));
            native.push(word);
        }
    }
    (native.join(&b' '), managed.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_lines_are_ignored() {
        let mut names = ManagedNames::default();
        for line in [
            "",
            "0x4d50040000000007",
            "x python f a.py 1",
            "0x7f python f a.py 1",
        ] {
            names.read_frame(line);
        }
        assert!(names.names.is_empty());
        names.read_frame("0x4d50040000000007 python gr%c3%b6%c3%9fe a%20b.py 9");
        let name = &names.names[&0x4d50_0400_0000_0007];
        assert_eq!(
            (&*name.function, &*name.file, name.line),
            ("größe", "a b.py", 9)
        );
        for line in ["", "python", "python 3.14.0"] {
            names.read_language(line);
        }
        assert_eq!(names.interpreter_notes().count(), 0);
        names.read_language("python 3.14.0 /usr/bin/python3.14 off: its layout is unknown");
        let note = "functions of python 3.14.0 (/usr/bin/python3.14) are in no stack: its layout is unknown";
        assert_eq!(names.interpreter_notes().collect::<Vec<_>>(), [note]);
    }

    #[test]
    fn managed_words_of_a_text_are_known_by_their_kind() {
        assert!(is_managed_word_text(b"0x4d50040000000007"));
        for other in ["", "0x4d5004", "0x4d50030000000007", "0x4d500400000000071"] {
            assert!(!is_managed_word_text(other.as_bytes()), "{other}");
        }
    }
}
