//! Suite `zoo`: programs of Debian, and odd.c. memprof records, attaches to, samples, searches and detaches from each
//! one while it works. Its replies, exit and resources must be those without memprof. A refusal with a reason is no
//! failure.

mod lines;
mod odd;
mod packaged;
mod round;
mod subject;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context, Result, bail, ensure};

use super::SuiteLength;
use super::held_resources::HeldResources;
use super::servers::Tools;
pub(crate) use odd::LINKED;
use round::run_round;
use subject::{Running, Subject, install_subjects};

/// Rounds of each program in the long suite, unless the variable says otherwise.
const ROUNDS: usize = 20;
const ROUNDS_VARIABLE: &str = "ZOO_ROUNDS";
/// One program in this many may refuse something; more refusals mean that memprof is broken.
const PROGRAMS_PER_REFUSAL: usize = 3;
/// Variable that restricts the suite to programs with this text in their names.
const ONLY_VARIABLE: &str = "ZOO_ONLY";

/// Runs the suite `zoo` on each program, prints a line for each, and returns the figures of all in one line. Fails if
/// one of them failed, or if too many refused something. [`ROUNDS_VARIABLE`] changes the number of rounds, and
/// [`ONLY_VARIABLE`] leaves only the programs whose names contain it.
pub(super) fn run_suite(length: SuiteLength) -> Result<String> {
    let rounds = match std::env::var(ROUNDS_VARIABLE) {
        Ok(text) => text.parse().context(ROUNDS_VARIABLE)?,
        Err(_) => length.pick(1, ROUNDS),
    };
    let only = std::env::var(ONLY_VARIABLE).unwrap_or_default();
    let tools = Tools::install()?;
    let mut tally = Tally::default();
    for subject in install_subjects(length)? {
        let name = subject.name();
        if !name.contains(&only) {
            continue;
        }
        tally.programs += 1;
        match run_rounds(&tools, &subject, rounds) {
            Ok(visit) => {
                println!(
                    "  {name}: {} answers meanwhile{}",
                    visit.answers,
                    refusal_lines(&visit.refusals)
                );
                tally.add(visit);
            }
            Err(error) => {
                println!("  {name}: {error:#}");
                tally.failed.push(name);
            }
        }
    }
    tally.summary_line(rounds)
}

/// Result of all rounds with a program.
#[derive(Default)]
struct Visit {
    answers: usize,
    /// Number of times that each refusal occurred.
    refusals: BTreeMap<String, usize>,
}

/// Runs all commands of memprof `rounds` times on a program while it works. Returns the number of its replies
/// meanwhile, and the commands' refusals. Fails if its replies, its exit or its resources change.
fn run_rounds(tools: &Tools, subject: &Subject, rounds: usize) -> Result<Visit> {
    let (expected, ending) = run_without_memprof(subject).context("without memprof")?;
    let mut running = subject.start()?;
    let pid = running.pid()?;
    running.warm_up()?;
    let held = HeldResources::read_settled(pid, subject.is_odd())?;
    let dumps = tempfile::tempdir()?;
    tools.chown_to_process_user(dumps.path(), pid)?;
    let (mut visit, may_fail) = (Visit::default(), subject.may_fail());
    for at in 0..rounds {
        let (refusals, answers) = run_under_load(&mut running, &expected, || {
            run_round(tools, pid, dumps.path(), may_fail)
        })
        .with_context(|| format!("round {at}"))?;
        visit.answers += answers;
        for refusal in refusals {
            *visit
                .refusals
                .entry(refusal.replace(&pid.to_string(), "PID"))
                .or_default() += 1;
        }
        let answer = running
            .run_work()
            .with_context(|| format!("after round {at}"))?;
        ensure!(answer == expected, "CHANGED: {answer:?}, not {expected:?}");
        held.wait_until_restored(pid, subject.is_odd())
            .with_context(|| format!("after round {at}"))?;
    }
    let ended = running.end()?;
    ensure!(
        ended == ending,
        "CHANGED: it ended with {ended:?}, not {ending:?}"
    );
    Ok(visit)
}

/// Runs a program without memprof. Returns its reply and its exit. Fails if it does not reply in the same way twice.
fn run_without_memprof(subject: &Subject) -> Result<(String, String)> {
    let mut running = subject.start()?;
    let answer = running.warm_up()?;
    let again = running.run_work()?;
    ensure!(answer == again, "it answers {answer:?}, then {again:?}");
    Ok((answer, running.end()?))
}

/// Calls `run_commands` while another thread lets the program work. Returns the result of `run_commands`, and the
/// number of the program's replies meanwhile. Fails if `run_commands` fails, or if a reply is not `expected`.
fn run_under_load<T>(
    running: &mut Running,
    expected: &str,
    run_commands: impl FnOnce() -> Result<T>,
) -> Result<(T, usize)> {
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let working = scope.spawn(|| {
            let mut answers = 0;
            while !is_done.load(Ordering::Relaxed) {
                let answer = running.run_work()?;
                ensure!(answer == expected, "CHANGED: {answer:?}, not {expected:?}");
                answers += 1;
            }
            anyhow::Ok(answers)
        });
        let result = run_commands();
        is_done.store(true, Ordering::Relaxed);
        let answers = working.join().expect("it does not panic");
        // The program's error comes first, because memprof fails on a dead program.
        match (answers, result) {
            (Ok(answers), Ok(result)) => Ok((result, answers)),
            (Err(error), Ok(_)) | (Ok(_), Err(error)) => Err(error),
            (Err(error), Err(cause)) => bail!("{error:#}; {cause:#}"),
        }
    })
}

/// Returns a line for each refusal with the number of its occurrences, as text that begins with a newline; empty if
/// there are none.
fn refusal_lines(refusals: &BTreeMap<String, usize>) -> String {
    let lines = refusals
        .iter()
        .map(|(refusal, times)| format!("\n    {times} x {refusal}"));
    lines.collect()
}

#[derive(Default)]
struct Tally {
    programs: usize,
    answers: usize,
    refused: usize,
    failed: Vec<String>,
}

impl Tally {
    /// Adds the replies of one program, and counts the program if memprof refused something on it.
    fn add(&mut self, visit: Visit) {
        self.answers += visit.answers;
        self.refused += usize::from(!visit.refusals.is_empty());
    }

    /// Returns the figures of all programs in one line. Fails if one of them failed, or if memprof refused something on
    /// more than one in [`PROGRAMS_PER_REFUSAL`].
    fn summary_line(self, rounds: usize) -> Result<String> {
        let Self {
            programs,
            answers,
            refused,
            failed,
        } = self;
        if !failed.is_empty() {
            bail!("{} of {programs}: {}", failed.len(), failed.join(", "));
        }
        ensure!(
            programs > 0,
            "no program has the text of {ONLY_VARIABLE} in its name"
        );
        ensure!(
            refused * PROGRAMS_PER_REFUSAL <= programs || programs < PROGRAMS_PER_REFUSAL,
            "{refused} of {programs} refused something"
        );
        Ok(format!(
            "{programs} programs, {rounds} times each, with {answers} answers meanwhile: 0 deaths, 0 hangs, 0 changed, \
             nothing left; {refused} refused something by name"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::Tally;

    #[test]
    fn suite_without_a_program_fails() {
        let summary = |programs| {
            let tally = Tally {
                programs,
                ..Tally::default()
            };
            tally.summary_line(1)
        };
        assert!(summary(0).is_err());
        assert!(summary(1).is_ok());
    }
}
