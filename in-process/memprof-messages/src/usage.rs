//! Arguments as a person would type them, written by the compiler: the plugin's descriptors are
//! constants.

use std::fmt;

use crate::{ArgumentSpec, ArgumentType, MESSAGES, MessageSpec};

/// Each message's arguments in one line, in the order of [`MESSAGES`]:
/// `[sample_interval=512KiB | lg_sample=10..24] [allocator=NAME]`.
pub const USAGES: [&str; MESSAGES.len()] = {
    const LENGTH: usize = all(UsageWriter::<0>::new()).length;
    const TEXT: [u8; LENGTH] = all(UsageWriter::<LENGTH>::new()).bytes;
    let mut usages = [""; MESSAGES.len()];
    let mut rest: &[u8] = &TEXT;
    let mut at = 0;
    while at < usages.len() {
        let (usage, others) = rest.split_at(UsageWriter::<0>::new().message(&MESSAGES[at]).length);
        usages[at] = match str::from_utf8(usage) {
            Ok(usage) => usage,
            Err(_) => panic!("usages are cut between messages"),
        };
        rest = others;
        at += 1;
    }
    usages
};

const fn all<const N: usize>(mut pen: UsageWriter<N>) -> UsageWriter<N> {
    let mut at = 0;
    while at < MESSAGES.len() {
        pen = pen.message(&MESSAGES[at]);
        at += 1;
    }
    pen
}

/// Writes the first `N` bytes, and counts all.
#[derive(Clone, Copy)]
struct UsageWriter<const N: usize> {
    bytes: [u8; N],
    length: usize,
}

impl<const N: usize> UsageWriter<N> {
    const fn new() -> Self {
        Self {
            bytes: [0; N],
            length: 0,
        }
    }

    const fn text(mut self, text: &str) -> Self {
        let mut at = 0;
        while at < text.len() {
            if self.length < N {
                self.bytes[self.length] = text.as_bytes()[at];
            }
            self.length += 1;
            at += 1;
        }
        self
    }

    const fn number(self, number: u32) -> Self {
        const DIGITS: &str = "0123456789";
        let pen = if number >= 10 {
            self.number(number / 10)
        } else {
            self
        };
        let (_, digit) = DIGITS.split_at((number % 10) as usize);
        let (digit, _) = digit.split_at(1);
        pen.text(digit)
    }

    const fn values(self, values: &ArgumentType) -> Self {
        match values {
            ArgumentType::OneOf(words) => {
                let mut pen = self.text(words[0]);
                let mut at = 1;
                while at < words.len() {
                    pen = pen.text("|").text(words[at]);
                    at += 1;
                }
                pen
            }
            ArgumentType::NamedOneOf(name, _) => self.text(name),
            ArgumentType::Examples(examples) => self.text(examples[0]),
            ArgumentType::Integer {
                least,
                most: Some(most),
                ..
            } => self.number(*least).text("..").number(*most),
            ArgumentType::Integer { most: None, .. } => self.text("N"),
        }
    }

    const fn argument(self, argument: &ArgumentSpec) -> Self {
        self.text(argument.key).text("=").values(&argument.values)
    }

    const fn message(self, message: &MessageSpec) -> Self {
        let mut pen = self;
        let mut at = 0;
        while at < message.arguments.len() {
            let argument = &message.arguments[at];
            let is_last =
                at + 1 == message.arguments.len() || !message.arguments[at + 1].is_alternative;
            pen = if argument.is_alternative {
                pen.text(" | ")
            } else {
                let blank = if at == 0 { "" } else { " " };
                let open = if argument.is_required { "" } else { "[" };
                pen.text(blank).text(open)
            };
            pen = pen.argument(argument);
            if is_last && !argument.is_required {
                pen = pen.text("]");
            }
            at += 1;
        }
        pen
    }
}

/// `state=on|off`
impl fmt::Display for ArgumentSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Longer than any argument of the table.
        let pen = UsageWriter::<128>::new().argument(self);
        f.write_str(&String::from_utf8_lossy(&pen.bytes[..pen.length]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message;

    #[test]
    fn usages_are_lines_that_a_person_would_type() {
        let check = |name: &str, expected: &str| {
            let at = MESSAGES.iter().position(|each| each.name == name).unwrap();
            assert_eq!(USAGES[at], expected, "{name}");
        };
        check("status", "");
        check("fetch", "id=ID");
        check(
            "reset",
            "[sample_interval=512KiB | lg_sample=10..24] [allocator=NAME]",
        );
        check("gdump", "state=on|off [files=1..1000] [for=10m]");
        check("background_thread", "[state=on|off] [max=N]");
        check("recent", "[max=0..512]");
    }

    #[test]
    fn every_argument_is_written_whole() {
        for argument in MESSAGES.iter().flat_map(|each| each.arguments) {
            let text = argument.to_string();
            assert!(text.starts_with(argument.key), "{text}");
            assert!(text.len() < 128, "{text}");
        }
    }

    #[test]
    fn the_table_is_in_order() {
        for (at, each) in MESSAGES.iter().enumerate() {
            assert_eq!(
                message(each.name),
                Some(each),
                "{} is there twice",
                each.name
            );
            assert!(!each.help.ends_with('.'), "{}", each.name);
            let first = each.arguments.first();
            assert!(
                first.is_none_or(|argument| !argument.is_alternative),
                "{at}"
            );
            for argument in each.arguments {
                let default = argument.default.into_iter();
                let words = match argument.values {
                    ArgumentType::OneOf(words) => words,
                    _ => continue,
                };
                assert!(
                    default.clone().all(|word| words.contains(&word)),
                    "{argument}"
                );
            }
        }
    }
}
