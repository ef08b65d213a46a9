//! Verdicts as a report of `JUnit` in XML, with a test case for each limit. There is no standard; Jenkins' xUnit plugin has
//! a schema, junit-10.xsd, which allows what other readers take too.

use std::fmt::Write;
use std::path::Path;

use super::check_text::{format_check_lines, limit_name};
use super::repository_path::repository_path;
use super::verdict::{BudgetVerdict, LimitCheck};
use crate::output::printable;

/// Formats a report in XML about the limits of the budget file at `budget`. A limit that matches no function is a
/// skipped test.
pub(super) fn format_junit(verdict: &BudgetVerdict, budget: &Path) -> String {
    let budget = escape_xml(&repository_path(budget).display().to_string());
    let checks = &verdict.checks;
    let count = |is_counted: fn(&LimitCheck) -> bool| {
        checks.iter().filter(|check| is_counted(check)).count()
    };
    let failures = count(|check| check.is_broken);
    let skipped = count(is_skipped);
    let totals = format!(
        "tests=\"{}\" failures=\"{failures}\" errors=\"0\"",
        checks.len()
    );
    let mut text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"memprof test\" {totals}>\n  \
         <testsuite name=\"{budget}\" file=\"{budget}\" {totals} skipped=\"{skipped}\">\n"
    );
    for check in checks {
        // Writing to a string never fails.
        let _ = write!(
            text,
            "    <testcase name=\"{}\" classname=\"memprof.{budget}\"",
            escape_xml(&limit_name(check))
        );
        let lines = format_check_lines(check);
        let message = escape_xml(lines.lines().next().unwrap_or_default());
        text += &match check {
            check if check.is_broken => format!(
                ">\n      <failure type=\"over-budget\" message=\"{message}\">{}</failure>\n    </testcase>\n",
                escape_xml(&lines)
            ),
            check if is_skipped(check) => {
                format!(">\n      <skipped message=\"{message}\"/>\n    </testcase>\n")
            }
            _ => "/>\n".to_owned(),
        };
    }
    text + "  </testsuite>\n</testsuites>\n"
}

/// Returns whether a limit checked nothing: no sampled function has its name, and it is not broken.
fn is_skipped(check: &LimitCheck) -> bool {
    !check.is_broken && !check.is_matched
}

/// Escapes text for XML, also for attributes. Control characters, which XML 1.0 cannot have, become escapes as in JSON
/// (`\u001b`); U+FFFE and U+FFFF become U+FFFD.
fn escape_xml(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in printable(text).chars() {
        match c {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\n' => escaped += "&#10;",
            '\t' => escaped += "&#9;",
            '\u{fffe}' | '\u{ffff}' => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::super::check_text::tests::broken;
    use super::*;

    #[test]
    fn hostile_names_stay_text() {
        assert_eq!(
            escape_xml("a<b> & \"c\"\n\u{1b}[2J\u{0}\u{ffff}値"),
            "a&lt;b&gt; &amp; &quot;c&quot;&#10;\\u001b[2J\\u0000\u{fffd}値"
        );
    }

    #[test]
    fn each_limit_is_a_test_case() {
        assert_eq!(
            format_junit(&broken(), Path::new("/absent/a&b.toml")),
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
             <testsuites name=\"memprof test\" tests=\"3\" failures=\"1\" errors=\"0\">\n  \
               <testsuite name=\"/absent/a&amp;b.toml\" file=\"/absent/a&amp;b.toml\" tests=\"3\" failures=\"1\" \
             errors=\"0\" skipped=\"1\">\n    \
                 <testcase name=\"peak\" classname=\"memprof./absent/a&amp;b.toml\">\n      \
                   <failure type=\"over-budget\" message=\"BROKEN peak: 106.00MiB of 100.00MiB (+6.0%)\">BROKEN peak: \
             106.00MiB of 100.00MiB (+6.0%)&#10;       +6.00MiB ± 0B in parse: a, 5%, which has 66.00MiB&#10;           \
             parse: a, 5%&#10;           main</failure>\n    \
                 </testcase>\n    \
                 <testcase name=\"allocated\" classname=\"memprof./absent/a&amp;b.toml\"/>\n    \
                 <testcase name=\"peak by gone\" classname=\"memprof./absent/a&amp;b.toml\">\n      \
                   <skipped message=\"?      peak by gone: no sampled function has this name, so the limit of 1B checks \
             nothing\"/>\n    \
                 </testcase>\n  \
               </testsuite>\n</testsuites>\n"
        );
    }
}
