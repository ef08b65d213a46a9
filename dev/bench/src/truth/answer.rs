//! Answers of memprof, and their verdicts.

use std::time::Duration;

use anyhow::Result;
use bench::script::{Script, ScriptEnd};

use crate::case::{Area, Case};

/// Limit of a script.
const TIMEOUT: Duration = Duration::from_secs(120);

#[derive(Debug, PartialEq)]
pub(crate) enum Verdict {
    Right,
    /// Right as far as it goes, and it names what is missing.
    Noted,
    /// Reasons, one a line, and the answer.
    Wrong(String),
}

/// Runs the case's setup and then its command in a new directory, judges the command's output, and kills the processes
/// that both left running. A setup that fails counts as a wrong answer.
pub(crate) fn judge(area: &Area, case: &Case) -> Result<Verdict> {
    let directory = tempfile::tempdir()?;
    let start = |option, script| {
        let inputs = [("INPUTS", area.inputs.as_os_str())];
        Script::start(option, script, directory.path(), TIMEOUT, &inputs)
    };
    let setup = start("-ec", &case.setup)?;
    let done = setup.wait_for_end()?;
    if done.status != Some(0) {
        return Ok(Verdict::Wrong(format!("the setup failed\n{}", done.text)));
    }
    let question = start("-c", &case.command)?;
    Ok(judge_end(&question.wait_for_end()?, case))
}

/// Compares the exit status and the text with those that the case expects.
fn judge_end(end: &ScriptEnd, case: &Case) -> Verdict {
    let mut reasons = Vec::new();
    if end.status != Some(case.status) {
        let status = match end.status {
            Some(status) => status.to_string(),
            None => "a signal".to_owned(),
        };
        reasons.push(format!("ended by {status}, not by {}", case.status));
    }
    for text in case.has.iter().chain(&case.notes) {
        if !end.text.contains(text) {
            reasons.push(format!("lacks {text:?}"));
        }
    }
    for text in case.lacks.iter().filter(|text| end.text.contains(*text)) {
        reasons.push(format!("has {text:?}"));
    }
    match (reasons.is_empty(), case.notes.is_empty()) {
        (true, true) => Verdict::Right,
        (true, false) => Verdict::Noted,
        (false, _) => Verdict::Wrong(format!("{}\n{}", reasons.join("\n"), end.text)),
    }
}

#[cfg(test)]
mod tests {
    use super::{Verdict, judge};
    use crate::case::{Area, Case};

    fn verdict(case: &Case) -> Verdict {
        let area = Area {
            cases: Vec::new(),
            inputs: "/usr/share".into(),
        };
        judge(&area, case).unwrap()
    }

    fn texts(texts: &[&str]) -> Vec<String> {
        texts.iter().copied().map(str::to_owned).collect()
    }

    #[test]
    fn answer_is_judged_by_its_status_and_its_texts() {
        let check =
            |command: &str, status, has: &[&str], lacks: &[&str], notes: &[&str], reason| {
                let case = Case {
                    command: command.to_owned(),
                    status,
                    has: texts(has),
                    lacks: texts(lacks),
                    notes: texts(notes),
                    ..Case::default()
                };
                let expected = match (reason, notes) {
                    ("", []) => Verdict::Right,
                    ("", _) => Verdict::Noted,
                    _ => Verdict::Wrong(format!("{reason}\n5 MiB, 1 lost\n")),
                };
                assert_eq!(verdict(&case), expected, "{command}");
            };
        let command = "echo 5 MiB, 1 lost >&2";
        check(command, 0, &["5 MiB"], &["6"], &[], "");
        check(command, 0, &["5 MiB"], &[], &["1 lost"], "");
        check(command, 0, &["6 MiB"], &[], &[], "lacks \"6 MiB\"");
        check(command, 0, &["5"], &[], &["2 lost"], "lacks \"2 lost\"");
        check(command, 0, &["5"], &["MiB"], &[], "has \"MiB\"");
        check(command, 4, &["5"], &[], &[], "ended by 0, not by 4");
        let killed = "echo 5 MiB, 1 lost; kill -9 $$";
        check(
            killed,
            137,
            &["5"],
            &[],
            &[],
            "ended by a signal, not by 137",
        );
    }

    #[test]
    fn setup_lives_until_the_question_is_answered() {
        let case = Case {
            setup: "sleep 1000 & echo $! > pid".to_owned(),
            command: "kill -0 $(cat pid) && echo lives $(cat pid)".to_owned(),
            has: texts(&["lives"]),
            ..Case::default()
        };
        assert_eq!(verdict(&case), Verdict::Right);
    }

    #[test]
    fn setup_that_fails_is_no_right_answer() {
        let case = Case {
            setup: "echo no compiler; false".to_owned(),
            command: "echo fine".to_owned(),
            has: texts(&["fine"]),
            ..Case::default()
        };
        let expected = "the setup failed\nno compiler\n".to_owned();
        assert_eq!(verdict(&case), Verdict::Wrong(expected));
    }
}
