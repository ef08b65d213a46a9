//! `cargo xtask test` and `cargo xtask ci`.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::resume_unwind;
use std::process::Command;
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use xtask::dist::{self, Profile};
use xtask::packages;
use xtask::run::{cargo_command, output, project_root, run};

use crate::test_run::{self, TestBinary};
use crate::{demo, features, fuzz, lint};

/// Builds everything and runs every test. Fails if a test changed the source tree.
pub(crate) fn build_and_test() -> Result<()> {
    packages::ensure_installed(packages::TEST)?;
    dist::build_all(Profile::Dev)?;
    run_tests_and_check_tree(&test_run::build_test_binaries()?)
}

/// Runs every test. Fails if a test fails, or changed the source tree.
fn run_tests_and_check_tree(binaries: &[TestBinary]) -> Result<()> {
    let before = changed_files()?;
    test_run::run_tests(binaries)?;
    let after = changed_files()?;
    let changed = differences(&before, &after);
    ensure!(
        changed.is_empty(),
        "the tests changed the source tree:\n{}",
        changed.join("\n")
    );
    Ok(())
}

/// Files that git reports as changed or new: each line of git with a hash of the file's content, which is `None` for a
/// file that is gone. The line of a file that was changed before does not tell whether it was changed again.
type ChangedFiles = BTreeMap<String, Option<u64>>;

/// Returns the changed and new files of the source tree; none in a tree without git.
fn changed_files() -> Result<ChangedFiles> {
    if !project_root().join(".git").exists() {
        return Ok(ChangedFiles::new());
    }
    let mut status = Command::new("git");
    status
        // In a container, the checkout may belong to another user.
        .args(["-c", "safe.directory=*", "status", "--porcelain", "-z"])
        // One line for each file, also of a new folder and of a renamed file.
        .args(["--untracked-files=all", "--no-renames"])
        .current_dir(project_root());
    let lines = output(&mut status)?;
    let lines = lines.split_terminator('\0');
    let hashed = lines.map(|line| {
        // The two letters of the state and a blank come before the path.
        let path = line.get(3..).context("git status without a path")?;
        Ok((line.to_owned(), content_hash(path)))
    });
    hashed.collect()
}

/// Hashes the content of a file in the source tree. `None` if there is no such file.
fn content_hash(path: &str) -> Option<u64> {
    let mut hasher = DefaultHasher::new();
    fs::read(project_root().join(path)).ok()?.hash(&mut hasher);
    Some(hasher.finish())
}

/// Returns the lines of the files that differ: new, gone, or with another content.
fn differences<'a>(before: &'a ChangedFiles, after: &'a ChangedFiles) -> Vec<&'a str> {
    let other = |known: &'a ChangedFiles, all: &'a ChangedFiles| {
        let other = all
            .iter()
            .filter(|(line, hash)| known.get(*line) != Some(hash));
        other.map(|(line, _)| line.as_str())
    };
    let mut lines: Vec<_> = other(before, after).chain(other(after, before)).collect();
    lines.sort_unstable();
    lines.dedup();
    lines
}

/// Runs all checks of a change. Steps that wait, for Debian's packages or for the hosts of torture, run beside those
/// that need the processor. Checks that only compile get the processor time that the tests leave. A suite of torture
/// that failed beside the tests runs once more at the end.
pub(crate) fn run_ci() -> Result<()> {
    let begun = Instant::now();
    let mut steps = Steps::default();
    steps.run_step("fmt", || {
        run(&mut cargo_command(&["fmt", "--all", "--check"]))
    })?;
    steps.run_step("lint", lint::check_workspace)?;
    let compilers = || packages::ensure_installed(packages::BUILD);
    steps.run_step("compilers", compilers)?;
    let binaries = thread::scope(|scope| {
        let packages = scope.spawn(|| packages::ensure_installed(packages::TEST));
        let binaries = steps.run_step("build", build_everything)?;
        steps.run_step("packages", || join_thread(packages))?;
        anyhow::Ok(binaries)
    })?;
    thread::scope(|scope| {
        let checks = scope.spawn(run_compile_checks);
        // The two steps after torture get the processor time that the tests leave.
        let beside = scope.spawn(|| -> Result<_> {
            let mut steps = Steps::default();
            let failed = steps.run_step("torture, beside the tests", run_torture_suites)?;
            let truth = || run(&mut crate::built_command("truth", &["--short"]));
            steps.run_step("truth, beside the tests", truth)?;
            steps.run_step("fuzz, beside the tests", fuzz::replay_seeds)?;
            Ok((failed, steps))
        });
        steps.run_step("test", || run_tests_and_check_tree(&binaries))?;
        steps.run_step("demo", demo::run_demo)?;
        let (beside, checks) = (join_thread(beside), join_thread(checks));
        steps.0.extend(checks?.0);
        let (failed, times) = beside?;
        steps.0.extend(times.0);
        steps.run_step("torture again", || retry_torture(&failed))
    })?;
    print!("{steps}");
    println!("{}", step_line("all", begun.elapsed()));
    Ok(())
}

/// Waits for a thread, and returns its result. A panic in it goes on in this thread.
fn join_thread<T>(thread: ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread.join().unwrap_or_else(|panic| resume_unwind(panic))
}

/// Builds everything that the later steps run, and returns the test binaries. Meanwhile packs the crates of the SDK,
/// and builds the packed ones in another target directory. The two builds run at the same time because each has phases
/// with a single crate to compile, which keeps only one processor busy.
fn build_everything() -> Result<Vec<TestBinary>> {
    dist::build_all(Profile::Dev)?;
    dist::build_unwind_probe(Profile::Dev)?;
    thread::scope(|scope| {
        let crates = scope.spawn(|| dist::pack_sdk(true));
        let programs = ["torture", "truth"].map(str::to_owned);
        dist::build_programs(programs.into_iter().chain(fuzz::target_names()?))?;
        let binaries = test_run::build_test_binaries()?;
        join_thread(crates)?;
        Ok(binaries)
    })
}

/// Runs the checks that only compile, at idle priority, and returns their times. They lock `target/debug`, so that
/// another build there would wait for them. The only one meanwhile is that of the documentation's tests, which come
/// last of the tests.
fn run_compile_checks() -> Result<Steps> {
    // The priority only keeps tests from being delayed, and some sandboxes refuse it.
    if let Err(error) = set_idle_priority() {
        eprintln!("the checks run at the priority of the tests: {error:#}");
    }
    let mut steps = Steps::default();
    steps.run_step("clippy, beside the tests", run_clippy)?;
    steps.run_step("features, beside the tests", features::check_features)?;
    steps.run_step("docs, beside the tests", build_docs)?;
    Ok(steps)
}

/// Makes the scheduler run this thread, and the processes that it starts, only where others leave a processor idle
/// (`SCHED_IDLE` of sched(7)), so that they do not delay tests with a time limit.
fn set_idle_priority() -> Result<()> {
    let task = fs::read_link("/proc/thread-self").context("/proc/thread-self")?;
    let thread = task.file_name().context("a thread without a number")?;
    run(Command::new("chrt")
        .args(["--idle", "--pid", "0"])
        .arg(thread))
}

/// Runs torture's suites, and returns those that failed. Fails only if torture fails without naming one. Prints their
/// output when all have ended, so that it does not mix with that of other steps.
fn run_torture_suites() -> Result<Vec<String>> {
    let path = project_root().join("target/torture.log");
    let log = File::create(&path).with_context(|| path.display().to_string())?;
    let mut suites = crate::torture_command(&["--short"]);
    let result = run(suites.stdout(log.try_clone()?).stderr(log));
    let written = fs::read_to_string(&path)?;
    print!("{written}");
    let failed = failed_suites(&written);
    // Without the name of a suite, it was torture itself that failed.
    if failed.is_empty() {
        result?;
    }
    Ok(failed)
}

/// Returns the names of the suites that failed, by the lines `NAME: FAILED: …` that torture wrote.
fn failed_suites(written: &str) -> Vec<String> {
    let suites = written
        .lines()
        .filter_map(|line| line.split_once(": FAILED: "));
    suites.map(|(name, _)| name.to_owned()).collect()
}

/// Runs suites that failed beside the tests once more, alone, as [`test_run`] does with tests, and reports those that
/// pass as flaky. Fails if one fails again.
fn retry_torture(failed: &[String]) -> Result<()> {
    for suite in failed {
        run(&mut crate::torture_command(&[suite, "--short"]))?;
        println!("FLAKY: failed beside the tests, passed alone: torture {suite}");
    }
    Ok(())
}

/// Runs clippy on all targets and features, and fails at a warning.
fn run_clippy() -> Result<()> {
    let mut clippy = cargo_command(&["clippy", "--workspace", "--all-targets", "--all-features"]);
    run(clippy.args(["--quiet", "--", "-D", "warnings"]))
}

/// Builds the documentation, also of private items, and fails at a warning, such as a dead link.
fn build_docs() -> Result<()> {
    let mut docs = cargo_command(&["doc", "--workspace", "--all-features", "--no-deps"]);
    docs.args(["--document-private-items", "--keep-going", "--quiet"]);
    run(docs.env("RUSTDOCFLAGS", "-D warnings"))
}

/// The time that each step took.
#[derive(Default)]
struct Steps(Vec<(&'static str, Duration)>);

impl Steps {
    /// Runs a step, and, if it succeeds, prints and keeps the time that it took. An error gets the step's name.
    fn run_step<T>(&mut self, name: &'static str, step: impl FnOnce() -> Result<T>) -> Result<T> {
        let begun = Instant::now();
        let result = step().context(name)?;
        let time = begun.elapsed();
        println!("{}", step_line(name, time));
        self.0.push((name, time));
        Ok(result)
    }
}

impl fmt::Display for Steps {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, time) in &self.0 {
            writeln!(out, "{}", step_line(name, *time))?;
        }
        Ok(())
    }
}

/// Formats a step's time, in whole seconds, and its name.
fn step_line(name: &str, time: Duration) -> String {
    format!("{:6.0} s  {name}", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::{ChangedFiles, differences, failed_suites};

    #[test]
    fn failed_suites_by_output_of_torture() {
        let written = "storm: 9 replies (1.2 s)\nclients: FAILED: drip: 1 refused\nhostile: FAILED: no: FAILED: x\n\
             torture: failed: clients, hostile\n";
        assert_eq!(failed_suites(written), ["clients", "hostile"]);
    }

    #[test]
    fn file_that_was_changed_before_is_noticed_again() {
        let files = |files: &[(&str, u64)]| -> ChangedFiles {
            let files = files.iter();
            files
                .map(|(line, hash)| ((*line).to_owned(), Some(*hash)))
                .collect()
        };
        let before = files(&[(" M a", 1), ("?? b", 2)]);
        let check = |after: &[(&str, u64)], expected: &[&str]| {
            assert_eq!(differences(&before, &files(after)), expected, "{after:?}");
        };
        check(&[(" M a", 1), ("?? b", 2)], &[]);
        check(&[(" M a", 7), ("?? b", 2)], &[" M a"]);
        check(&[(" M a", 1), ("?? b", 2), ("?? c", 3)], &["?? c"]);
        // The tests took back a change.
        check(&[("?? b", 2)], &[" M a"]);
        check(&[], &[" M a", "?? b"]);
        let gone: ChangedFiles = [(" D a".to_owned(), None)].into();
        assert_eq!(differences(&gone, &gone), [""; 0]);
    }
}
