//! `memprof record`: a profile of the next half minute, and the host left as it was.

use std::fs::File;
use std::io::{IsTerminal, stderr};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::exit::{Outcome, USAGE, coded};
use crate::reply::ask;
use crate::report::{Show, show};
use crate::{browser, completion, message, output, report, target};

/// How much longer than the recording its activation lasts, should this program be killed.
const GRACE: Duration = Duration::from_secs(60);
const TICK: Duration = Duration::from_millis(250);
const ROWS: usize = 20;

/// Take a heap profile of the next while, and show who holds the memory
#[derive(clap::Args, Debug)]
pub(crate) struct RecordArgs {
    /// The host: a pid, a name or a socket's path. Not needed while only one host runs
    #[arg(short, long, value_name = "TARGET", add = completion::targets())]
    target: Option<String>,

    /// How long to sample, for example 30s or 5m
    #[arg(long = "for", value_name = "DURATION", value_parser = humantime::parse_duration)]
    duration: Duration,

    /// Keep the dump in this file too
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Then open a report of it in a browser, or print where the report lies
    #[arg(long)]
    open: bool,
}

pub(crate) fn run(args: &RecordArgs) -> Outcome {
    if args.output.as_deref() == Some(Path::new("-")) {
        return Err(coded(
            USAGE,
            "standard output is for the table: give -o a file",
        ));
    }
    let mut client = target::connect(args.target.as_deref())?;
    let pid = target::pid_of(&mut client)?;
    let before = ask(&mut client, "status", "")?.ok()?;
    let was_active = before.field("profiling") == "active";
    if !was_active {
        // A lease, so that the host does not stay active should this program be killed.
        let lease = humantime::format_duration(args.duration + GRACE)
            .to_string()
            .replace(' ', "");
        ask(&mut client, "activate", &format!("for={lease}"))?.ok()?;
    }
    wait(args.duration);
    let dumped = ask(&mut client, "dump", "");
    if !was_active {
        ask(&mut client, "deactivate", "")?.ok()?;
    }
    let dumped = dumped?.ok()?;
    let id = dumped.field("id").as_str();
    let id = id.context("the reply to dump has no id")?;
    let place = tempfile::tempdir().context("failed to make a directory for the dump")?;
    let file = &place.path().join("dump.heap");
    message::fetch(&mut client, id, file)?;
    if let Some(output) = &args.output {
        let mut bytes = File::open(file).context("failed to read the dump again")?;
        output::save(&mut bytes, output)?;
    }
    for warning in dumped.field("warnings").as_array().into_iter().flatten() {
        output::note(warning.as_str().unwrap_or_default());
    }
    show(&Show {
        file,
        pid,
        top: ROWS,
    })?;
    if args.open {
        browser::open(&report::page(file, pid)?)?;
    }
    Ok(0.into())
}

/// Waits, and shows how long it still takes where somebody looks.
fn wait(duration: Duration) {
    let begun = Instant::now();
    let watched = stderr().is_terminal();
    while let Some(left) = duration.checked_sub(begun.elapsed()) {
        if watched {
            let done = (begun.elapsed().as_secs_f64() / duration.as_secs_f64() * 30.0) as usize;
            let bar = "#".repeat(done.min(30));
            output::progress(&format!("sampling [{bar:<30}] {:>4}s left", left.as_secs()));
        }
        thread::sleep(left.min(if watched { TICK } else { duration }));
    }
    output::clear();
}
