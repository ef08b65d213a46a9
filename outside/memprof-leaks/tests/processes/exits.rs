//! Leaks of a program that exits, compared with those that `LeakSanitizer` counts.

use std::path::PathBuf;
use std::process::Command;

use memprof_leaks::exit_stop::{RunOutcome, run_until_exit};
use memprof_leaks::{AnalysisOptions, Proof, prove_leaks_at_exit};

use crate::compiled;
use crate::target::built;

fn proof(command: &mut Command, status: i32) -> Proof {
    let RunOutcome::AtExit(exiting) = run_until_exit(command, |_| ()).unwrap() else {
        panic!("{command:?} has ended");
    };
    let proof = prove_leaks_at_exit(&exiting, AnalysisOptions::default(), &|_| {}).unwrap();
    assert_eq!(exiting.end().unwrap().code(), Some(status));
    proof
}

fn with_sanitizer() -> PathBuf {
    built("sanitized", |path| {
        let mut command = Command::new("gcc");
        command.args(["-O1", "-fsanitize=leak", "exits.c", "-o"]);
        command.arg(path);
        command
    })
}

#[test]
fn leaks_at_exit_equal_those_of_leak_sanitizer() {
    let proof = proof(&mut Command::new(compiled("exits")), 3);
    let found = proof.leaked.iter().map(|group| (group.size, group.objects));
    let mut found: Vec<_> = found.collect();
    found.sort_unstable();
    assert_eq!(found, [(120, 50), (136, 60), (152, 40), (168, 15)]);
    let bytes: u64 = proof.leaked.iter().map(|group| group.bytes).sum();
    let objects: u64 = proof.leaked.iter().map(|group| group.objects).sum();
    let sanitized = Command::new(with_sanitizer()).output().unwrap();
    let report = String::from_utf8(sanitized.stderr).unwrap();
    let expected =
        format!("SUMMARY: LeakSanitizer: {bytes} byte(s) leaked in {objects} allocation(s).");
    assert!(report.contains(&expected), "{report}");
}

#[test]
fn clean_program_has_no_leaks_at_exit() {
    let proof = proof(Command::new(compiled("exits")).arg("clean"), 3);
    assert_eq!(proof.leaked, []);
    assert!(proof.report.objects >= 1000, "{proof:?}");
}

#[test]
fn leaks_are_found_when_first_thread_ends_first() {
    let proof = proof(&mut Command::new(compiled("last_thread")), 0);
    let found = proof.leaked.iter().map(|group| (group.size, group.objects));
    assert!(found.eq([(5000, 14)]), "{proof:?}");
}
