//! `memprof leaks --prove`: the objects of a running process that nothing points to.

use std::fs;
use std::process::ExitCode;
use std::time::Duration;

use memprof_leaks::{Error, Group, Options, Proof, Step};
use memprof_report::{SampleType, amount};
use serde::Serialize;

use crate::exit::{FAILED, Outcome, coded};
use crate::output;

/// How to look at a process.
#[derive(clap::Args, Debug)]
pub(crate) struct ProveArgs {
    /// List the objects of a process that nothing points to any more, whatever program it is
    ///
    /// The process is copied twice, at least a second apart, and stands still for as long as the kernel copies its
    /// page tables: some 60 ms for 1 GiB. What is reported has no pointer to it at either moment, neither from
    /// registers, stacks, variables and other memory nor from the kernel (epoll, timers), nor from an object that
    /// has one. Nothing is loaded into the process, and what it allocated before counts too. Walked are the
    /// heaps of glibc's malloc and jemalloc 5.3; of a pool that a program makes within it, all or nothing is reported.
    #[arg(long, requires = "pid", conflicts_with_all = ["target", "timeout", "last"])]
    pub(crate) prove: bool,

    /// The process that --prove looks at
    #[arg(requires = "prove")]
    pid: Option<u32>,

    /// How long --prove may let the process stand still each time; it is estimated before
    #[arg(long, value_name = "DURATION", default_value = "100ms", value_parser = humantime::parse_duration, requires = "prove")]
    max_pause: Duration,

    /// Exit with 1 where --prove finds leaks
    #[arg(long, requires = "prove")]
    fail: bool,
}

/// What `memprof leaks --prove --json` prints.
#[derive(Serialize)]
struct Reply<'a> {
    status: &'static str,
    text: String,
    pid: u32,
    allocators: &'a [&'static str],
    /// In bytes.
    rss: u64,
    stopped_ms: Vec<f64>,
    estimated_ms: f64,
    snapshots: usize,
    /// Objects that live, leaked or not.
    objects: u64,
    searched_bytes: u64,
    /// What this program took for it, in bytes.
    memory_bytes: u64,
    leaked: Leaked,
    unread: &'a [String],
    warnings: &'a [String],
}

#[derive(Serialize)]
struct Leaked {
    objects: u64,
    bytes: u64,
    by: Vec<By>,
}

#[derive(Serialize)]
struct By {
    size: u64,
    objects: u64,
    bytes: u64,
    example: String,
}

pub(crate) fn run(args: &ProveArgs, top: usize, json: bool) -> Outcome {
    let pid = args.pid.unwrap_or_default();
    let options = Options {
        max_pause: args.max_pause,
    };
    let proof = memprof_leaks::prove(pid, options, &|step| output::progress(&said(pid, step)));
    output::clear();
    let proof = proof.map_err(|error| refused(pid, &error))?;
    let reply = reply(pid, &proof, top);
    match json {
        true => output::print(&serde_json::to_string(&reply)?)?,
        false => output::print(&reply.text)?,
    }
    let found = reply.leaked.objects > 0;
    Ok(ExitCode::from(if found && args.fail { FAILED } else { 0 }))
}

fn said(pid: u32, step: Step) -> String {
    match step {
        Step::Snapshot => format!("{pid}: taking a snapshot"),
        Step::Walk => format!("{pid}: walking the heap"),
        Step::Search(objects) => format!("{pid}: searching for pointers to {objects} objects"),
        Step::Wait => format!("{pid}: waiting for the second snapshot"),
    }
}

fn name_of(pid: u32) -> String {
    match fs::read_to_string(format!("/proc/{pid}/comm")) {
        Ok(name) => format!("{pid} ({})", name.trim_end()),
        Err(_) => pid.to_string(),
    }
}

fn refused(pid: u32, error: &Error) -> anyhow::Error {
    let remedy = error.remedy().map(|remedy| format!("; {remedy}"));
    let remedy = remedy.unwrap_or_default();
    coded(
        error.exit_code(),
        format!("{}: {error}{remedy}", name_of(pid)),
    )
}

fn reply(pid: u32, proof: &Proof, top: usize) -> Reply<'_> {
    let sum = |of: fn(&Group) -> u64| proof.leaked.iter().map(of).sum();
    let by = proof.leaked.iter().map(|group| By {
        size: group.size,
        objects: group.objects,
        bytes: group.bytes,
        example: format!("{:#x}", group.example),
    });
    let milliseconds = |pause: &Duration| pause.as_micros() as f64 / 1000.0;
    let mut reply = Reply {
        status: "ok",
        text: String::new(),
        pid,
        allocators: &proof.allocators,
        rss: proof.rss,
        stopped_ms: proof.stopped.iter().map(milliseconds).collect(),
        estimated_ms: milliseconds(&proof.estimate),
        snapshots: proof.stopped.len(),
        objects: proof.objects,
        searched_bytes: proof.searched,
        memory_bytes: most_resident(),
        leaked: Leaked {
            objects: sum(|group| group.objects),
            bytes: sum(|group| group.bytes),
            by: by.collect(),
        },
        unread: &proof.unread,
        warnings: &proof.warnings,
    };
    reply.text = text(&reply, top);
    reply
}

/// The most memory that this program had at a time, in bytes.
fn most_resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let value = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kibibytes = value.and_then(|value| value.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kibibytes.unwrap_or(0) << 10
}

fn text(reply: &Reply<'_>, top: usize) -> String {
    let size = |bytes: u64| amount(bytes.cast_signed(), SampleType::InuseSpace);
    let name = name_of(reply.pid);
    let leaked = &reply.leaked;
    let mut lines = vec![match leaked.objects {
        0 => format!(
            "{name}: nothing is leaked: all {} objects are held",
            reply.objects
        ),
        objects => format!(
            "{name}: {objects} objects are leaked, {}: nothing pointed to them in two snapshots",
            size(leaked.bytes)
        ),
    }];
    if leaked.objects > 0 {
        lines.push(format!(
            "\n{:>12} {:>9} {:>10}  one of them",
            "leaked", "objects", "of each"
        ));
    }
    for by in leaked.by.iter().take(top) {
        let (bytes, each) = (size(by.bytes), format!("{} B", by.size));
        lines.push(format!(
            "{bytes:>12} {:>9} {each:>10}  {}",
            by.objects, by.example
        ));
    }
    if leaked.by.len() > top {
        lines.push(format!(
            "({} more sizes, --top shows them)",
            leaked.by.len() - top
        ));
    }
    let stopped: Vec<_> = reply
        .stopped_ms
        .iter()
        .map(|pause| format!("{pause:.1} ms"))
        .collect();
    lines.push(format!(
        "\nof {} objects of {}; stood still for {} (estimated {:.1} ms); {} searched; this took {} of memory",
        reply.objects,
        reply.allocators.join(" and "),
        stopped.join(", "),
        reply.estimated_ms,
        size(reply.searched_bytes),
        size(reply.memory_bytes)
    ));
    lines.extend(
        reply
            .unread
            .iter()
            .map(|part| format!("not searched: {part}")),
    );
    lines.extend(
        reply
            .warnings
            .iter()
            .map(|warning| format!("note: {warning}")),
    );
    lines.join("\n")
}
