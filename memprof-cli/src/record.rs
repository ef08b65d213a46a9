//! `memprof record`: a profile of the next half minute, and the host left as it was.

use std::fs::File;
use std::io::{IsTerminal, stderr};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use memprof_attach::{Attached, Port};
use memprof_host::client::Client;
use memprof_messages::{DumpReport, Profiling, SamplerChoice};
use memprof_report::Options;

use crate::attach::{self, AttachArgs};
use crate::detach;
use crate::exit::{Outcome, USAGE, coded};
use crate::led::{self, Entries};
use crate::message::{self, Dumped};
use crate::report::{Show, show};
use crate::{browser, completion, output, report, target};

/// How much longer than the recording its activation lasts, should this program be killed.
const GRACE: Duration = Duration::from_secs(60);
const TICK: Duration = Duration::from_millis(250);
const ROWS: usize = 20;

/// Sample for a time, and show who allocated the memory that is still in use at its end
#[derive(clap::Args, Debug)]
pub(crate) struct RecordArgs {
    /// The host: a pid, a name or a socket's path. Not needed while only one host runs
    #[arg(short, long, value_name = "TARGET", add = completion::targets())]
    target: Option<String>,

    /// A running process without the plugin: attach to it, and detach afterwards
    #[arg(long, value_name = "PID", conflicts_with = "target", value_parser = crate::pid::parse)]
    pid: Option<u32>,

    /// Leave the plugin in the process, as `memprof attach` does
    #[arg(long, requires = "pid")]
    keep_attached: bool,

    /// The plugin's file, for --pid; by default the one that is installed with this program
    #[arg(long, value_name = "FILE", requires = "pid")]
    plugin: Option<PathBuf>,

    /// For --pid: load the plugin through the inspector of a Node, as `memprof attach --node-inspector` does
    #[arg(long, requires = "pid")]
    node_inspector: bool,

    /// How long to sample, for example 30s or 5m
    #[arg(long = "for", value_name = "DURATION", value_parser = humantime::parse_duration)]
    duration: Duration,

    /// Keep the dump in this file too
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Then open a report of it in a browser, or print the path of the report
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
    let place = tempfile::tempdir().context("failed to make a directory for the dump")?;
    let file = &place.path().join("dump.heap");
    let recorded = match args.pid {
        None => record(args, &mut target::connect(args.target.as_deref())?, file),
        Some(pid) => record_attached(args, pid, file),
    };
    let (pid, warnings) = recorded?;
    if let Some(output) = &args.output {
        let mut bytes = File::open(file).context("failed to read the dump again")?;
        output::export(&mut bytes, output)?;
    }
    for warning in &warnings {
        output::note(warning);
    }
    show(&Show {
        file,
        pid,
        options: Options {
            top: Some(ROWS),
            ..Options::default()
        },
        output: None,
    })?;
    if args.open {
        browser::open(&report::page(file, pid)?)?;
    }
    Ok(0.into())
}

/// Records in a process that may have to be attached to, and leaves it as it was.
fn record_attached(args: &RecordArgs, pid: u32, file: &Path) -> anyhow::Result<(u32, Vec<String>)> {
    if let Some(mut client) = attach::host(pid) {
        return record(args, &mut client, file);
    }
    let (mut client, attached) = attach::attach(&AttachArgs {
        pid,
        lease: match args.keep_attached {
            true => attach::LEASE,
            false => args.duration + 2 * GRACE,
        },
        max_pause: attach::MAX_PAUSE,
        children: false,
        plugin: args.plugin.clone(),
        config: None,
        node_inspector: args.node_inspector,
        json: false,
        args: Vec::new(),
    })?;
    if let Attached::ByThread { handled, .. } = &attached
        && let Some(line) = attach::handlers(handled)
    {
        output::note(&line);
    }
    if let Attached::ByNode {
        address,
        port: Port::StillOpen,
    } = attached
    {
        output::note(&format!("its inspector ({address}) {}", attach::STILL_OPEN));
    }
    // Where the status fails, what follows does, and says so.
    if let Ok(status) = client.status()
        && let Entries::Not(why) = led::lead(pid, &status, SamplerChoice::Auto, attach::MAX_PAUSE)
    {
        output::note(&format!("{why:#}"));
    }
    let recorded = record(args, &mut client, file);
    drop(client);
    if !args.keep_attached {
        // What went wrong before is what matters.
        let detached = detach::detach(pid);
        return recorded.and_then(|recorded| detached.map(|_| recorded));
    }
    recorded
}

/// Samples for the while, and fetches the dump into `file`. Returns the process and what the host warns of.
fn record(
    args: &RecordArgs,
    client: &mut Client,
    file: &Path,
) -> anyhow::Result<(u32, Vec<String>)> {
    let pid = target::pid_of(client)?;
    let was_active = client.status()?.profiling == Profiling::Active;
    if !was_active {
        // A lease, so that the host does not stay active should this program be killed.
        let lease = humantime::format_duration(args.duration + GRACE)
            .to_string()
            .replace(' ', "");
        client.activate(&format!("for={lease}"))?;
    }
    wait(args.duration);
    let dumped = message::take_here(client, &[]);
    if !was_active {
        client.deactivate()?;
    }
    let warnings = match dumped? {
        Dumped::Told(reply) => {
            let reply = reply.ok()?;
            let told: DumpReport = reply.typed().context("the reply to dump")?;
            output::save(&mut client.fetch(&told.largest.id)?, file)?;
            told.warnings
        }
        Dumped::HandedOver(mut bytes) => {
            output::save(&mut bytes, file)?;
            Vec::new()
        }
    };
    Ok((pid, warnings))
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
