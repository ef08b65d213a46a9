//! Errors that last: a line when they begin, lines at doubling intervals while they recur, and one when they are over.

use std::collections::HashMap;
use std::time::Duration;

use crate::time::Uptime;

/// Time until the second line about an error; each further one takes twice as long.
const FIRST_INTERVAL: Duration = Duration::from_secs(60);
/// Longest time between two lines about an error.
const LAST_INTERVAL: Duration = Duration::from_secs(24 * 3600);
/// Most kinds of errors of a subject; further ones count as one.
const MAX_ERRORS: usize = 16;

/// Current errors by subject.
#[derive(Debug, Default)]
pub(crate) struct ErrorLog {
    subjects: HashMap<String, HashMap<String, Recurrence>>,
}

/// Lines about one error.
#[derive(Debug)]
struct Recurrence {
    /// Occurrences since the last line.
    count: u64,
    /// Time from the last line to the next one.
    interval: Duration,
    next_line: Uptime,
}

impl ErrorLog {
    /// Counts an error of a subject, such as `the store`. Returns the text of a line to print about it: for the first
    /// error of a kind, and then at doubling intervals. `None` if no line is due. Errors beyond [`MAX_ERRORS`] kinds of
    /// a subject count as one kind.
    pub(crate) fn record_error(
        &mut self,
        subject: &str,
        error: &str,
        now: Uptime,
    ) -> Option<String> {
        let errors = self.subjects.entry(subject.to_owned()).or_default();
        let kind = match error_kind(error) {
            kind if errors.len() < MAX_ERRORS || errors.contains_key(&kind) => kind,
            // Further kinds count as one, the empty text.
            _ => String::new(),
        };
        let Some(known) = errors.get_mut(&kind) else {
            let first = Recurrence {
                count: 0,
                interval: FIRST_INTERVAL,
                next_line: now.plus(FIRST_INTERVAL),
            };
            errors.insert(kind, first);
            return Some(error.to_owned());
        };
        known.count += 1;
        if now < known.next_line {
            return None;
        }
        let count = std::mem::take(&mut known.count);
        known.interval = LAST_INTERVAL.min(known.interval * 2);
        known.next_line = now.plus(known.interval);
        Some(match count {
            1 => error.to_owned(),
            count => format!("{error} ({count} times since the last line)"),
        })
    }

    /// Forgets the errors of a subject. Returns whether it had any.
    pub(crate) fn clear(&mut self, subject: &str) -> bool {
        self.subjects.remove(subject).is_some()
    }

    /// Forgets the errors of the subjects for which `is_kept` returns false.
    pub(crate) fn retain(&mut self, mut is_kept: impl FnMut(&str) -> bool) {
        self.subjects.retain(|subject, _| is_kept(subject));
    }
}

/// Returns the kind of an error: the words of its text, without those that contain a digit. Times, and the ids that S3
/// gives each request, thus do not make a recurring error a new kind.
fn error_kind(error: &str) -> String {
    let words = error.split(|c: char| !c.is_alphanumeric());
    let plain = words.filter(|word| !word.contains(|c: char| c.is_ascii_digit()));
    plain
        .filter(|word| !word.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the seconds at which a line is due, for an error that recurs each `step` seconds for `length` seconds.
    /// `error` returns its text at a second.
    fn lines(
        log: &mut ErrorLog,
        error: impl Fn(u64) -> String,
        step: u64,
        length: u64,
    ) -> Vec<u64> {
        let mut at = Vec::new();
        for second in (0..length).step_by(usize::try_from(step).unwrap()) {
            let now = Uptime(0).plus(Duration::from_secs(second));
            if log.record_error("the store", &error(second), now).is_some() {
                at.push(second);
            }
        }
        at
    }

    #[test]
    fn lasting_error_has_lines_at_doubling_intervals() {
        let check = |error: fn(u64) -> String, step: u64, expected: &[u64]| {
            let found = lines(&mut ErrorLog::default(), error, step, 2000);
            assert_eq!(found, expected);
        };
        check(|_| "refused".to_owned(), 1, &[0, 60, 180, 420, 900, 1860]);
        check(|_| "refused".to_owned(), 10, &[0, 60, 180, 420, 900, 1860]);
        check(
            |second| format!("<RequestId>{second}A</RequestId> after {second}s"),
            10,
            &[0, 60, 180, 420, 900, 1860],
        );
        // Two that alternate are two.
        let alternate = |second: u64| ["refused", "timed out"][second as usize % 2].to_owned();
        check(
            alternate,
            1,
            &[0, 1, 60, 61, 180, 181, 420, 421, 900, 901, 1860, 1861],
        );
        // Endless different ones are bounded.
        let words = |second: u64| "x".repeat(1 + second as usize);
        assert!(lines(&mut ErrorLog::default(), words, 1, 2000).len() < 200);
    }

    #[test]
    fn line_counts_what_had_none() {
        let mut log = ErrorLog::default();
        let mut add = |subject: &str, seconds: u64| {
            log.record_error(
                subject,
                "refused",
                Uptime(0).plus(Duration::from_secs(seconds)),
            )
        };
        assert_eq!(add("NATS", 0).unwrap(), "refused");
        assert_eq!(add("the store", 0).unwrap(), "refused");
        assert_eq!([add("NATS", 1), add("NATS", 59)], [None, None]);
        assert_eq!(
            add("NATS", 70).unwrap(),
            "refused (3 times since the last line)"
        );
        assert_eq!(add("NATS", 200).unwrap(), "refused");
        assert!(log.clear("NATS") && !log.clear("NATS"));
        log.retain(|subject| subject == "NATS");
        assert!(!log.clear("the store"));
    }
}
