//! `memprof holders`: through whom the memory of a running process is held.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context;
use memprof_leaks::{Chain, Holder, Holding, Kind, Level, Link, Method, Options, holders};
use memprof_report::pattern;
use serde::Serialize;

use crate::exit::{NO_DATA, Outcome, USAGE, coded};
use crate::looked::{Looked, look, name_of, parse_amount, size};
use crate::output;

/// Show what keeps the memory of a process alive: variables, stacks and other memory
///
/// The process is copied as for `memprof leaks --prove`. A holder is shown with all objects that are reachable only
/// through it: they would be free without it. Objects that several hold are shown below the nearest holder, marked
/// "others hold it too". Variables come first: what a variable reaches is not shown below a stack, other memory or a
/// register. Objects are shown by class (C++ with virtual functions) or type (Python with PYTHONMALLOC=malloc), else by
/// size.
#[derive(clap::Args, Debug)]
pub(crate) struct HoldersArgs {
    /// The process
    #[arg(value_parser = crate::pid::parse)]
    pid: u32,

    /// Show what holds the objects of classes or types that this regular expression matches
    #[arg(
        long = "class",
        value_name = "RE",
        visible_alias = "type",
        conflicts_with = "address"
    )]
    class: Option<String>,

    /// Show what holds the objects of a size in bytes; above 1 KiB, of all sizes up to the same power of two
    #[arg(long, value_name = "BYTES", conflicts_with_all = ["class", "address"])]
    size: Option<u64>,

    /// Show what holds the object in which this address lies
    #[arg(long, value_name = "0x...", value_parser = address)]
    address: Option<u64>,

    /// Show this many holders
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: usize,

    /// How long the process may be stopped; memprof estimates that first, and refuses if it is longer
    #[arg(long, value_name = "DURATION", default_value = "100ms", value_parser = humantime::parse_duration)]
    max_pause: Duration,

    /// How much memory memprof may use; default: 12 % of the process's memory, at least 128 MiB
    ///
    /// If that is not enough to find all holders of an object, one shortest path to it is shown, and marked as such.
    #[arg(long, value_name = "SIZE", value_parser = parse_amount)]
    max_memory: Option<u64>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Of what a holder holds, what is shown: this share, in hundredths.
const SHOWN_SHARE: u64 = 5;
const SHOWN_DEPTH: usize = 8;

fn address(text: &str) -> Result<u64, std::num::ParseIntError> {
    u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16)
}

/// What `memprof holders --json` prints.
#[derive(Serialize)]
struct Reply<'a> {
    status: &'static str,
    text: String,
    #[serde(flatten)]
    looked: Looked<'a>,
    method: &'static str,
    holders: Vec<Row>,
    classes: Vec<Class>,
}

/// A holder, what it holds, or objects and what holds them.
#[derive(Serialize)]
struct Row {
    /// What is held first, its outermost holder last.
    path: Vec<Step>,
    /// With what they hold.
    objects: u64,
    bytes: u64,
    #[serde(skip)]
    depth: usize,
}

#[derive(Serialize)]
struct Step {
    kind: &'static str,
    name: String,
    /// Others hold it too.
    is_shared: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<String>,
}

/// All objects of a class or a size.
#[derive(Serialize)]
struct Class {
    name: String,
    objects: u64,
    bytes: u64,
    /// With what is held through them.
    held_bytes: u64,
}

pub(crate) fn run(args: &HoldersArgs) -> Outcome {
    let class = args.class.as_deref().map(pattern).transpose();
    let class = class.map_err(|error| coded(USAGE, error.to_string()))?;
    let options = Options {
        max_pause: args.max_pause,
        max_memory: args.max_memory,
    };
    let holding = look(args.pid, options, |options, progress| {
        holders(args.pid, args.address, options, progress)
    })?;
    let rows = match (args.address, class, args.size) {
        (Some(address), ..) => {
            let message = format!("no object that is held contains the address {address:#x}");
            let chain = holding.object.as_ref().context(message);
            vec![of_chain(
                chain.map_err(|error| coded(NO_DATA, error.to_string()))?,
            )]
        }
        (_, Some(class), _) => of_kind(&holding.levels, args.top, |kind| match kind {
            Kind::Class(name) => class.is_match(name),
            Kind::Size(_) => false,
        }),
        (.., Some(size)) => {
            let meant = Kind::of_size(size);
            of_kind(&holding.levels, args.top, |kind| *kind == meant)
        }
        _ => largest(&holding.levels, args.top),
    };
    if rows.is_empty() {
        let message =
            "no object that is held matches; `memprof holders PID` lists classes and sizes";
        return Err(coded(NO_DATA, message));
    }
    let mut reply = Reply {
        status: "ok",
        text: String::new(),
        looked: Looked::new(args.pid, &holding.looks),
        method: match holding.method {
            Method::Dominators => "dominators",
            Method::ShortestPath => "shortest_path",
        },
        holders: rows,
        classes: classes(&holding.levels),
    };
    let is_overview = args.address.is_none() && args.class.is_none() && args.size.is_none();
    reply.text = text(&reply, &holding, args.top, is_overview);
    match args.json {
        true => output::print(&serde_json::to_string(&reply)?)?,
        false => output::print(&reply.text)?,
    }
    Ok(0.into())
}

fn step(link: &Link) -> Step {
    let (kind, name) = match link {
        Link::Process => ("process", "the process".to_owned()),
        Link::Holder(Holder::Variable { name, file }) => match name.strip_prefix(file.as_str()) {
            Some(_) => ("symbol", format!("variable {name}")),
            None => ("symbol", format!("variable {name} in {file}")),
        },
        Link::Holder(Holder::Stack { thread, name }) => {
            ("stack", format!("stack of thread {thread} ({name})"))
        }
        Link::Holder(Holder::Memory {
            start,
            size: bytes,
            name,
        }) => {
            let name = if name.is_empty() { "memory" } else { name };
            ("memory", format!("{name} at {start:#x} ({})", size(*bytes)))
        }
        Link::Holder(Holder::Registers { thread, name }) => {
            ("register", format!("registers of thread {thread} ({name})"))
        }
        Link::Holder(Holder::Kernel) => ("kernel", "epoll or a timer".to_owned()),
        Link::Objects(kind) => ("object", name_of_kind(kind)),
    };
    Step {
        kind,
        name,
        is_shared: false,
        address: None,
    }
}

fn name_of_kind(kind: &Kind) -> String {
    match kind {
        Kind::Class(name) => name.to_string(),
        Kind::Size(bytes) if *bytes <= 1024 => format!("{bytes} B"),
        Kind::Size(bytes) => format!("up to {}", size(*bytes)),
    }
}

fn path(levels: &[Level], mut at: usize) -> Vec<Step> {
    let mut path = Vec::new();
    while at != 0 {
        let is_shared = levels[at].is_shared;
        path.push(Step {
            is_shared,
            ..step(&levels[at].link)
        });
        at = levels[at].parent;
    }
    path
}

/// The holders that hold most, each with what it holds.
fn largest(levels: &[Level], top: usize) -> Vec<Row> {
    let mut below = vec![Vec::new(); levels.len()];
    for (at, level) in levels.iter().enumerate().skip(1) {
        below[level.parent].push(at);
    }
    for children in &mut below {
        children.sort_by_key(|at| std::cmp::Reverse(levels[*at].held_bytes));
    }
    let mut rows = Vec::new();
    // What points only to what holders of an earlier rank hold has nothing.
    let holding = below[0].iter().filter(|at| levels[**at].held_objects > 0);
    for holder in holding.take(top) {
        let shown = levels[*holder].held_bytes / 100 * SHOWN_SHARE;
        let mut open = vec![(*holder, 0)];
        while let Some((at, depth)) = open.pop() {
            rows.push(row(levels, at, depth));
            let within = below[at].iter().rev();
            let large = within.filter(|at| levels[**at].held_bytes > shown);
            open.extend(
                large
                    .filter(|_| depth < SHOWN_DEPTH)
                    .map(|at| (*at, depth + 1)),
            );
        }
    }
    rows
}

fn row(levels: &[Level], at: usize, depth: usize) -> Row {
    Row {
        path: path(levels, at),
        objects: levels[at].held_objects,
        bytes: levels[at].held_bytes,
        depth,
    }
}

/// Objects of a kind, by what holds them.
fn of_kind(levels: &[Level], top: usize, is_meant: impl Fn(&Kind) -> bool) -> Vec<Row> {
    let is_meant = |at: &usize| matches!(&levels[*at].link, Link::Objects(kind) if is_meant(kind));
    let mut found: Vec<_> = (0..levels.len()).filter(is_meant).collect();
    found.sort_by_key(|at| std::cmp::Reverse(levels[*at].bytes));
    let rows = found.iter().take(top).map(|at| row(levels, *at, 0));
    rows.collect()
}

fn of_chain(chain: &Chain) -> Row {
    let links = chain.links.iter().map(|(link, address)| Step {
        address: address.map(|address| format!("{address:#x}")),
        ..step(link)
    });
    Row {
        path: links.collect(),
        objects: chain.objects,
        bytes: chain.bytes,
        depth: 0,
    }
}

/// No level of a kind lies behind another one of that kind: what they hold can be added up.
fn classes(levels: &[Level]) -> Vec<Class> {
    let mut classes: BTreeMap<String, Class> = BTreeMap::new();
    for level in levels {
        let Link::Objects(kind) = &level.link else {
            continue;
        };
        let name = name_of_kind(kind);
        let class = classes.entry(name.clone()).or_insert(Class {
            name,
            objects: 0,
            bytes: 0,
            held_bytes: 0,
        });
        class.objects += level.objects;
        class.bytes += level.bytes;
        class.held_bytes += level.held_bytes;
    }
    let mut classes: Vec<_> = classes.into_values().collect();
    classes.sort_by_key(|class| std::cmp::Reverse(class.held_bytes));
    classes
}

fn text(reply: &Reply<'_>, holding: &Holding, top: usize, is_overview: bool) -> String {
    let all = &holding.levels[0];
    let name = name_of(reply.looked.pid);
    let how = match holding.method {
        Method::Dominators => "each is reachable only through its holder, unless marked",
        Method::ShortestPath => {
            "one shortest path to each object, others may hold it too (a larger --max-memory shows all)"
        }
    };
    let mut lines = vec![
        format!(
            "{name}: {} in {} objects are held; {how}",
            size(all.held_bytes),
            all.held_objects
        ),
        format!("\n{:>12} {:>10}  holder", "held", "objects"),
    ];
    for row in &reply.holders {
        let names: Vec<_> = row.path.iter().map(told).collect();
        let names = match is_overview {
            true => names[0].clone(),
            false => names.join(" <- "),
        };
        let (bytes, indent) = (size(row.bytes), 2 * row.depth);
        lines.push(format!(
            "{bytes:>12} {:>10}  {:indent$}{names}",
            row.objects, ""
        ));
    }
    if is_overview {
        lines.push(format!(
            "\n{:>12} {:>12} {:>10}  class or size",
            "held", "of these", "objects"
        ));
        let classes = reply.classes.iter().take(top);
        lines.extend(classes.map(|class| {
            let (held, bytes) = (size(class.held_bytes), size(class.bytes));
            format!(
                "{held:>12} {bytes:>12} {:>10}  {}",
                class.objects, class.name
            )
        }));
    }
    lines.extend(reply.looked.lines());
    lines.join("\n")
}

fn told(step: &Step) -> String {
    let at = step
        .address
        .as_ref()
        .map(|address| format!(" at {address}"));
    let others = if step.is_shared {
        " (others hold it too)"
    } else {
        ""
    };
    format!("{}{}{others}", step.name, at.unwrap_or_default())
}
