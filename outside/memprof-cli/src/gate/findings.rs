//! Findings that CI systems show in the difference of the budget file: broken limits, and limits that match nothing.

use std::path::{Path, PathBuf};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use serde_json::{Value, json};

use super::budget_file::BudgetFile;
use super::check_text::{format_check_lines, limit_name};
use super::repository_path::repository_path;
use super::verdict::{BudgetVerdict, LimitCheck};

/// Characters of a path that a URI cannot have (RFC 3986, 3.3, without colons: a relative one would have a scheme).
const URI_ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'/')
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// Findings about a budget file.
#[derive(Debug)]
pub(super) struct Findings {
    /// The file, from the root of its repository.
    path: PathBuf,
    findings: Vec<Finding>,
}

/// A limit that is broken, or that matches nothing.
#[derive(Debug)]
struct Finding {
    is_broken: bool,
    limit: String,
    line: usize,
    text: String,
}

impl Findings {
    /// Collects the limits that are broken or match no function. `file` is the budget file at `path`, which has the
    /// lines of the limits.
    pub(super) fn new(verdict: &BudgetVerdict, path: &Path, file: &BudgetFile) -> Self {
        let found = verdict
            .checks
            .iter()
            .filter(|check| check.is_broken || !check.is_matched);
        let finding = |check: &LimitCheck| Finding {
            is_broken: check.is_broken,
            limit: limit_name(check),
            line: file.limit_line(check.what, check.function.as_deref()),
            text: format_check_lines(check),
        };
        Self {
            path: repository_path(path),
            findings: found.map(finding).collect(),
        }
    }

    /// Formats the findings as commands in the output of a workflow, which GitHub shows as errors and warnings
    /// (docs.github.com, "Workflow commands for GitHub Actions").
    pub(super) fn format_github(&self) -> String {
        let path = escape_property(&self.path.display().to_string());
        let commands = self.findings.iter().map(|finding| {
            let (command, title) = match finding.is_broken {
                true => ("error", "over budget"),
                false => ("warning", "matches nothing"),
            };
            format!(
                "::{command} file={path},line={},title={}::{}\n",
                finding.line,
                escape_property(&format!("memprof: {} {title}", finding.limit)),
                escape_data(&finding.text)
            )
        });
        commands.collect()
    }

    /// Formats the findings as a report of GitLab's Code Quality (docs.gitlab.com, "Code Quality report format").
    pub(super) fn format_gitlab(&self) -> Value {
        let path = self.path.display().to_string();
        let findings = self.findings.iter().map(|finding| {
            json!({
                "description": finding.text,
                "check_name": "memory-budget",
                // Stays equal while the limit is broken, so that it is reported once.
                "fingerprint": format!("memprof: {path}: {}", finding.limit),
                "severity": if finding.is_broken { "major" } else { "info" },
                "location": { "path": path, "lines": { "begin": finding.line } },
            })
        });
        findings.collect()
    }

    /// Formats the findings as a log of SARIF 2.1.0 (OASIS), which code scanning reads.
    pub(super) fn format_sarif(&self) -> Value {
        let rules = [
            (
                "over-budget",
                "The command takes more memory than its budget allows.",
            ),
            (
                "unmatched-limit",
                "No sampled function has the name that is limited.",
            ),
        ];
        let path = percent_encode(self.path.as_os_str().as_encoded_bytes(), URI_ENCODED);
        let artifact = match self.path.is_absolute() {
            true => json!({ "uri": format!("file://{path}") }),
            false => json!({ "uri": path.to_string(), "uriBaseId": "%SRCROOT%" }),
        };
        let results = self.findings.iter().map(|finding| {
            let rule = usize::from(!finding.is_broken);
            json!({
                "ruleId": rules[rule].0,
                "ruleIndex": rule,
                "level": if finding.is_broken { "error" } else { "warning" },
                "message": { "text": finding.text },
                "locations": [{
                    "physicalLocation": {
                        "artifactLocation": artifact,
                        "region": { "startLine": finding.line },
                    },
                }],
                "partialFingerprints": { "memoryLimit/v1": finding.limit },
            })
        });
        let rules =
            rules.map(|(id, text)| json!({ "id": id, "shortDescription": { "text": text } }));
        json!({
            "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
            "version": "2.1.0",
            "runs": [{
                "tool": {
                    "driver": {
                        "name": "memprof",
                        "version": env!("CARGO_PKG_VERSION"),
                        "rules": rules,
                    },
                },
                "results": results.collect::<Vec<_>>(),
            }],
        })
    }
}

/// Escapes the text of a workflow command of GitHub: `%`, which begins an escape, and line ends.
fn escape_data(text: &str) -> String {
    text.replace('%', "%25")
        .replace('\r', "%0D")
        .replace('\n', "%0A")
}

/// Escapes the value of a property of a workflow command of GitHub: also a colon or a comma would end it.
fn escape_property(text: &str) -> String {
    escape_data(text).replace(':', "%3A").replace(',', "%2C")
}

#[cfg(test)]
mod tests {
    use super::super::check_text::tests::broken;
    use super::*;

    fn findings(path: &str) -> Findings {
        let file = BudgetFile::template().unwrap();
        Findings::new(&broken(), Path::new(path), &file)
    }

    #[test]
    fn annotations_are_lines_with_escaped_properties() {
        assert_eq!(
            findings("/a,b:c").format_github(),
            "::error file=/a%2Cb%3Ac,line=3,title=memprof%3A peak over budget::BROKEN peak: 106.00MiB of 100.00MiB \
             (+6.0%25)%0A       +6.00MiB ± 0B in parse: a, 5%25, which has 66.00MiB%0A           parse: a, \
             5%25%0A           main\n\
             ::warning file=/a%2Cb%3Ac,line=1,title=memprof%3A peak by gone matches nothing::\
             ?      peak by gone: no sampled function has this name, so the limit of 1B checks nothing\n"
        );
    }

    #[test]
    fn code_quality_report_has_the_fields_that_gitlab_reads() {
        let report = findings("/a").format_gitlab();
        let field = |pointer: &str| report.pointer(pointer).unwrap().clone();
        assert_eq!(
            field("/0/location"),
            json!({ "path": "/a", "lines": { "begin": 3 } })
        );
        assert_eq!(
            (field("/0/severity"), field("/1/severity")),
            ("major".into(), "info".into())
        );
        assert_eq!(field("/0/fingerprint"), "memprof: /a: peak");
        assert!(
            field("/0/description")
                .as_str()
                .unwrap()
                .contains("106.00MiB of")
        );
    }

    #[test]
    fn sarif_log_names_the_limit_s_line_in_a_valid_uri() {
        let check = |path: &str, expected: Value| {
            let log = findings(path).format_sarif();
            let location = log
                .pointer("/runs/0/results/0/locations/0/physicalLocation")
                .unwrap();
            assert_eq!(location["artifactLocation"], expected);
            assert_eq!(location["region"]["startLine"], 3);
            for (pointer, expected) in [
                ("/version", "2.1.0"),
                ("/runs/0/tool/driver/name", "memprof"),
                ("/runs/0/tool/driver/rules/1/id", "unmatched-limit"),
                ("/runs/0/results/0/level", "error"),
                ("/runs/0/results/0/ruleId", "over-budget"),
                ("/runs/0/results/1/ruleId", "unmatched-limit"),
                ("/runs/0/results/1/level", "warning"),
            ] {
                assert_eq!(log.pointer(pointer).unwrap(), expected, "{pointer}");
            }
        };
        check("/a b/ü:%", json!({ "uri": "file:///a%20b/%C3%BC%3A%25" }));
        check(
            "absent/b.toml",
            json!({ "uri": "absent/b.toml", "uriBaseId": "%SRCROOT%" }),
        );
        check(
            "absent/c:d",
            json!({ "uri": "absent/c%3Ad", "uriBaseId": "%SRCROOT%" }),
        );
    }
}
