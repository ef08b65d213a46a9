//! Answers of memprof, and their verdicts.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;
use tempfile::NamedTempFile;
use xtask::dist::dist;

use crate::case::{Area, Case};

/// Limit of a script, for timeout(1).
const TIMEOUT: &str = "120";

/// Exit status and text of an answer.
#[derive(Debug)]
struct Answer {
    status: Option<i32>,
    text: String,
}

#[derive(Debug, PartialEq)]
pub(crate) enum Verdict {
    Right,
    /// Right as far as it goes, and it names what is missing.
    Noted,
    /// Reasons, one a line, and the answer.
    Wrong(String),
}

/// Sets the case up, asks memprof, kills what was set up, and judges the answer. A setup that fails counts as a wrong
/// answer.
pub(crate) fn judge(area: &Area, case: &Case) -> Result<Verdict> {
    let place = tempfile::tempdir()?;
    let setup = Script::start("-ec", &case.setup, area, place.path())?;
    let done = setup.wait_for_answer()?;
    if done.status != Some(0) {
        return Ok(Verdict::Wrong(format!("the setup failed\n{}", done.text)));
    }
    let question = Script::start("-c", &case.command, area, place.path())?;
    Ok(question.wait_for_answer()?.judge(case))
}

/// A running script; dropping it kills its process group.
struct Script {
    shell: Child,
    log: NamedTempFile,
}

impl Script {
    /// Starts `sh` with an option and a script in the directory `place`.
    fn start(option: &str, script: &str, area: &Area, place: &Path) -> Result<Self> {
        // A pipe would stay open as long as what the script left running.
        let log = NamedTempFile::new()?;
        let mut path = dist().join("bin").into_os_string();
        path.push(":");
        path.push(std::env::var_os("PATH").context("no PATH")?);
        // Both outputs share one file offset, so that neither overwrites the other.
        let output = log.reopen()?;
        let shell = Command::new("timeout")
            .args(["--kill-after=5", TIMEOUT, "sh", option, script])
            .current_dir(place)
            .env("PATH", path)
            .env("INPUTS", &area.inputs)
            .env("PLUGIN", dist().join("plugins/memory_profile.so"))
            .env("MEMPROF_SOCKET_DIR", place.join("run"))
            .env("XDG_STATE_HOME", place.join("state"))
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .process_group(0)
            .spawn()
            .context("timeout(1)")?;
        Ok(Self { shell, log })
    }

    /// Waits for the script's end. Leaves its process as a zombie, so that the ID of its group is not reused before the
    /// group is killed.
    fn wait_for_answer(&self) -> Result<Answer> {
        let shell = Id::Pid(Pid::from_raw(self.shell.id().cast_signed()));
        let end = waitid(shell, WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT)?;
        Ok(Answer {
            status: match end {
                WaitStatus::Exited(_, status) => Some(status),
                _ => None,
            },
            text: String::from_utf8_lossy(&fs::read(self.log.path())?).into_owned(),
        })
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        let group = Pid::from_raw(self.shell.id().cast_signed());
        // Fails if no process of the group is left.
        let _ = killpg(group, Signal::SIGKILL);
        let _ = self.shell.wait();
    }
}

impl Answer {
    /// Compares the exit status and the text with those that the case expects.
    fn judge(&self, case: &Case) -> Verdict {
        let mut reasons = Vec::new();
        if self.status != Some(case.status) {
            let status = match self.status {
                Some(status) => status.to_string(),
                None => "a signal".to_owned(),
            };
            reasons.push(format!("ended by {status}, not by {}", case.status));
        }
        for text in case.has.iter().chain(&case.notes) {
            if !self.text.contains(text) {
                reasons.push(format!("lacks {text:?}"));
            }
        }
        for text in case.lacks.iter().filter(|text| self.text.contains(*text)) {
            reasons.push(format!("has {text:?}"));
        }
        match (reasons.is_empty(), case.notes.is_empty()) {
            (true, true) => Verdict::Right,
            (true, false) => Verdict::Noted,
            (false, _) => Verdict::Wrong(format!("{}\n{}", reasons.join("\n"), self.text)),
        }
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
