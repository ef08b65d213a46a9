//! Usage lines of messages: their arguments, as a person would type them. They are computed at compile time, because
//! the plugin's descriptors are constants.

use std::fmt;

use crate::{ArgumentSpec, ArgumentType, MESSAGES, MessageSpec};

/// Usage line of each message, in the order of [`MESSAGES`]. A line looks like `[sample_interval=512KiB |
/// lg_sample=10..24] [allocator=NAME]`.
pub const USAGES: [&str; MESSAGES.len()] = {
    // The first pass only counts the bytes; the second one stores them.
    const LENGTH: usize = write_all_usages(UsageWriter::<0>::new()).length;
    const TEXT: [u8; LENGTH] = write_all_usages(UsageWriter::<LENGTH>::new()).bytes;
    let mut usages = [""; MESSAGES.len()];
    let mut remaining: &[u8] = &TEXT;
    let mut index = 0;
    while index < usages.len() {
        let (usage, tail) = remaining.split_at(
            UsageWriter::<0>::new()
                .write_arguments(&MESSAGES[index])
                .length,
        );
        usages[index] = match str::from_utf8(usage) {
            Ok(usage) => usage,
            Err(_) => panic!("usages are cut between messages"),
        };
        remaining = tail;
        index += 1;
    }
    usages
};

/// Writes the usage lines of all messages, without separators.
const fn write_all_usages<const N: usize>(mut writer: UsageWriter<N>) -> UsageWriter<N> {
    let mut index = 0;
    while index < MESSAGES.len() {
        writer = writer.write_arguments(&MESSAGES[index]);
        index += 1;
    }
    writer
}

/// Writer of usage lines at compile time. Stores the first `N` bytes, and counts all of them.
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

    /// Appends a text. Bytes beyond the capacity `N` are only counted, so that a first pass without capacity gives the
    /// capacity for the second one.
    const fn write_text(mut self, text: &str) -> Self {
        let mut index = 0;
        while index < text.len() {
            if self.length < N {
                self.bytes[self.length] = text.as_bytes()[index];
            }
            self.length += 1;
            index += 1;
        }
        self
    }

    /// Appends a number in decimal, digit by digit, because `format!` does not work at compile time.
    const fn write_number(self, number: u32) -> Self {
        const DIGITS: &str = "0123456789";
        let writer = if number >= 10 {
            self.write_number(number / 10)
        } else {
            self
        };
        let (_, digit) = DIGITS.split_at((number % 10) as usize);
        let (digit, _) = digit.split_at(1);
        writer.write_text(digit)
    }

    /// Appends the accepted values of an argument: its names, its range, or a placeholder or example that stands for
    /// them.
    const fn write_values(self, values: &ArgumentType) -> Self {
        match values {
            ArgumentType::OneOf(words) => {
                let mut writer = self.write_text(words[0]);
                let mut index = 1;
                while index < words.len() {
                    writer = writer.write_text("|").write_text(words[index]);
                    index += 1;
                }
                writer
            }
            ArgumentType::NamedOneOf(name, _) => self.write_text(name),
            ArgumentType::Examples(examples) => self.write_text(examples[0]),
            ArgumentType::Integer {
                min,
                max: Some(max),
                ..
            } => self.write_number(*min).write_text("..").write_number(*max),
            ArgumentType::Integer { max: None, .. } => self.write_text("N"),
        }
    }

    /// Appends an argument as `key=values`.
    const fn write_argument(self, argument: &ArgumentSpec) -> Self {
        self.write_text(argument.key)
            .write_text("=")
            .write_values(&argument.values)
    }

    /// Appends all arguments of a message. Optional ones are in brackets, and alternatives are separated by `|`.
    const fn write_arguments(self, message: &MessageSpec) -> Self {
        let mut writer = self;
        let mut index = 0;
        while index < message.arguments.len() {
            let argument = &message.arguments[index];
            let is_last = index + 1 == message.arguments.len()
                || !message.arguments[index + 1].is_alternative;
            writer = if argument.is_alternative {
                writer.write_text(" | ")
            } else {
                let blank = if index == 0 { "" } else { " " };
                let open = if argument.is_required { "" } else { "[" };
                writer.write_text(blank).write_text(open)
            };
            writer = writer.write_argument(argument);
            if is_last && !argument.is_required {
                writer = writer.write_text("]");
            }
            index += 1;
        }
        writer
    }
}

/// Formats the argument, such as `state=on|off`.
impl fmt::Display for ArgumentSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // 128 bytes are enough for every argument in the table of messages; a test checks this.
        let writer = UsageWriter::<128>::new().write_argument(self);
        f.write_str(&String::from_utf8_lossy(&writer.bytes[..writer.length]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::find_message;

    #[test]
    fn usage_lists_arguments() {
        let check = |name: &str, expected: &str| {
            let index = MESSAGES.iter().position(|each| each.name == name).unwrap();
            assert_eq!(USAGES[index], expected, "{name}");
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
    fn argument_display_is_complete() {
        for argument in MESSAGES.iter().flat_map(|each| each.arguments) {
            let text = argument.to_string();
            assert!(text.starts_with(argument.key), "{text}");
            assert!(text.len() < 128, "{text}");
        }
    }

    #[test]
    fn messages_are_unique_and_valid() {
        for (index, each) in MESSAGES.iter().enumerate() {
            assert_eq!(
                find_message(each.name),
                Some(each),
                "{} is there twice",
                each.name
            );
            assert!(!each.help.ends_with('.'), "{}", each.name);
            let first = each.arguments.first();
            assert!(
                first.is_none_or(|argument| !argument.is_alternative),
                "{index}"
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
