//! Runs every test binary, as many at once as there are processors, and each failed test once more, alone.
//!
//! `cargo test` runs one binary after the other, and most tests wait for another process. A test that fails only
//! beside the others is named at the end and does not fail the run.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use xtask::run::{cargo_command, output, run};

/// A test binary, as cargo names it once it is built.
#[derive(Debug, Deserialize)]
pub(crate) struct TestBinary {
    executable: PathBuf,
    manifest_path: PathBuf,
    profile: Profile,
    target: Target,
}

#[derive(Debug, Deserialize)]
struct Profile {
    test: bool,
}

#[derive(Debug, Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

/// Runs the tests of all binaries, as many binaries at once as there are processors, then those of the documentation.
/// Prints the tests that passed only the second time, alone. Fails if a test fails twice.
pub(crate) fn run_tests(binaries: &[TestBinary]) -> Result<()> {
    let (next, flaky) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let lane = || -> Result<()> {
        while let Some(binary) = binaries.get(next.fetch_add(1, Ordering::Relaxed)) {
            let failed = binary.run_and_retry()?;
            let mut flaky = flaky
                .lock()
                .unwrap_or_else(|poisoned| poisoned.into_inner());
            flaky.extend(failed);
        }
        Ok(())
    };
    let lanes = thread::available_parallelism()?.get();
    let outcomes: Vec<_> = thread::scope(|scope| {
        let lanes: Vec<_> = (0..lanes).map(|_| scope.spawn(lane)).collect();
        lanes
            .into_iter()
            .map(thread::ScopedJoinHandle::join)
            .collect()
    });
    for outcome in outcomes {
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    }
    run(&mut cargo_command(&[
        "test",
        "--workspace",
        "--doc",
        "--quiet",
    ]))?;
    let flaky = flaky
        .into_inner()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    if !flaky.is_empty() {
        println!(
            "FLAKY: failed beside the others, passed alone: {}",
            flaky.join(", ")
        );
    }
    Ok(())
}

/// Builds all test binaries, and returns them sorted: those with the longest runs, the tests of whole programs, come
/// first.
pub(crate) fn build_test_binaries() -> Result<Vec<TestBinary>> {
    let mut build = cargo_command(&["test", "--workspace", "--no-run", "--quiet"]);
    let messages = output(build.arg("--message-format=json-render-diagnostics"))?;
    let mut binaries: Vec<TestBinary> = messages
        .lines()
        // Other messages, and libraries, lack an executable.
        .filter_map(|line| serde_json::from_str(line).ok())
        // Programs that integration tests start are named as well.
        .filter(|binary: &TestBinary| binary.profile.test)
        .collect();
    ensure!(!binaries.is_empty(), "cargo named no test binary");
    binaries.sort_by_key(|binary| (binary.target.name != "e2e", !binary.is_integration()));
    Ok(binaries)
}

impl TestBinary {
    /// Returns whether the binary is of a package's folder `tests`, not of its library or programs.
    fn is_integration(&self) -> bool {
        self.target.kind == ["test"]
    }

    /// Returns the names of the package and the binary: `memprof-cli e2e`.
    fn name(&self) -> String {
        let package = self.package_dir().file_name().unwrap_or_default();
        format!("{} {}", package.display(), self.target.name)
    }

    /// Returns the folder of the package that the tests are of.
    fn package_dir(&self) -> &Path {
        self.manifest_path.parent().unwrap_or(&self.manifest_path)
    }

    /// Runs the tests, and those that failed once more, alone. Returns the names of those that passed only then. Fails
    /// if a test failed twice.
    fn run_and_retry(&self) -> Result<Vec<String>> {
        let name = self.name();
        println!("run: {name}");
        // More threads than processors, because most tests wait for another process.
        let begun = Instant::now();
        let first = self.run_tests(2 * thread::available_parallelism()?.get(), &[])?;
        if first.status.success() {
            println!("ok: {name} ({:.1} s)", begun.elapsed().as_secs_f64());
            print_skipped(&first);
            return Ok(Vec::new());
        }
        let written = print_output(&first);
        let failed = parse_failures(&written);
        ensure!(
            !failed.is_empty(),
            "{name}: {}, with no test that failed",
            first.status
        );
        println!("{name}: again, alone: {}", failed.join(", "));
        let again = self.run_tests(1, &failed)?;
        if !again.status.success() {
            print_output(&again);
        }
        ensure!(
            again.status.success(),
            "{name}: failed: {}",
            failed.join(", ")
        );
        Ok(failed)
    }

    /// Runs all tests of the binary, or those with these exact names if there are any, in `threads` threads, with the
    /// directory and variables that cargo sets. Returns the output also of a failed run.
    fn run_tests(&self, threads: usize, names: &[String]) -> Result<Output> {
        let mut tests = Command::new(&self.executable);
        if !names.is_empty() {
            tests.arg("--exact").args(names);
        }
        tests
            .arg("--quiet")
            .current_dir(self.package_dir())
            .env("CARGO", cargo_command(&[]).get_program())
            .env("CARGO_MANIFEST_DIR", self.package_dir())
            .env("RUST_TEST_THREADS", threads.to_string())
            .stdin(Stdio::null());
        let failed = || format!("failed to run {}", self.executable.display());
        tests.output().with_context(failed)
    }
}

/// Prints what a run wrote, stdout before stderr, and returns it.
fn print_output(run: &Output) -> String {
    let mut written = String::from_utf8_lossy(&run.stdout).into_owned();
    written.push_str(&String::from_utf8_lossy(&run.stderr));
    println!("{written}");
    written
}

/// Prints which tests were left out: each of them writes a line to stderr, past the output that libtest captures.
fn print_skipped(run: &Output) {
    let written = String::from_utf8_lossy(&run.stderr);
    for line in written.lines().filter(|line| line.starts_with("SKIPPED")) {
        println!("{line}");
    }
}

/// Returns the names of the tests that failed: libtest lists them, indented, after its last `failures:`.
fn parse_failures(written: &str) -> Vec<String> {
    let list = written
        .rsplit_once("\nfailures:\n")
        .map_or("", |(_, list)| list);
    list.lines()
        .map_while(|line| line.strip_prefix("    "))
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_failures(written: &str, expected: &[&str]) {
        assert_eq!(expected, parse_failures(written));
    }

    #[test]
    fn failures_of_a_binary() {
        check_failures(
            "running 3 tests\n..\n\nfailures:\n\n---- ledger::sum stdout ----\n    inner\n\n\nfailures:\n    \
             ledger::sum\n    wide::columns\n\ntest result: FAILED. 1 passed; 2 failed\n",
            &["ledger::sum", "wide::columns"],
        );
    }

    #[test]
    fn binary_that_was_killed_names_no_test() {
        check_failures("running 3 tests\n..", &[]);
    }

    /// Runs a script in place of a test binary; it finds the file `ran` from its second run on.
    fn run_script(script: &str) -> Result<Vec<String>> {
        let dir = tempfile::tempdir().unwrap();
        let executable = dir.path().join("tests");
        let script = format!("#!/bin/sh\nprintf '\\nfailures:\\n    a::b\\n'\n{script}");
        // By another process: a descriptor that may be written, in a fork of another test, forbids to run the file.
        let mut writer = Command::new("sh");
        writer.args(["-c", "printf %s \"$1\" > \"$2\" && chmod 755 \"$2\"", "sh"]);
        run(writer.arg(script).arg(&executable)).unwrap();
        let (name, kind) = ("script".to_owned(), vec!["test".to_owned()]);
        let target = Target { name, kind };
        let manifest_path = dir.path().join("Cargo.toml");
        let profile = Profile { test: true };
        TestBinary {
            executable,
            manifest_path,
            profile,
            target,
        }
        .run_and_retry()
    }

    #[test]
    fn test_that_passes_alone_is_flaky() {
        let flaky = run_script("[ -e ran ] && [ \"$2\" = a::b ] && exit 0; touch ran; exit 101");
        assert_eq!(["a::b"], *flaky.unwrap());
    }

    #[test]
    fn test_that_fails_twice_fails() {
        let error = run_script("exit 101").unwrap_err().to_string();
        assert!(error.ends_with("script: failed: a::b"), "{error}");
    }
}
