//! Log lines for a foreign program's log.

use std::ffi::CString;

use log::{Level, LevelFilter, Log, Metadata, Record};

pub(super) use crate::log_line::one_line;

/// A foreign program's log. Its sink must not use the `log` crate, whose logger in a plugin's library calls the sink.
#[derive(Debug)]
pub(super) struct ProgramLog {
    /// Least severe level that is written.
    pub(super) level: LevelFilter,
    /// Writes one line, which has no newline.
    pub(super) sink: fn(Level, &str),
}

impl ProgramLog {
    /// Writes a text as one line, if its level is severe enough.
    pub(super) fn write_line(&self, level: Level, text: &str) {
        if level <= self.level {
            (self.sink)(level, &one_line(text));
        }
    }
}

impl Log for ProgramLog {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= self.level
    }

    fn log(&self, record: &Record<'_>) {
        self.write_line(record.level(), &log_record_text(record));
    }

    fn flush(&self) {}
}

/// Returns the text of a record. It begins with the id of the plugin that logs, except for memprof's own lines: the
/// sink already begins each line with `memprof: `.
fn log_record_text(record: &Record<'_>) -> String {
    let (target, text) = (record.target(), record.args());
    match target.starts_with("memprof") || target.starts_with("memory_profile") {
        true => text.to_string(),
        false => format!("{target}: {text}"),
    }
}

/// Returns the first `limit` bytes of a text as a C string, with NUL bytes replaced by blanks. A longer text is cut
/// between two characters, and ` [...]` is appended, beyond the limit.
pub(super) fn to_truncated_c_string(text: &str, limit: usize) -> CString {
    let mut text = text.replace('\0', " ");
    if text.len() > limit {
        text.truncate(text.floor_char_boundary(limit));
        text.push_str(" [...]");
    }
    CString::new(text).expect("NULs were replaced")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_names_the_plugin_unless_it_is_the_profiler() {
        let check = |target: &str, expected: &str| {
            let mut record = Record::builder();
            record.target(target);
            assert_eq!(
                log_record_text(&record.args(format_args!("sampling")).build()),
                expected
            );
        };
        check("memory_profile", "sampling");
        check("memprof_host::router", "sampling");
        check("hello", "hello: sampling");
    }

    #[test]
    fn c_text_is_truncated_between_characters() {
        let check = |text: &str, expected: &str| {
            assert_eq!(to_truncated_c_string(text, 4).to_str().unwrap(), expected);
        };
        check("abc", "abc");
        check("abcd", "abcd");
        check("abcde", "abcd [...]");
        check("abc\u{e9}", "abc [...]");
        check("a\0b", "a b");
    }
}
