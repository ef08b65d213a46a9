//! The arguments of a message: words of the form `key=value`.

use crate::Failure;
use crate::raw::MEMPROF_INVALID_ARGUMENT;

/// The arguments of one message. Call [`take`](Self::take) for each argument that the message knows, then
/// [`finish`](Self::finish), which rejects the others by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arguments {
    words: Vec<(String, String)>,
    known: Vec<&'static str>,
    /// Usage of the message, such as `name=NAME [for=TIME]`. Empty if it is not known.
    usage: &'static str,
}

impl Arguments {
    /// Parses arguments such as `key=value key="value with blanks"`. Inside quotes, a backslash makes the next
    /// character a part of the value, even a quote or a backslash.
    ///
    /// # Errors
    /// `InvalidArgument`: a word without `=` or with an empty key, an open quote, or a repeated key.
    pub fn parse(args: &str) -> Result<Self, Failure> {
        let mut words: Vec<(String, String)> = Vec::new();
        for word in Self::split(args)? {
            let Some((key, value)) = word.split_once('=').filter(|(key, _)| !key.is_empty()) else {
                return Err(invalid_argument_failure(format!(
                    "argument {word:?} is not of the form key=value"
                )));
            };
            if words.iter().any(|(known, _)| known == key) {
                return Err(invalid_argument_failure(format!(
                    "argument {key:?} is given twice"
                )));
            }
            words.push((key.to_owned(), value.to_owned()));
        }
        Ok(Self {
            words,
            known: Vec::new(),
            usage: "",
        })
    }

    /// Sets the usage of the message, such as `name=NAME [for=TIME]`. If a mandatory argument is missing,
    /// [`require`](Self::require) finds the valid arguments there.
    pub(crate) fn with_usage(self, usage: &'static str) -> Self {
        Self { usage, ..self }
    }

    /// Splits a text at blanks outside of quotes. Removes the quotes, and each backslash that escapes a character
    /// inside of them. [`join`](Self::join) puts the words together again.
    ///
    /// # Errors
    /// `InvalidArgument`: a quote is left open.
    pub fn split(args: &str) -> Result<Vec<String>, Failure> {
        let mut words = Vec::new();
        let mut word: Option<String> = None;
        let mut quoted = false;
        let mut chars = args.chars();
        while let Some(c) = chars.next() {
            match c {
                '"' => {
                    quoted = !quoted;
                    word.get_or_insert_default();
                }
                '\\' if quoted => word.get_or_insert_default().extend(chars.next()),
                c if c.is_whitespace() && !quoted => words.extend(word.take()),
                c => word.get_or_insert_default().push(c),
            }
        }
        if quoted {
            return Err(invalid_argument_failure(format!(
                "a quote is left open in {args:?}"
            )));
        }
        words.extend(word);
        Ok(words)
    }

    /// Joins the words of a command line to one text, which [`parse`](Self::parse) splits into the same words. Adds
    /// quotes to values with blanks or quotes, because the shell has removed them. A word without `=` stays as it is:
    /// [`parse`](Self::parse) refuses it.
    pub fn join<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
        let quoted = |word: &str| match word.split_once('=') {
            Some((key, value)) if value.contains(|c: char| c.is_whitespace() || c == '"') => {
                let value = value.replace('\\', "\\\\").replace('"', "\\\"");
                format!("{key}=\"{value}\"")
            }
            _ => word.to_owned(),
        };
        words.into_iter().map(quoted).collect::<Vec<_>>().join(" ")
    }

    /// Removes the argument `key` and returns its value. `None` if it is absent. Marks the key as known to the message,
    /// for [`finish`](Self::finish).
    pub fn take(&mut self, key: &'static str) -> Option<String> {
        self.known.push(key);
        let index = self.words.iter().position(|(word, _)| word == key)?;
        Some(self.words.remove(index).1)
    }

    /// Removes the mandatory argument `key` and returns its value.
    ///
    /// # Errors
    /// `InvalidArgument`: the key is absent. If there is an argument that the message's usage lacks, such as a
    /// misspelled one, the failure names that one, as [`finish`](Self::finish) does.
    pub fn require(&mut self, key: &'static str) -> Result<String, Failure> {
        if let Some(value) = self.take(key) {
            return Ok(value);
        }
        let valid = usage_keys(self.usage);
        // A usage without the mandatory key is incomplete, so it says nothing about other keys.
        let unknown = self.words.iter().find(|(word, _)| {
            valid.contains(&key) && !valid.contains(&&**word) && !self.known.contains(&&**word)
        });
        Err(match unknown {
            Some((word, _)) => unknown_argument_failure(word, &valid),
            None => invalid_argument_failure(format!("argument {key:?} is missing"))
                .remedy(format!("send {key}=VALUE")),
        })
    }

    /// Checks that every argument was taken.
    ///
    /// # Errors
    /// `InvalidArgument`: the message does not know an argument, because it was not taken. The remedy lists the known
    /// ones.
    pub fn finish(self) -> Result<(), Failure> {
        let Some((key, _)) = self.words.first() else {
            return Ok(());
        };
        Err(unknown_argument_failure(key, &self.known))
    }
}

/// Creates the failure of a message that has an argument besides the `valid` ones.
fn unknown_argument_failure(key: &str, valid: &[&str]) -> Failure {
    let remedy = match valid {
        [] => "this message takes no arguments".to_owned(),
        valid => format!("valid arguments: {}", valid.join(", ")),
    };
    invalid_argument_failure(format!("unknown argument {key:?}")).remedy(remedy)
}

/// Returns the keys of the arguments in a message's usage: `name` and `for` of `name=NAME [for=TIME]`.
fn usage_keys(usage: &str) -> Vec<&str> {
    let words = usage.split(|c: char| c.is_whitespace() || "[]|(){}<>,".contains(c));
    words
        .filter_map(|word| Some(word.split_once('=')?.0).filter(|key| !key.is_empty()))
        .collect()
}

/// Creates a failure of kind `InvalidArgument`, without a remedy.
fn invalid_argument_failure(message: String) -> Failure {
    Failure::new(MEMPROF_INVALID_ARGUMENT, message)
}

#[cfg(test)]
mod tests {
    use super::Arguments;

    #[test]
    fn words_parse_to_pairs() {
        let check = |text: &str, expected: &[(&str, &str)]| {
            let words = Arguments::parse(text).unwrap().words;
            let words: Vec<_> = words
                .iter()
                .map(|(k, v)| (k.as_str(), v.as_str()))
                .collect();
            assert_eq!(words, expected, "{text}");
        };
        check("", &[]);
        check("  \t ", &[]);
        check("id=7", &[("id", "7")]);
        check("a=1  b= c==", &[("a", "1"), ("b", ""), ("c", "=")]);
        check(
            r#"name="two words" x="\"\\""#,
            &[("name", "two words"), ("x", "\"\\")],
        );
        check("naïve=ß", &[("naïve", "ß")]);
    }

    #[test]
    fn errors_name_the_word() {
        let check = |text: &str, expected: &str| {
            assert_eq!(
                Arguments::parse(text).unwrap_err().to_string(),
                expected,
                "{text}"
            );
        };
        check("id", "argument \"id\" is not of the form key=value");
        check("=7", "argument \"=7\" is not of the form key=value");
        check("a=1 a=2", "argument \"a\" is given twice");
        check("a=\"x", "a quote is left open in \"a=\\\"x\"");
    }

    #[test]
    fn joined_words_are_quoted() {
        let check = |words: &[&str], expected: &str| {
            assert_eq!(Arguments::join(words.iter().copied()), expected);
        };
        check(&[], "");
        check(&["a=1", "b=2"], "a=1 b=2");
        check(&["name=two words"], "name=\"two words\"");
        check(&["name=a \"b\" \\"], r#"name="a \"b\" \\""#);
        check(&["not a pair"], "not a pair");
    }

    #[test]
    fn joined_words_parse_to_same_values() {
        let blanks = ('\0'..=char::MAX).filter(|c| c.is_whitespace() || c.is_control());
        for c in blanks.chain(['"', '\\', '=', 'x']) {
            for value in [format!("{c}"), format!("a{c}b"), format!("{c}\\\"")] {
                let word = format!("id={value}");
                let joined = Arguments::join([word.as_str(), "next=1"]);
                let mut args = Arguments::parse(&joined).unwrap();
                assert_eq!(args.take("id"), Some(value), "{joined:?}");
                assert_eq!(args.take("next").as_deref(), Some("1"), "{joined:?}");
            }
        }
    }

    #[test]
    fn missing_argument_names_the_misspelled_one() {
        let check = |usage: &'static str, text: &str, expected: &str| {
            let mut args = Arguments::parse(text).unwrap().with_usage(usage);
            args.take("flags");
            let refused = args.require("word").unwrap_err();
            assert_eq!(refused.to_string(), expected, "{usage} {text}");
        };
        let missing = "argument \"word\" is missing; send word=VALUE";
        let usage = "word=WORD [for=TIME] [mode=a|b]";
        check(usage, "", missing);
        check(usage, "for=1s mode=a", missing);
        check(usage, "flags=1", missing);
        let unknown = "unknown argument \"wrod\"; valid arguments: word, for, mode";
        check(usage, "wrod=x", unknown);
        check(usage, "for=1s wrod=x", unknown);
        // Such a usage does not tell which arguments are valid.
        check("", "wrod=x", missing);
        check("[for=TIME] WORDS", "wrod=x", missing);
    }

    #[test]
    fn unknown_argument_lists_the_known_ones() {
        let mut args = Arguments::parse("id=1 path=/etc").unwrap();
        assert_eq!(args.take("id").as_deref(), Some("1"));
        assert_eq!(args.take("format"), None);
        let refused = args.finish().unwrap_err();
        assert_eq!(
            refused.to_string(),
            "unknown argument \"path\"; valid arguments: id, format"
        );
    }
}
