//! Programs that exit in a signal handler, which interrupted malloc, while a rule asks for a dump at
//! the exit: they end.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::SuiteLength;
use super::preloaded_program::PreloadedProgram;

/// At a time: what waits, waits for no processor.
const AT_ONCE: usize = 10;

/// How long memprof keeps an exit waiting, and what a busy machine adds.
const LONGEST: Duration = Duration::from_secs(5 + 10);

const CONFIG: &str = "[[watch]]\nat_exit = true\n";

pub(super) fn run(form: SuiteLength) -> Result<String> {
    let mut exits = Vec::new();
    for _ in 0..form.pick(1, 10) {
        let round: Result<Vec<Exit>> = thread::scope(|scope| {
            let guests: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(exit)).collect();
            let guests = guests.into_iter();
            guests
                .map(|guest| guest.join().expect("no panic"))
                .collect()
        });
        exits.extend(round?);
    }
    let dumped = exits.iter().filter(|exit| exit.is_dumped).count();
    let longest = exits.iter().map(|exit| exit.took).max();
    ensure!(dumped > 0, "no exit was dumped");
    Ok(format!(
        "{} exits in the midst of malloc: {dumped} with a dump, 0 hangs, the longest took {:.1} s",
        exits.len(),
        longest.unwrap_or_default().as_secs_f64()
    ))
}

struct Exit {
    took: Duration,
    is_dumped: bool,
}

fn exit() -> Result<Exit> {
    let place = tempfile::tempdir()?;
    let (config, dumps) = (place.path().join("config"), place.path().join("dumps"));
    fs::write(&config, CONFIG)?;
    let mut guest = PreloadedProgram::start_with("guest", &[], |command| {
        command
            .env("MEMPROF_CONFIG", &config)
            .env("MEMPROF_DUMP_DIR", &dumps);
    })?;
    guest.send_line("exit")?;
    let begun = Instant::now();
    let ended = guest.ends_within(LONGEST)?.context("the exit hangs")?;
    ensure!(ended.success(), "the guest ended with {ended}");
    let socket = guest.socket();
    ensure!(!socket.exists(), "{} is left over", socket.display());
    Ok(Exit {
        took: begun.elapsed(),
        is_dumped: fs::read_dir(&dumps).is_ok_and(|mut dumps| dumps.next().is_some()),
    })
}
