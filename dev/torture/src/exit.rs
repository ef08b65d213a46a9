//! Suite `exit`: programs that exit in a signal handler that interrupted malloc, with a rule for a dump at the exit, do
//! not hang.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::SuiteLength;
use super::preloaded_program::PreloadedProgram;

/// Programs in parallel, because a waiting program needs no processor.
const PARALLEL_PROGRAMS: usize = 10;

/// Maximum time of an exit: memprof's limit of 5 s, and the delay of a busy machine.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5 + 10);

const CONFIG: &str = "[[watch]]\nat_exit = true\n";

/// Runs the suite `exit`: ends programs in a signal handler that interrupted malloc, ten at a time, and returns the
/// figures in one line. Fails if a program hangs, or if none of them wrote its dump.
pub(super) fn run_suite(length: SuiteLength) -> Result<String> {
    let mut exits = Vec::new();
    for _ in 0..length.pick(1, 10) {
        let round: Result<Vec<Exit>> = thread::scope(|scope| {
            let threads: Vec<_> = (0..PARALLEL_PROGRAMS)
                .map(|_| scope.spawn(exit_in_malloc))
                .collect();
            let threads = threads.into_iter();
            threads
                .map(|thread| thread.join().expect("no panic"))
                .collect()
        });
        exits.extend(round?);
    }
    let dumped = exits.iter().filter(|exit| exit.is_dumped).count();
    let longest = exits.iter().map(|exit| exit.elapsed).max();
    ensure!(dumped > 0, "no exit was dumped");
    Ok(format!(
        "{} exits inside malloc: {dumped} with a dump, 0 hangs, the longest took {:.1} s",
        exits.len(),
        longest.unwrap_or_default().as_secs_f64()
    ))
}

/// Exit of a program.
struct Exit {
    elapsed: Duration,
    is_dumped: bool,
}

/// Starts a program under memprof, and lets it exit in a signal handler that interrupted malloc. Fails if the program
/// does not end with success within [`EXIT_TIMEOUT`], or if its control socket is left.
fn exit_in_malloc() -> Result<Exit> {
    let dir = tempfile::tempdir()?;
    let (config, dumps) = (dir.path().join("config"), dir.path().join("dumps"));
    fs::write(&config, CONFIG)?;
    let mut program = PreloadedProgram::start_with("guest", &[], |command| {
        command
            .env("MEMPROF_CONFIG", &config)
            .env("MEMPROF_DUMP_DIR", &dumps);
    })?;
    program.send_line("exit")?;
    let start = Instant::now();
    let ended = program
        .wait_for_exit(EXIT_TIMEOUT)?
        .context("the exit hangs")?;
    ensure!(ended.success(), "the program ended with {ended}");
    let socket = program.socket();
    ensure!(!socket.exists(), "{} is left over", socket.display());
    Ok(Exit {
        elapsed: start.elapsed(),
        is_dumped: fs::read_dir(&dumps).is_ok_and(|mut dumps| dumps.next().is_some()),
    })
}
